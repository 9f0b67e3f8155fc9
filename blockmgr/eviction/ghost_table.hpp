#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "blockmgr/eviction/history.hpp"

namespace cairn {

// Histories of blocks that have no copy any more, by a hash of their key. A fixed number of places,
// in sets of five that are a cache line each; a new one takes the place of the set's oldest. A hash
// may be another key's: one in a billion remembers a history that is not its own, which costs a
// worse guess. Not thread-safe.
class GhostTable {
 public:
  explicit GhostTable(std::uint32_t capacity_blocks);

  void remember(std::uint64_t key_hash, const BlockHistory& history);
  // Forgets it. Nothing is known of a block that was never here, or too long ago.
  BlockHistory recall(std::uint64_t key_hash);
  static constexpr std::size_t kPlaces = 5;
  static constexpr std::size_t kSetBytes = 64;
  std::uint32_t size() const { return size_; }
  std::uint64_t memory_bytes() const { return sets_.size() * sizeof(Set); }

 private:
  struct Ghost {
    std::uint32_t tag = 0;
    BlockHistory history;  // unknown: the place is free
  };
  struct alignas(kSetBytes) Set {
    std::array<Ghost, kPlaces> ghosts;
  };
  static_assert(sizeof(Set) == kSetBytes);
  Set& set_of(std::uint64_t key_hash) {
    return sets_[static_cast<std::size_t>((key_hash >> 32) * sets_.size() >> 32)];
  }

  std::vector<Set> sets_;
  RequestNumber newest_ = 0;
  std::uint32_t size_ = 0;
};

}  // namespace cairn
