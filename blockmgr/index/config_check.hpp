#pragma once

#include "blockmgr/index/config.hpp"
#include "blockmgr/index/slot_sizes.hpp"

namespace cairn {

// Checks the configuration by itself. Errors: out_of_range, impossible, impossible_shape, and those
// of validate() for a shape.
Result<> check_config(const CacheConfig& config, const BlockManagerOptions& options);

// Sets the number of slots of tiers whose size is given in bytes, and the shape of the largest
// block of several KV groups. A tier too small for one block keeps its size_bytes, which
// check_config() refuses.
CacheConfig with_slots(CacheConfig config);
// with_slots(), and fills in defaults: a disk tier's path is the cache's name.
CacheConfig filled_in(CacheConfig config);

// True if each block of one cache has the bytes of a block of the other: the same KV groups with
// the same shapes.
bool same_shapes(const CacheConfig& a, const CacheConfig& b);

// Identifies the KV groups and their shapes; 0 for a cache without kv_groups.
std::uint64_t shapes_hash(const CacheConfig& config);

// The room of a block of that shape in that tier: padded, and with its header on disk. REQUIRES:
// validate(shape).
std::uint64_t slot_bytes(const LayoutConfig& shape, Tier tier);
// REQUIRES: each group's shape is valid.
SlotSizes slot_sizes(const CacheConfig& config, Tier tier);
// With a codec, a disk tier has more slots than blocks as they are: see PageRoom.
std::uint32_t slots_a_block(const TierConfig& tier);
// The slots of the tier; 0: no such tier.
std::uint32_t slots_in(const CacheConfig& config, Tier tier);
// The shape of what lies between two slots: of a block, or of a unit if blocks have several sizes.
// REQUIRES: the cache has the tier.
LayoutConfig tier_shape(const CacheConfig& config, Tier tier);
// How many different blocks fit into the cache. With OffloadMode::on_commit all tiers hold the same
// blocks, so the largest tier counts.
std::uint32_t different_blocks(const CacheConfig& config);

// The keys of prompts that a cache of several KV groups is expected to hold, for its eviction
// order: see BlockStore::Options. 0 if its slots are to be counted.
std::uint32_t policy_blocks(const CacheConfig& config);

// The watermarks of a tier: the cache's own, else the server's.
const PressureConfig& pressure_of(const CacheConfig& config, Tier tier,
                                  const BlockManagerOptions& options);
// Returns the configuration after a change. Errors: unknown_tier if the change names a tier that
// the cache lacks; impossible for the size of a device tier.
Result<CacheConfig> changed(CacheConfig config, const CacheChange& change);

}  // namespace cairn
