#pragma once

#include <cstdint>

#include "base/executor.hpp"
#include "base/mutex.hpp"

namespace cairn {

// Counts the work in progress on scheduler threads, so that its owner can wait for all of it.
// Thread-safe.
class WaitGroup {
 public:
  void enter() {
    MutexLock lock(mutex_);
    ++inside_;
  }
  void leave() {
    MutexLock lock(mutex_);
    if (--inside_ == 0) empty_.notify_all();
  }
  void wait_empty(Executor& executor) {
    MutexLock lock(mutex_);
    while (inside_ > 0) executor.wait(mutex_, empty_);
  }

 private:
  Mutex mutex_;
  Condition empty_;
  std::uint64_t inside_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
