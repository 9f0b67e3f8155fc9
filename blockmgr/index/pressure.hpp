#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "blockmgr/index/config.hpp"
#include "memory/alloc/statistics.hpp"

namespace cairn {

// A tier's watermarks in slots, and its current level. Not thread-safe.
//
// A full cache is normal. So the level counts only slots that no eviction can free: neither free
// nor evictable (leased, being filled, or moving to another tier). A tier full of evictable blocks
// is `normal`.
//
// `shrink`, which makes room ahead of demand, counts all slots in use: an allocation without a free
// slot waits for an offload, even if the level is `normal`.
class PressureGauge {
 public:
  struct Use {
    std::uint32_t free = 0;
    std::uint32_t evictable = 0;
  };
  PressureGauge(const PressureConfig& config, std::uint32_t capacity);

  // Changes the watermarks and the tier's size. The level changes at the next update().
  void set(const PressureConfig& config, std::uint32_t capacity);

  PressureLevel level() const { return level_; }
  PressureLevel level_for(Use use) const;

  struct Crossing {
    PressureLevel from = PressureLevel::normal;
    PressureLevel to = PressureLevel::normal;
    bool callback = false;     // a level with a callback was entered, or left
    bool empty_cache = false;  // a level with that reaction was entered, or `normal` came back
    // slots in use: the lowest target of the marks passed, or that of `normal`
    std::optional<std::uint32_t> shrink_to = {};
  };
  // Updates the level. Returns a crossing if the level rises, if it leaves one whose reaction is
  // `callback`, if the slots in use rise to the mark of a `shrink`, or if it comes back to `normal`
  // and that has a reaction.
  std::optional<Crossing> update(Use use);

 private:
  std::size_t mark_reached(std::uint32_t slots) const;

  PressureConfig config_;
  std::uint32_t capacity_ = 0;
  std::array<std::uint32_t, 3> marks_{};  // minimum slots: elevated, warning, critical
  PressureLevel level_ = PressureLevel::normal;
  std::size_t filled_to_ = 0;  // mark reached by the slots in use; 0: none
};

// The level of a pool, by the used share of its limit. Always `normal` without a limit.
PressureLevel pool_pressure(const AllocatorStatistics& pool, const PressureConfig& marks = {});

// A pool's current level, and the reactions to its changes. Not thread-safe.
class PoolGauge {
 public:
  explicit PoolGauge(const PressureConfig& config) : config_(config) {}
  struct Crossing {
    PressureLevel from = PressureLevel::normal;
    PressureLevel to = PressureLevel::normal;
    bool callback = false;
    bool shrink = false;
  };
  // Updates the level. nullopt if no reaction runs.
  std::optional<Crossing> update(const AllocatorStatistics& pool);

 private:
  PressureConfig config_;
  PressureLevel level_ = PressureLevel::normal;
};

}  // namespace cairn
