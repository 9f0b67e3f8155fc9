#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/mutex.hpp"
#include "blockmgr/cache/cache.hpp"

namespace cairn {

// Waits for the result of a call that takes a Done. Do not use it on a scheduler or network thread:
// those run the call that is waited for.
template <class T = void>
class Awaited {
 public:
  // Call once. The returned Done may run after this object is destroyed.
  Done<T> done() {
    return [state = state_](Result<T> answer) {
      MutexLock lock(state->mutex);
      state->answer.emplace(std::move(answer));
      state->changed.notify_all();
    };
  }
  // Call once. REQUIRES: the Done of done() will run exactly once.
  Result<T> wait() {
    MutexLock lock(state_->mutex);
    while (!state_->answer) state_->changed.wait(state_->mutex);
    return std::move(*state_->answer);
  }

 private:
  struct State {
    Mutex mutex;
    Condition changed;
    std::optional<Result<T>> answer CAIRN_GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Limits the number of calls in progress to `most`. Thread-safe.
class InFlight {
 public:
  explicit InFlight(std::uint32_t most) : most_(most) {}
  ~InFlight() { wait_all(); }
  void begin() {
    MutexLock lock(mutex_);
    while (now_ == most_) changed_.wait(mutex_);
    ++now_;
  }
  void end() {
    MutexLock lock(mutex_);
    --now_;
    changed_.notify_all();
  }
  void wait_all() {
    MutexLock lock(mutex_);
    while (now_ > 0) changed_.wait(mutex_);
  }

 private:
  const std::uint32_t most_;
  Mutex mutex_;
  Condition changed_;
  std::uint32_t now_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
