#include "memory/region_registry.hpp"

#include <string>

namespace cairn {
namespace {

Error unknown(RegionId id) {
  return {ErrorCode::not_found, "region " + std::to_string(id.value) + " is not registered"};
}

}  // namespace

Result<> RegionRegistry::insert(RegionId id, RegionView region) {
  MutexLock lock(mutex_);
  if (!regions_.emplace(id, region).second) {
    return Error{ErrorCode::state_conflict,
                 "region " + std::to_string(id.value) + " is already registered"};
  }
  return {};
}

Result<> RegionRegistry::remove(RegionId id) {
  MutexLock lock(mutex_);
  if (regions_.erase(id) == 0) return unknown(id);
  return {};
}

Result<RegionView> RegionRegistry::get(RegionId id) const {
  MutexLock lock(mutex_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return unknown(id);
  return found->second;
}

}  // namespace cairn
