#pragma once

#include "blockmgr/index/config.hpp"

namespace cairn {

// Whether a cache can be made like that, as far as its body tells. out_of_range; impossible_shape;
// what validate() says of a shape.
Result<> check_config(const CacheConfig& config, const BlockManagerOptions& options);

// With what was left out: a disk tier's path is the cache's name.
CacheConfig filled_in(CacheConfig config);

// REQUIRES: the cache has the tier.
LayoutConfig tier_shape(const CacheConfig& config, Tier tier);
// How many different blocks fit into the cache: one that writes through has the same ones in every
// tier, as far as they fit.
std::uint32_t different_blocks(const CacheConfig& config);

// The watermarks of a tier: the cache's own, or the server's.
const PressureConfig& pressure_of(const CacheConfig& config, Tier tier,
                                  const BlockManagerOptions& options);
// The configuration after a change. unknown_tier, naming a tier that the cache lacks; impossible
// for the size of a device tier.
Result<CacheConfig> changed(CacheConfig config, const CacheChange& change);

}  // namespace cairn
