#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "blockmgr/index/config.hpp"
#include "blockmgr/index/pressure.hpp"

namespace cairn {

struct BlockManagerOptions;
class CacheLock;
class SlotPool;

// Reports when a tier fills up or empties, and shrinks it if its policy says so. Part of a cache's
// state, under its lock.
class PressureWatch {
 public:
  PressureWatch(const CacheConfig& config, const BlockManagerOptions& options);
  // Sets thresholds and size of a tier. No effect if the cache does not have it.
  void set(Tier tier, const PressureConfig& config, std::uint32_t num_blocks);
  // The level now, independent of the last look(). REQUIRES: the cache has that tier.
  PressureLevel level(Tier tier, const SlotPool& slots) const;
  // Checks all tiers. Evicts one step of what a policy evicts.
  void look(CacheLock& locked);

 private:
  std::array<std::optional<PressureGauge>, kNumTiers> gauges_;
  std::array<std::optional<std::uint32_t>, kNumTiers> shrink_to_;  // target, while shrinking
};

}  // namespace cairn
