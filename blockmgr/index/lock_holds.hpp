#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn {

// Why a cache's lock is held. A closed set: it is a metric's label.
enum class LockUse : std::uint8_t {
  match,
  look,  // read-only: contains, list, stats
  read,
  write,
  allocate,
  commit,
  lease,     // renew, release
  transfer,  // onboard, transfer, drain, copies
  evict,     // evict, clear, erase
  movement,  // completed copies between tiers
  upkeep,    // expired leases, resizes, checkpoints, scrubs, snapshots
};
inline constexpr std::size_t kNumLockUses = 11;
inline constexpr std::array<LockUse, kNumLockUses> kLockUses = {
    LockUse::match,    LockUse::look,     LockUse::read,  LockUse::write,
    LockUse::allocate, LockUse::commit,   LockUse::lease, LockUse::transfer,
    LockUse::evict,    LockUse::movement, LockUse::upkeep};
std::string_view to_string(LockUse use);

// Histograms of how long a lock was held, by use. Not thread-safe: call under that lock.
class LockHolds {
 public:
  // Upper bounds in nanoseconds. The goal for a hold is 20 µs, the limit 100 µs.
  static constexpr std::array<std::uint64_t, 11> kBoundsNs = {
      1'000,   2'000,   5'000,   10'000,    20'000,    50'000,
      100'000, 200'000, 500'000, 1'000'000, 10'000'000};

  struct OfUse {
    std::array<std::uint64_t, kBoundsNs.size() + 1> counts{};  // the last one: longer holds
    std::uint64_t sum_ns = 0;
  };

  void record(LockUse use, std::uint64_t ns) {
    OfUse& of = uses_[static_cast<std::size_t>(use)];
    std::size_t bucket = 0;
    while (bucket < kBoundsNs.size() && ns > kBoundsNs[bucket]) ++bucket;
    ++of.counts[bucket];
    of.sum_ns += ns;
  }
  const OfUse& of(LockUse use) const { return uses_[static_cast<std::size_t>(use)]; }

 private:
  std::array<OfUse, kNumLockUses> uses_;
};

}  // namespace cairn
