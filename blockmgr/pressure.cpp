#include "blockmgr/pressure.hpp"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

std::uint32_t slots_of(double share, std::uint32_t capacity) {
  return static_cast<std::uint32_t>(std::clamp(share, 0.0, 1.0) * capacity);
}

}  // namespace

PressureGauge::PressureGauge(const PressureConfig& config, std::uint32_t capacity)
    : config_(config), capacity_(capacity) {
  const std::array<double, 3> shares = {config.elevated, config.warning, config.critical};
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    marks_[i] = static_cast<std::uint32_t>(std::ceil(shares[i] * capacity));
  }
}

PressureLevel PressureGauge::level_for(Use use) const {
  if (use.free == 0 && use.evictable == 0) return PressureLevel::out_of_memory;
  const std::uint32_t used = capacity_ - use.free;
  auto level = PressureLevel::normal;
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    if (used >= marks_[i]) level = static_cast<PressureLevel>(i + 1);
  }
  return level;
}

std::optional<PressureGauge::Crossing> PressureGauge::update(Use use) {
  const PressureLevel next = level_for(use);
  if (next == level_) return std::nullopt;
  Crossing crossing{.from = level_, .to = next};
  level_ = next;
  if (next < crossing.from) return std::nullopt;
  for (auto i = static_cast<std::size_t>(crossing.from) + 1; i <= static_cast<std::size_t>(next);
       ++i) {
    const PressureReaction& reaction = config_.reactions[i];
    if (reaction.kind == PressureReaction::Kind::callback) crossing.callback = true;
    if (reaction.kind == PressureReaction::Kind::shrink) {
      const std::uint32_t target = slots_of(reaction.target_use, capacity_);
      crossing.shrink_to = std::min(crossing.shrink_to.value_or(capacity_), target);
    }
  }
  return crossing;
}

}  // namespace cairn
