#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "blockmgr/index/types.hpp"

namespace cairn {

// Limits how many blocks an owner may have in each tier, in all caches that share the quota, and
// counts them. It counts the copies of keys whose first copy was committed under it, wherever they
// are moved. Callers check it before an allocation and before a transfer that the owner requests.
// Operations already in progress may exceed the limit. Thread-safe.
class BlockQuota {
 public:
  static constexpr std::uint32_t kNoLimit = UINT32_MAX;
  using Limits = std::array<std::uint32_t, kNumTiers>;
  static constexpr Limits kNoLimits = {kNoLimit, kNoLimit, kNoLimit};

  explicit BlockQuota(const Limits& limits) { set_limits(limits); }

  void set_limits(const Limits& limits) {
    for (std::size_t i = 0; i < kNumTiers; ++i) limits_[i] = limits[i];
  }
  std::uint32_t limit(Tier tier) const { return limits_[index_of(tier)]; }
  std::uint64_t used(Tier tier) const { return used_[index_of(tier)]; }
  bool fits(Tier tier, std::uint64_t more) const {
    return limit(tier) == kNoLimit || used(tier) + more <= limit(tier);
  }

  void add(Tier tier) { ++used_[index_of(tier)]; }
  void remove(Tier tier, std::uint64_t blocks) { used_[index_of(tier)] -= blocks; }

 private:
  std::array<std::atomic<std::uint32_t>, kNumTiers> limits_{};
  std::array<std::atomic<std::uint64_t>, kNumTiers> used_{};
};

}  // namespace cairn
