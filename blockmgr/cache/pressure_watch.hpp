#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "blockmgr/index/config.hpp"
#include "blockmgr/index/pressure.hpp"

namespace cairn {

struct BlockManagerOptions;
class Section;
class SlotPool;

// Says when a tier fills up or empties, and makes it smaller where its policy says so. Part of a
// cache's state, under its lock.
class PressureWatch {
 public:
  PressureWatch(const CacheConfig& config, const BlockManagerOptions& options);
  // Of a tier that has that size from now on. Nothing without that tier.
  void set(Tier tier, const PressureConfig& config, std::uint32_t num_blocks);
  // At this moment, whatever was looked at last. REQUIRES: the cache has that tier.
  PressureLevel level(Tier tier, const SlotPool& slots) const;
  // Looks at all tiers, a step of what a policy evicts among it.
  void look(Section& section);

 private:
  std::array<std::optional<PressureGauge>, kNumTiers> gauges_;
  std::array<std::optional<std::uint32_t>, kNumTiers> shrink_to_;  // slots in use, while shrinking
};

}  // namespace cairn
