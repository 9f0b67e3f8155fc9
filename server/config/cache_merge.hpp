#pragma once

#include <optional>
#include <string>
#include <vector>

#include "blockmgr/index/config.hpp"
#include "server/codec/document.hpp"

namespace cairn {

// A configured cache as a start makes it. Changes made while it served are kept, except for values
// that were edited in the configuration since.
struct MergedCache {
  CacheConfig cache;
  // "tiers.disk.num_blocks is 64, not 32". `changed`: where the cache differs from the
  // configuration. `edited`: where an edit of the configuration replaced a change.
  std::vector<std::string> changed = {};
  std::vector<std::string> edited = {};
};

struct CacheVersions {
  const CacheConfig& remembered;  // its last state
  // Its body in the configuration at that time; null if not named there. nullopt if unknown: then
  // every value that can be changed at run time counts as changed.
  const std::optional<json>& configured;
  const CacheConfig& wanted;  // the configuration now
};
MergedCache merge_cache(const CacheVersions& versions);

}  // namespace cairn
