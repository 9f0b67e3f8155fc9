#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "base/clock.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

class CacheLock;

// Hands blocks that are being evicted to a taker before they are dropped. Part of a cache's state:
// under the cache's lock.
class EvictToRemote {
 public:
  struct Terms {
    // Receives victims that have begun to leave, and ends each of them. Runs under the lock.
    std::function<void(CacheLock&, std::span<const SlotRef> victims, EvictionReason)> taker = {};
    // Once a request has waited this long for room, the taker gets no more blocks for it.
    Duration wait_at_most{};
  };

  void set(Terms terms) { terms_ = std::move(terms); }
  Duration wait_at_most() const { return terms_.wait_at_most; }
  // Limits the evictions in progress. A parent becomes a victim only when its child has left. With
  // few at a time, eviction goes through one prefix after the other, in its order, and does not cut
  // the ends off many.
  bool is_full() const { return under_way_ >= kMaxUnderWay; }
  void begin() { ++under_way_; }
  void ended() { --under_way_; }
  // REQUIRES: a taker is set.
  void hand_out(CacheLock& locked, std::span<const SlotRef> victims, EvictionReason reason) {
    terms_.taker(locked, victims, reason);
  }
  // Blocks dropped without the taker, because a request had waited too long for room.
  void count_late() { ++late_; }
  std::uint64_t late() const { return late_; }

 private:
  // Twice the number of blocks that are stored at a time.
  static constexpr std::uint32_t kMaxUnderWay = 8;

  Terms terms_;
  std::uint32_t under_way_ = 0;
  std::uint64_t late_ = 0;
};

}  // namespace cairn
