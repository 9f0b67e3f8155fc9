#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/eviction/places_by_hash.hpp"

namespace cairn {

// The most recently used blocks, in that order (Mattson and others, 1970). A block is a hit in
// every LRU cache larger than the blocks used since. A block's weight is the number of blocks that
// it stands for. 33 bytes per block. Not thread-safe.
class LruStack {
 public:
  explicit LruStack(std::uint32_t max_blocks);
  LruStack(LruStack&&) = default;
  LruStack& operator=(LruStack&&) = default;

  bool contains(std::uint64_t key_hash) const { return places_.contains(key_hash); }
  // Total weight of the blocks used since; nullopt if the block is not in the stack.
  std::optional<std::uint64_t> weight_above(std::uint64_t key_hash) const;
  // Puts the block on top. `weight` is above 0. A full stack drops the block used longest ago.
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
  // From the bottom; with half as many places again as blocks. Places without weight are holes.
  std::vector<std::uint64_t> key_hashes_;
  std::vector<std::uint32_t> weights_;
  std::vector<std::uint32_t> tree_;  // sums of weights (Fenwick, 1994)
  std::uint32_t top_ = 0;            // the first free place
  std::uint32_t bottom_ = 0;         // all places below are holes
  std::uint64_t total_weight_ = 0;
  PlacesByHash<HashAt> places_;
};

// LRU caches of all sizes up to `max_blocks`. Hits are the blocks at a request's beginning that a
// cache holds. Not thread-safe.
class LruCaches {
 public:
  explicit LruCaches(std::uint32_t max_blocks) : stack_(max_blocks) {}

  // The prefix's first block first.
  void request(std::span<const std::uint64_t> blocks);
  // The last request's hits in a cache of this many blocks.
  std::uint64_t hits(std::uint32_t capacity_blocks) const;
  std::uint64_t memory_bytes() const;

 private:
  LruStack stack_;
  // For each block of the last request, up to the first missing one: the largest weight above it or
  // a block before it.
  std::vector<std::uint64_t> deepest_;
};

}  // namespace cairn
