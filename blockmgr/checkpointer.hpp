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

// Makes the indexes of disk tiers durable on a thread of its own: each period, and at once where a
// log is half full. The log keeps what a killed process knew; checkpoints keep the log short, and
// survive a power cut. Its end waits for the checkpoint that is under way.
class Checkpointer {
 public:
  struct Options {
    Duration period{};
    std::function<std::vector<std::shared_ptr<CacheCore>>()> caches;  // those that are there now
  };
  // Borrows the clock. Throws std::system_error where there is no thread.
  Checkpointer(const Clock& clock, Options options);

 private:
  void work(const std::stop_token& stop);
  void look(TimePoint now);

  const Clock& clock_;
  const Options options_;
  // The thread's:
  TimePoint last_;  // when all were made durable
  // By cache. The next try of one that failed comes later each time: a full disk may stay full, and
  // a try may write much of it.
  struct Failing {
    Duration pause{};
    TimePoint not_before{};
  };
  std::map<std::uint32_t, Failing> failing_;
  Mutex mutex_;
  Condition wake_;
  Thread thread_;  // last: it uses all the others
};

}  // namespace cairn
