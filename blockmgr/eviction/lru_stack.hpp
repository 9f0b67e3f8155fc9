#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/eviction/places_by_hash.hpp"

namespace cairn {

// The blocks that were used last, in that order (Mattson and others, 1970): a block is a hit in all
// caches under LRU that are larger than what was used since. Each counts for as many blocks as it
// is told to weigh. 33 bytes a block. Not thread-safe.
class LruStack {
 public:
  explicit LruStack(std::uint32_t max_blocks);
  LruStack(LruStack&&) = default;
  LruStack& operator=(LruStack&&) = default;

  bool contains(std::uint64_t key_hash) const { return places_.contains(key_hash); }
  // What lies above the block, which was used since; nothing where it is not there.
  std::optional<std::uint64_t> weight_above(std::uint64_t key_hash) const;
  // Puts it on top; above 0. Where there is no room the one used longest ago is given up.
  void use(std::uint64_t key_hash, std::uint32_t weight);
  std::uint64_t memory_bytes() const;

 private:
  struct HashAt {
    const std::uint64_t* key_hashes = nullptr;
    std::uint64_t operator()(std::uint32_t place) const { return key_hashes[place]; }
  };

  void take_out(std::uint32_t place);
  void give_up_oldest();
  void close_up();
  void add_weight(std::uint32_t place, std::int64_t weight);

  std::uint32_t max_blocks_;
  // From the bottom; half as many again as may be there. What weighs nothing is a hole.
  std::vector<std::uint64_t> key_hashes_;
  std::vector<std::uint32_t> weights_;
  std::vector<std::uint32_t> tree_;  // sums of weights (Fenwick, 1994)
  std::uint32_t top_ = 0;            // the first free place
  std::uint32_t bottom_ = 0;         // nothing lies below
  std::uint64_t total_weight_ = 0;
  PlacesByHash<HashAt> places_;
};

// LRU caches of all sizes up to one: of each request the blocks at its beginning that one of so
// many blocks has. Not thread-safe.
class LruCaches {
 public:
  explicit LruCaches(std::uint32_t max_blocks) : stack_(max_blocks) {}

  // The prefix's first block first.
  void request(std::span<const std::uint64_t> blocks);
  // Of the last request, in a cache of this many blocks.
  std::uint64_t hits(std::uint32_t capacity_blocks) const;
  std::uint64_t memory_bytes() const;

 private:
  LruStack stack_;
  // As far as each block of the request: the most blocks above one. Up to the first that is not
  // there.
  std::vector<std::uint64_t> deepest_;
};

}  // namespace cairn
