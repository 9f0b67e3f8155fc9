#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"

namespace cairn {

class CacheCore;

// Makes the indexes of disk tiers durable on a thread of its own: each period, and at once where a
// log is half full. The log keeps what a killed process knew; checkpoints keep the log short, and
// survive a power cut.
class Checkpointer {
 public:
  struct Options {
    Duration period{};
    std::function<std::vector<std::shared_ptr<CacheCore>>()> caches;  // those that are there now
  };
  // Borrows the clock.
  Checkpointer(const Clock& clock, Options options);
  // Waits for the checkpoint that is under way.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

 private:
  void work();

  const Clock& clock_;
  const Options options_;
  Mutex mutex_;
  Condition wake_;
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cairn
