#pragma once

#include <vector>

#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/stats.hpp"
#include "transport/transfer/transfer_job.hpp"

namespace cairn {

class CacheCore;
class CacheLock;

// Reads the blocks on disk from time to time, because bytes can go bad while nobody reads them.
// Part of a cache's state, under its lock.
class Scrub {
 public:
  // Starts to check the next few blocks of the disk tier against their checksums. Does nothing if
  // the rate does not allow it, a transfer is waiting or the last check has not ended. Takes the
  // cache's lock.
  static void go_on(CacheCore& core);
  const DiskScrubStats& stats() const { return stats_; }

 private:
  struct Slot {
    SlotRef at;
    std::uint64_t generation = 0;
    KvGroupNumber kv_group = 0;
  };
  void begin(CacheLock& locked);
  std::vector<Slot> take(CacheLock& locked);
  void ended(CacheLock& locked, const std::vector<Slot>& slots, const JobOutcome& outcome);

  DiskScrubStats stats_;
  SlotNumber next_ = 0;
  bool under_way_ = false;
};

}  // namespace cairn
