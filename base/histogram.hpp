#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/cache_line.hpp"

namespace cairn {

// Counts values in fixed buckets for Prometheus: one per upper bound in `kUpper` (ascending), and
// one for larger values. record() is two relaxed additions. snapshot() never waits and may miss
// concurrent records. Thread-safe.
template <const auto& kUpper>
class alignas(kCacheLineBytes) Histogram {
 public:
  static constexpr const auto& kBounds = kUpper;

  struct Snapshot {
    std::array<std::uint64_t, kUpper.size() + 1> counts{};  // not cumulative; last: larger values
    std::uint64_t sum = 0;
  };

  void record(std::uint64_t value) {
    std::size_t bucket = 0;
    while (bucket < kUpper.size() && value > kUpper[bucket]) ++bucket;
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  Snapshot snapshot() const {
    Snapshot result;
    for (std::size_t i = 0; i < counts_.size(); ++i)
      result.counts[i] = counts_[i].load(std::memory_order_relaxed);
    result.sum = sum_.load(std::memory_order_relaxed);
    return result;
  }

 private:
  std::array<std::atomic<std::uint64_t>, kUpper.size() + 1> counts_{};
  std::atomic<std::uint64_t> sum_{0};
};

// About 1-2.5-5 per decade, from 10 µs (a match) to 10 s (a full disk tier).
inline constexpr std::array<std::uint64_t, 19> kDurationBoundsUs = {
    10,     25,     50,      100,     250,     500,       1'000,     2'500,     5'000,     10'000,
    25'000, 50'000, 100'000, 250'000, 500'000, 1'000'000, 2'500'000, 5'000'000, 10'000'000};
using DurationHistogram = Histogram<kDurationBoundsUs>;
static_assert(has_lines_of_its_own<DurationHistogram>);

// Factor 4, from a short list of keys to the largest collected body.
inline constexpr std::array<std::uint64_t, 9> kSizeBoundsBytes = {
    256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
using SizeHistogram = Histogram<kSizeBoundsBytes>;

}  // namespace cairn
