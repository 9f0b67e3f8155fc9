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

// Blocks that leave the cache for good, and who wants them before. Part of a cache's state: every
// call has the section that holds the lock.
class Departures {
 public:
  void set_taker(DepartureTerms terms) {
    terms_ = std::make_shared<DepartureTerms>(std::move(terms));
  }
  Duration wait_at_most() const { return terms_ == nullptr ? Duration{} : terms_->wait_at_most; }
  // A block goes before its parent does, which is no victim until then: of many at once, those of
  // few prefixes are taken at a time, and the prefix that is to go first goes first.
  bool is_full() const { return under_way_ >= kMaxUnderWay; }
  void begin() { ++under_way_; }
  void ended() { --under_way_; }
  // Gives leaving ones to the taker once the lock is free. REQUIRES: there is one.
  void hand_out(Section& section, std::span<const SlotRef> victims, EvictionReason reason);
  // Blocks that nobody was given, since somebody had waited for room for too long.
  void count_late() { ++late_; }
  std::uint64_t late() const { return late_; }

 private:
  // Twice what is stored at once.
  static constexpr std::uint32_t kMaxUnderWay = 8;

  std::shared_ptr<DepartureTerms> terms_;
  std::uint32_t under_way_ = 0;
  std::uint64_t late_ = 0;
};

}  // namespace cairn
