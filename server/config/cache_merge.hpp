#pragma once

#include <optional>
#include <string>
#include <vector>

#include "blockmgr/index/config.hpp"
#include "server/codec/document.hpp"

namespace cairn {

// A cache of the configuration as a start makes it: what was changed while it served counts, but
// for values that were edited in the configuration since then.
struct MergedCache {
  CacheConfig cache;
  // "tiers.disk.num_blocks is 64, not 32": where the cache is other than the configuration says,
  // and where the configuration's edit has replaced what was changed.
  std::vector<std::string> changed = {};
  std::vector<std::string> edited = {};
};

struct CacheVersions {
  const CacheConfig& remembered;  // as it was last
  // Its body in the configuration of that time, null where it was not named there; nothing: that is
  // unknown, and what may be changed of a cache is taken for changed.
  const std::optional<json>& configured;
  const CacheConfig& wanted;  // as the configuration has it now
};
MergedCache merge_cache(const CacheVersions& versions);

}  // namespace cairn
