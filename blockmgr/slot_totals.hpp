#pragma once

#include <map>
#include <string>
#include <vector>

#include "memory/alloc/statistics.hpp"

namespace cairn {

class CacheCore;

// The tiers of a cache that lie on a device: the most slots in use of them is what is in use now.
void reset_slot_peaks(CacheCore& core, int device_id);

// The tiers' slots as an allocator's statistics: those of all caches on one device together, since
// a metric that named caches would lose a series with each. Not thread-safe.
class SlotTotals {
 public:
  void add(CacheCore& core);
  // Of a cache that goes: its counts stay, as counters must not go back.
  void retire(CacheCore& core);

  std::vector<NamedAllocator> named() const;

 private:
  std::map<std::string, AllocatorStatistics> by_device_;
};

}  // namespace cairn
