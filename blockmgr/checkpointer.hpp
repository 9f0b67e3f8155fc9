#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"

namespace cairn {

class CacheCore;

// A thread that makes the indexes of disk tiers durable: once per period, and at once if a log is
// half full. The log survives a killed process. A checkpoint shortens the log and survives a power
// cut. Pins are written soon after they come or go. The destructor waits for a checkpoint in
// progress.
class Checkpointer {
 public:
  struct Options {
    Duration period{};
    std::function<std::vector<std::shared_ptr<CacheCore>>()> caches;  // the current caches
  };
  // Borrows the clock. Throws std::system_error if the thread cannot be started.
  Checkpointer(const Clock& clock, Options options);

 private:
  void work(const std::stop_token& stop);
  void look(TimePoint now);
  void keep_pins_of(CacheCore& core, bool all);

  const Clock& clock_;
  const Options options_;
  // Only for the thread:
  TimePoint last_;  // last checkpoint of all caches
  // By cache number. Each failure makes the next pause longer: a full disk may stay full, and a try
  // may write much of it.
  struct Failing {
    Duration pause{};
    TimePoint not_before{};
  };
  std::map<std::uint32_t, Failing> failing_;
  // By cache number: which pins were written, and when they may be again.
  struct KeptPins {
    std::uint64_t changes = 0;
    TimePoint not_before{};
  };
  std::map<std::uint32_t, KeptPins> kept_pins_;
  Mutex mutex_;
  Condition wake_;
  Thread thread_;  // last: uses all others
};

}  // namespace cairn
