#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "blockmgr/config.hpp"

namespace cairn {

// The watermarks of a tier in slots, and the level it is at. Not thread-safe.
class PressureGauge {
 public:
  struct Use {
    std::uint32_t free = 0;
    std::uint32_t evictable = 0;
  };
  PressureGauge(const PressureConfig& config, std::uint32_t capacity);

  PressureLevel level() const { return level_; }
  PressureLevel level_for(Use use) const;

  struct Crossing {
    PressureLevel from = PressureLevel::normal;
    PressureLevel to = PressureLevel::normal;
    bool callback = false;                        // of any level entered
    std::optional<std::uint32_t> shrink_to = {};  // slots in use: the least of the levels entered
  };
  // Takes the new level on; answers a crossing only upwards.
  std::optional<Crossing> update(Use use);

 private:
  const PressureConfig config_;
  const std::uint32_t capacity_;
  std::array<std::uint32_t, 3> marks_;  // the least use in slots: elevated, warning, critical
  PressureLevel level_ = PressureLevel::normal;
};

}  // namespace cairn
