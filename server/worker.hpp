#pragma once

#include <cstddef>
#include <deque>
#include <stop_token>
#include <string>

#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "base/unique_function.hpp"

namespace cairn {

// A thread for work that must not hold up a network thread: what writes long texts, and what waits
// for files or memory. What a task throws is reported; the next one runs. Bounded. Thread-safe.
class Worker {
 public:
  // Throws std::system_error where there is no thread.
  Worker(const std::string& name, std::size_t max_queued);
  ~Worker() { stop(); }

  // Runs what is queued, then ends the thread. REQUIRES: nobody posts any more.
  void stop();

  // False where the queue is full; the task is then destroyed.
  [[nodiscard]] bool post(UniqueFunction<void()> task);

 private:
  void run(const std::stop_token& stop);

  const std::string name_;
  const std::size_t max_queued_;
  Mutex mutex_;
  Condition wake_;
  std::deque<UniqueFunction<void()>> queue_ CAIRN_GUARDED_BY(mutex_);
  Thread thread_;  // last: it uses all the others
};

}  // namespace cairn
