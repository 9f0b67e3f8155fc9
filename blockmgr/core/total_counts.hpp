#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/histogram.hpp"
#include "blockmgr/index/stats.hpp"

namespace cairn {

// Counters over all caches of a manager. They outlive the caches, so a total does not fall when a
// cache is dropped. Thread-safe.
class TotalCounts {
 public:
  void moved(Tier from, Tier to, std::uint64_t duration_us) {
    durations_[index_of(from)][index_of(to)].record(duration_us);
  }
  void wrong_checksum(Tier tier) { add(checksum_failures_[index_of(tier)], 1); }
  void damaged(const DiskDamageStats& found) {
    add(slot_files_, found.slot_files);
    add(indexes_, found.indexes);
    add(headers_, found.headers);
  }

  CacheTotals now() const {
    CacheTotals all{.disk_damage = {.slot_files = slot_files_.load(std::memory_order_relaxed),
                                    .indexes = indexes_.load(std::memory_order_relaxed),
                                    .headers = headers_.load(std::memory_order_relaxed)}};
    for (std::size_t i = 0; i < kNumTiers; ++i) {
      all.checksum_failures[i] = checksum_failures_[i].load(std::memory_order_relaxed);
      for (std::size_t to = 0; to < kNumTiers; ++to) {
        all.durations[i][to] = durations_[i][to].snapshot();
      }
    }
    return all;
  }

 private:
  using Count = std::atomic<std::uint64_t>;
  static void add(Count& count, std::uint64_t more) {
    count.fetch_add(more, std::memory_order_relaxed);
  }

  std::array<std::array<DurationHistogram, kNumTiers>, kNumTiers> durations_;  // [from][to]
  std::array<Count, kNumTiers> checksum_failures_{};
  Count slot_files_ = 0;
  Count indexes_ = 0;
  Count headers_ = 0;
};

}  // namespace cairn
