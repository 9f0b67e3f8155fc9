#include "blockmgr/index/pressure.hpp"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

std::uint32_t slots_of(double share, std::uint32_t capacity) {
  return static_cast<std::uint32_t>(std::clamp(share, 0.0, 1.0) * capacity);
}

struct Change {
  PressureLevel from;
  PressureLevel to;

  bool comes_back() const { return from != PressureLevel::normal && to == PressureLevel::normal; }
  bool leaves_normal() const { return from == PressureLevel::normal && to != from; }
};

bool calls_back(const PressureConfig& config, const Change& change) {
  const auto was = static_cast<std::size_t>(change.from);
  const auto is = static_cast<std::size_t>(change.to);
  const std::size_t first =
      change.comes_back() || change.leaves_normal() ? 0 : std::min(was, is) + 1;
  for (std::size_t i = first; i <= std::max(was, is); ++i) {
    if (config.reactions[i].kind == PressureReaction::Kind::callback) return true;
  }
  return false;
}

}  // namespace

PressureGauge::PressureGauge(const PressureConfig& config, std::uint32_t capacity) {
  set(config, capacity);
}

void PressureGauge::set(const PressureConfig& config, std::uint32_t capacity) {
  config_ = config;
  capacity_ = capacity;
  const std::array<double, 3> shares = {config.elevated, config.warning, config.critical};
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    marks_[i] = static_cast<std::uint32_t>(std::ceil(shares[i] * capacity));
  }
}

// 0: none.
std::size_t PressureGauge::mark_reached(std::uint32_t slots) const {
  std::size_t reached = 0;
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    if (slots >= marks_[i]) reached = i + 1;
  }
  return reached;
}

PressureLevel PressureGauge::level_for(Use use) const {
  if (use.free == 0 && use.evictable == 0) return PressureLevel::out_of_memory;
  return static_cast<PressureLevel>(mark_reached(capacity_ - use.free - use.evictable));
}

std::optional<PressureGauge::Crossing> PressureGauge::update(Use use) {
  Crossing crossing{.from = level_, .to = level_for(use)};
  const std::size_t was_filled_to = filled_to_;
  level_ = crossing.to;
  filled_to_ = use.free == 0 ? kNumPressureLevels - 1 : mark_reached(capacity_ - use.free);
  const Change change{.from = crossing.from, .to = crossing.to};
  crossing.callback = calls_back(config_, change);
  const auto empties = [&](std::size_t level) {
    return config_.reactions[level].kind == PressureReaction::Kind::empty_cache;
  };
  const auto risen_to = static_cast<std::size_t>(crossing.to);
  for (auto i = static_cast<std::size_t>(crossing.from) + 1; i <= risen_to; ++i) {
    crossing.empty_cache = crossing.empty_cache || empties(i);
  }
  const auto shrink = [&](const PressureReaction& reaction) {
    if (reaction.kind != PressureReaction::Kind::shrink) return;
    const std::uint32_t target = slots_of(reaction.target_use, capacity_);
    crossing.shrink_to = std::min(crossing.shrink_to.value_or(capacity_), target);
  };
  for (std::size_t i = was_filled_to + 1; i <= filled_to_; ++i) shrink(config_.reactions[i]);
  if (change.comes_back()) {
    shrink(config_.reactions[0]);
    crossing.empty_cache = empties(0);
  }
  if (crossing.to <= crossing.from && !crossing.callback && !crossing.shrink_to &&
      !crossing.empty_cache) {
    return std::nullopt;
  }
  return crossing;
}

PressureLevel pool_pressure(const AllocatorStatistics& pool, const PressureConfig& marks) {
  if (pool.limit_bytes == 0) return PressureLevel::normal;
  if (pool.allocated_bytes >= pool.limit_bytes) return PressureLevel::out_of_memory;
  const double used =
      static_cast<double>(pool.allocated_bytes) / static_cast<double>(pool.limit_bytes);
  if (used >= marks.critical) return PressureLevel::critical;
  if (used >= marks.warning) return PressureLevel::warning;
  return used >= marks.elevated ? PressureLevel::elevated : PressureLevel::normal;
}

std::optional<PoolGauge::Crossing> PoolGauge::update(const AllocatorStatistics& pool) {
  const Change change{.from = level_, .to = pool_pressure(pool, config_)};
  level_ = change.to;
  Crossing crossing{.from = change.from, .to = change.to, .callback = calls_back(config_, change)};
  const auto shrinks = [&](std::size_t level) {
    return config_.reactions[level].kind == PressureReaction::Kind::shrink;
  };
  for (auto i = static_cast<std::size_t>(change.from) + 1; i <= static_cast<std::size_t>(change.to);
       ++i) {
    crossing.shrink = crossing.shrink || shrinks(i);
  }
  if (change.comes_back()) crossing.shrink = shrinks(0);
  if (!crossing.callback && !crossing.shrink) return std::nullopt;
  return crossing;
}

}  // namespace cairn
