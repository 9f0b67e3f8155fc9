#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace cairn {

// Limits the work for waiting requests under one hold of a cache's lock. Victims that begin to
// leave come back if the tier below has no room for them in the end. If one step is too short to
// find that out, the next starts over, endlessly. So a step without lasting gain is followed by one
// twice as large. Part of a cache's state.
class StepBudget {
 public:
  explicit StepBudget(std::uint32_t size) : normal_(size), size_(size) {}

  std::uint32_t size() const { return size_; }

  struct Step {
    bool used_up = false;
    std::int64_t gained = 0;  // since the cache was created
  };
  void ended(Step step) {
    const bool further = step.gained > furthest_;
    size_ = !step.used_up || further ? normal_ : size_ + std::min(size_, kMost - size_);
    if (!step.used_up || further) furthest_ = step.gained;
  }

 private:
  static constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();

  const std::uint32_t normal_;
  std::uint32_t size_;
  std::int64_t furthest_ = 0;
};

}  // namespace cairn
