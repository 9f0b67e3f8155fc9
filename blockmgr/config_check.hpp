#pragma once

#include "blockmgr/config.hpp"

namespace cairn {

// Whether a cache can be made like that, as far as its body tells. out_of_range; impossible_shape;
// what validate() says of a shape.
Result<> check_config(const CacheConfig& config, const BlockManagerOptions& options);

// With what was left out: a disk tier's path is the cache's name.
CacheConfig filled_in(CacheConfig config);

// REQUIRES: the cache has the tier.
LayoutConfig tier_shape(const CacheConfig& config, Tier tier);

}  // namespace cairn
