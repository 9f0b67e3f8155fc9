#pragma once

#include <condition_variable>
#include <mutex>

// Clang's thread-safety attributes; empty for other compilers.
#if defined(__clang__)
#define CAIRN_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define CAIRN_THREAD_ATTRIBUTE(x)
#endif

#define CAIRN_GUARDED_BY(mutex) CAIRN_THREAD_ATTRIBUTE(guarded_by(mutex))
#define CAIRN_REQUIRES(...) CAIRN_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define CAIRN_EXCLUDES(...) CAIRN_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace cairn {

// A std::mutex that clang checks (-Wthread-safety).
class CAIRN_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() CAIRN_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() CAIRN_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  bool try_lock() CAIRN_THREAD_ATTRIBUTE(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

// A Mutex for long work in steps: yield() lets waiting threads go first. Plain unlock and lock
// would take the mutex back before a waiting thread wakes up.
class CAIRN_THREAD_ATTRIBUTE(capability("mutex")) YieldingMutex {
 public:
  void lock() CAIRN_THREAD_ATTRIBUTE(acquire_capability()) {
    if (!holder_.try_lock()) wait();
  }
  void unlock() CAIRN_THREAD_ATTRIBUTE(release_capability()) { holder_.unlock(); }
  // REQUIRES: held.
  void yield() CAIRN_THREAD_ATTRIBUTE(requires_capability(this)) {
    holder_.unlock();
    wait();
  }

 private:
  // A waiting thread holds `next_` until it has `holder_`, so that later ones queue behind it.
  void wait() {
    const std::lock_guard<std::mutex> next(next_);
    holder_.lock();
  }

  std::mutex next_;
  std::mutex holder_;
};

class CAIRN_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CAIRN_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() CAIRN_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits on a Mutex: `condition.wait(mutex)` with the mutex held.
using Condition = std::condition_variable_any;

}  // namespace cairn
