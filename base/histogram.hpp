#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cairn {

// Counts of durations in fixed buckets, for Prometheus. Recording is two relaxed additions; reading
// never waits and may miss what is being recorded. Thread-safe.
class DurationHistogram {
 public:
  // Upper bounds in microseconds, about 1-2.5-5 a decade from 10 µs (a match) to 10 s (a full disk
  // tier); what is longer counts only in the total.
  static constexpr std::array<std::uint64_t, 19> kBoundsUs = {
      10,     25,     50,      100,     250,     500,       1'000,     2'500,     5'000,     10'000,
      25'000, 50'000, 100'000, 250'000, 500'000, 1'000'000, 2'500'000, 5'000'000, 10'000'000};

  struct Snapshot {
    std::array<std::uint64_t, kBoundsUs.size() + 1>
        counts{};  // not cumulative; the last is the longer ones
    std::uint64_t sum_us = 0;
  };

  void record_us(std::uint64_t us) {
    std::size_t bucket = 0;
    while (bucket < kBoundsUs.size() && us > kBoundsUs[bucket]) ++bucket;
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_us_.fetch_add(us, std::memory_order_relaxed);
  }

  Snapshot snapshot() const {
    Snapshot result;
    for (std::size_t i = 0; i < counts_.size(); ++i)
      result.counts[i] = counts_[i].load(std::memory_order_relaxed);
    result.sum_us = sum_us_.load(std::memory_order_relaxed);
    return result;
  }

 private:
  std::array<std::atomic<std::uint64_t>, kBoundsUs.size() + 1> counts_{};
  std::atomic<std::uint64_t> sum_us_{0};
};

}  // namespace cairn
