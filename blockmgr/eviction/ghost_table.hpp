#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/huge_pages.hpp"
#include "blockmgr/eviction/history.hpp"

namespace cairn {

// Histories of blocks that have no copy any more, by a hash of their key. A fixed number of
// entries, in sets of five; a set is one cache line. A new entry replaces the oldest of its set.
// Hashes may collide: one block in a billion gets another's history, which only makes a guess
// worse. Not thread-safe.
class GhostTable {
 public:
  explicit GhostTable(std::uint32_t capacity_blocks);

  // Blocks are evicted many at a time, and each access is a cache miss. So the last few are
  // inserted only when more follow or on recall().
  void remember(std::uint64_t key_hash, const BlockHistory& history);
  // Removes and returns the history. It is unknown if the block was never here, or too long ago.
  BlockHistory recall(std::uint64_t key_hash) {
    if (leaving_count_ > 0) put_all();
    const auto tag = static_cast<std::uint32_t>(key_hash);
    for (Ghost& ghost : set_of(key_hash).ghosts) {
      if (ghost.tag == tag && ghost.history.is_known()) return take(ghost);
    }
    return {};
  }
  static constexpr std::size_t kPlaces = 5;
  static constexpr std::size_t kSetBytes = 64;
  void prefetch(std::uint64_t key_hash) const { __builtin_prefetch(&set_of(key_hash), 1); }
  std::uint32_t size() const {  // exact up to the last few
    return static_cast<std::uint32_t>(std::min(size_ + leaving_count_, kPlaces * sets_.size()));
  }
  std::uint64_t memory_bytes() const { return sets_.size() * sizeof(Set); }

 private:
  struct Ghost {
    std::uint32_t tag = 0;
    BlockHistory history;  // unknown: the entry is free
  };
  struct alignas(kSetBytes) Set {
    std::array<Ghost, kPlaces> ghosts;
  };
  static_assert(sizeof(Set) == kSetBytes);
  struct Leaving {
    std::uint64_t key_hash = 0;
    BlockHistory history;
  };
  static constexpr std::size_t kMostLeaving = 16;  // as many as are prefetched at a time
  const Set& set_of(std::uint64_t key_hash) const {
    return sets_[static_cast<std::size_t>((key_hash >> 32) * sets_.size() >> 32)];
  }
  Set& set_of(std::uint64_t key_hash) {
    return sets_[static_cast<std::size_t>((key_hash >> 32) * sets_.size() >> 32)];
  }
  void put_first();
  void put_all();
  BlockHistory take(Ghost& ghost);

  HugeVector<Set> sets_;
  std::array<Leaving, kMostLeaving> leaving_;  // a ring
  std::size_t leaving_count_ = 0;
  std::size_t first_leaving_ = 0;
  RequestNumber newest_ = 0;
  std::uint32_t size_ = 0;
};

}  // namespace cairn
