#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/mutex.hpp"
#include "blockmgr/cache/cache.hpp"

namespace cairn {

// Waits for the answer of a call that takes a Done: for threads of its own, never an engine's or a
// network's, as they are what is waited for.
template <class T = void>
class Awaited {
 public:
  // To be given away once; may run after this is gone.
  Done<T> done() {
    return [state = state_](Result<T> answer) {
      MutexLock lock(state->mutex);
      state->answer.emplace(std::move(answer));
      state->changed.notify_all();
    };
  }
  // Once. REQUIRES: done() was given to what runs it exactly once.
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

// So many answers are awaited at once, and no more.
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
