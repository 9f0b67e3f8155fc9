#pragma once

#include <cstddef>
#include <deque>
#include <stop_token>
#include <thread>

#include "base/mutex.hpp"
#include "base/unique_function.hpp"

namespace cairn {

// A thread for work that must not hold up a network thread: what writes long texts, and what waits
// for files or memory. Bounded. Thread-safe.
class Worker {
 public:
  explicit Worker(std::size_t max_queued);
  ~Worker() { stop(); }

  // Runs what is queued, then ends the thread. REQUIRES: nobody posts any more.
  void stop();

  // False where the queue is full; the task is then destroyed.
  [[nodiscard]] bool post(UniqueFunction<void()> task);

 private:
  void run(std::stop_token stop);

  const std::size_t max_queued_;
  Mutex mutex_;
  Condition wake_;
  std::deque<UniqueFunction<void()>> queue_ CAIRN_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace cairn
