#pragma once

#include <vector>

#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/stats.hpp"
#include "transport/engine/transfer_job.hpp"

namespace cairn {

class CacheCore;
class Section;

// Bytes on disk go wrong while nobody reads them: they are read now and then. Part of a cache's
// state, under its lock.
class Scrub {
 public:
  // Begins to compare the next few blocks of the disk tier with their checksums, where the rate
  // allows it and neither a movement nor the last of these is waiting.
  // Takes the cache's lock.
  static void go_on(CacheCore& core);
  const DiskScrubStats& stats() const { return stats_; }

 private:
  struct Slot {
    SlotRef at;
    std::uint64_t generation = 0;
  };
  void begin(Section& section);
  std::vector<Slot> take(Section& section);
  void ended(Section& section, const std::vector<Slot>& slots, const JobOutcome& outcome);

  DiskScrubStats stats_;
  SlotNumber next_ = 0;
  bool under_way_ = false;
};

}  // namespace cairn
