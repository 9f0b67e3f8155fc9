#pragma once

#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {

class CacheCore;
class CacheLock;

// Gives pages of free disk slots back to the file system, if other slots need as many: see
// PageRoom. Part of a cache's state: each call takes the CacheLock.
class HolePunch {
 public:
  // Begins with the next few slots, unless others are under way.
  void go_on(CacheLock& locked);

 private:
  using Slots = std::shared_ptr<const std::vector<SlotTail>>;
  static void punch(CacheCore& core, const Slots& slots);
  void ended(CacheLock& locked, const std::vector<SlotTail>& slots, bool failed);

  bool under_way_ = false;
  TimePoint not_before_{};  // after a failure, so that a broken disk is not used all the time
};

}  // namespace cairn
