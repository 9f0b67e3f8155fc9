#pragma once

#include <memory>
#include <optional>

#include "base/mutex.hpp"
#include "blockmgr/cache.hpp"

namespace cairn {

// A thread of its own that waits for what answers through a Done. Never an engine or a network
// thread: they are what it waits for.
template <class T = void>
class Pending {
 public:
  // To be given away once; may run after this is gone.
  Done<T> done() {
    return [state = state_](Result<T> result) {
      MutexLock lock(state->mutex);
      state->result.emplace(std::move(result));
      state->ready.notify_all();
    };
  }
  // REQUIRES: done() was given to what runs it exactly once.
  Result<T> wait() {
    MutexLock lock(state_->mutex);
    while (!state_->result) state_->ready.wait(state_->mutex);
    return std::move(*state_->result);
  }

 private:
  struct State {
    Mutex mutex;
    Condition ready;
    std::optional<Result<T>> result;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace cairn
