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

// What the server did in the last hour, in steps of a few seconds: who opens the status page sees
// what was before. Thread-safe.
class TrafficHistory {
 public:
  static constexpr std::chrono::seconds kPeriod{5};
  static constexpr std::size_t kMostSamples = 720;  // an hour; 140 bytes each

  using Moved = std::array<std::array<std::uint64_t, kNumTiers>, kNumTiers>;  // [from][to], bytes

  // Counted since each of them began.
  struct CacheCounts {
    std::uint64_t id = 0;  // no other cache's, a later one of the same name included
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

  // The counts of one step alone.
  struct Sample {
    std::uint64_t number = 0;  // one more than the last one's; over restarts too it rises
    std::int64_t ended_unix_ms = 0;
    std::uint64_t duration_ms = 0;
    std::uint64_t requests = 0;
    std::uint64_t received_bytes = 0;
    std::uint64_t sent_bytes = 0;
    std::uint64_t asked_blocks = 0;  // of caches that were there at its end
    std::uint64_t found_blocks = 0;
    Moved moved = {};
  };

  // Borrows the clock.
  explicit TrafficHistory(const Clock& clock);

  // A step has passed, and add() is worth the work of counting.
  bool is_due() const;
  void add(const Counts& now);
  // Those with larger numbers, the oldest first.
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
