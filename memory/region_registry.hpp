#pragma once

#include <map>

#include "base/mutex.hpp"
#include "base/strong_id.hpp"
#include "memory/region.hpp"

namespace cairn {

using RegionId = StrongId<struct RegionIdTag>;

// Regions by id, so that a layout can be built on memory with another owner. The registry does not
// own: remove a region before its memory is freed. Thread-safe.
class RegionRegistry {
 public:
  Result<> insert(RegionId id, RegionView region);  // state_conflict: the id is taken
  Result<> remove(RegionId id);                     // not_found
  Result<RegionView> get(RegionId id) const;        // not_found

 private:
  mutable Mutex mutex_;
  std::map<RegionId, RegionView> regions_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
