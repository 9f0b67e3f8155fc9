#pragma once

#include <map>
#include <string>
#include <vector>

#include "memory/alloc/statistics.hpp"

namespace cairn {

class CacheCore;

// Resets the peaks of the cache's tiers on that device to the current use.
void reset_slot_peaks(CacheCore& core, int device_id);

// The tiers' slots as allocator statistics, summed over all caches per device. A metric with cache
// names would lose series whenever a cache is dropped. Not thread-safe.
class SlotTotals {
 public:
  void add(CacheCore& core);
  // Keeps the counts of a dropped cache, because counters must not go back.
  void retire(CacheCore& core);

  std::vector<NamedAllocator> named() const;

 private:
  std::map<std::string, AllocatorStatistics> by_device_;
};

}  // namespace cairn
