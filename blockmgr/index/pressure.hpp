#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "blockmgr/index/config.hpp"
#include "memory/alloc/statistics.hpp"

namespace cairn {

// The watermarks of a tier in slots, and the level it is at. Not thread-safe.
//
// A cache is meant to be full, so the level does not speak of how full a tier is but of what cannot
// be had by waiting for an eviction: slots that are neither free nor evictable (leased, being
// filled, on their way to another tier). A tier full of evictable blocks is `normal`.
//
// Room is made ahead of demand (`shrink`) by how full it is: an allocation that finds no free slot
// waits for an offload, however healthy the tier.
class PressureGauge {
 public:
  struct Use {
    std::uint32_t free = 0;
    std::uint32_t evictable = 0;
  };
  PressureGauge(const PressureConfig& config, std::uint32_t capacity);

  // From now on by these watermarks, of a tier of that size. The level is what it was until it is
  // updated.
  void set(const PressureConfig& config, std::uint32_t capacity);

  PressureLevel level() const { return level_; }
  PressureLevel level_for(Use use) const;

  struct Crossing {
    PressureLevel from = PressureLevel::normal;
    PressureLevel to = PressureLevel::normal;
    bool callback = false;                        // of any level entered, or left on the way down
    std::optional<std::uint32_t> shrink_to = {};  // slots in use: the least of the marks passed
  };
  // Takes the new use on; answers a crossing where the level rises, where it falls out of one whose
  // reaction is `callback`, or where a mark of a `shrink` is passed on the way up.
  std::optional<Crossing> update(Use use);

 private:
  std::size_t mark_reached(std::uint32_t slots) const;

  PressureConfig config_;
  std::uint32_t capacity_ = 0;
  std::array<std::uint32_t, 3> marks_{};  // the least slots: elevated, warning, critical
  PressureLevel level_ = PressureLevel::normal;
  std::size_t filled_to_ = 0;  // the mark that the slots in use have reached
};

// Of a pool, by the share of its limit that is in use. One without a limit is always `normal`.
PressureLevel pool_pressure(const AllocatorStatistics& pool, const PressureConfig& marks = {});

}  // namespace cairn
