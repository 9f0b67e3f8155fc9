#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/index/slot_ref.hpp"

namespace cairn {

class Section;

// Hands blocks that leave the cache to a taker before they are dropped. Part of a cache's state:
// each call takes the section that holds the lock.
class Departures {
 public:
  void set_taker(DepartureTerms terms) {
    terms_ = std::make_shared<DepartureTerms>(std::move(terms));
  }
  Duration wait_at_most() const { return terms_ == nullptr ? Duration{} : terms_->wait_at_most; }
  // Limits the departures in progress. A parent becomes a victim only when its child has left. With
  // few departures at a time, eviction goes through one prefix after the other, in its order, and
  // does not cut the ends off many.
  bool is_full() const { return under_way_ >= kMaxUnderWay; }
  void begin() { ++under_way_; }
  void ended() { --under_way_; }
  // Gives leaving blocks to the taker once the lock is free. REQUIRES: a taker is set.
  void hand_out(Section& section, std::span<const SlotRef> victims, EvictionReason reason);
  // Blocks dropped without a departure, because a request had waited too long for room.
  void count_late() { ++late_; }
  std::uint64_t late() const { return late_; }

 private:
  // Twice the number of blocks that are stored at a time.
  static constexpr std::uint32_t kMaxUnderWay = 8;

  std::shared_ptr<DepartureTerms> terms_;
  std::uint32_t under_way_ = 0;
  std::uint64_t late_ = 0;
};

}  // namespace cairn
