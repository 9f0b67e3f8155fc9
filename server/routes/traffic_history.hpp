#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

// The traffic of the last hour, in steps of a few seconds, for the status page. Thread-safe.
class TrafficHistory {
 public:
  static constexpr std::chrono::seconds kPeriod{5};
  static constexpr std::size_t kMostSamples = 720;  // an hour; 140 bytes each

  using Moved = std::array<std::array<std::uint64_t, kNumTiers>, kNumTiers>;  // [from][to], bytes

  // Totals since the server, or the cache, started.
  struct CacheCounts {
    std::uint64_t id = 0;  // unique, also among caches of the same name
    std::uint64_t asked_blocks = 0;
    std::uint64_t found_blocks = 0;
    Moved moved = {};
  };
  struct Counts {
    std::uint64_t requests = 0;
    std::uint64_t received_bytes = 0;
    std::uint64_t sent_bytes = 0;
    std::vector<CacheCounts> caches = {};
  };

  // The counts of one step.
  struct Sample {
    std::uint64_t number = 0;  // the previous number + 1; increases across restarts too
    std::int64_t ended_unix_ms = 0;
    std::uint64_t duration_ms = 0;
    std::uint64_t requests = 0;
    std::uint64_t received_bytes = 0;
    std::uint64_t sent_bytes = 0;
    std::uint64_t asked_blocks = 0;  // of caches that exist at the end of the step
    std::uint64_t found_blocks = 0;
    Moved moved = {};
  };

  // Borrows the clock.
  explicit TrafficHistory(const Clock& clock);

  // Whether a step has passed. If not, do not collect the counts for add().
  bool is_due() const;
  void add(const Counts& now);
  // The samples with larger numbers, oldest first.
  std::vector<Sample> after(std::uint64_t number) const;

 private:
  const Clock& clock_;
  mutable Mutex mutex_;
  TimePoint last_at_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t last_number_ CAIRN_GUARDED_BY(mutex_);
  Counts last_ CAIRN_GUARDED_BY(mutex_);  // without the caches
  std::map<std::uint64_t, CacheCounts> last_of_caches_ CAIRN_GUARDED_BY(mutex_);
  std::deque<Sample> samples_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
