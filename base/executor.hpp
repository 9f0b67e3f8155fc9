#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/unique_function.hpp"

namespace cairn {

// Runs tasks, and knows how its users wait. There are two implementations: TaskThreads, and the
// single thread of a simulation, which runs other work instead of waiting. Thread-safe.
class Executor {
 public:
  using Task = UniqueFunction<void()>;

  virtual ~Executor() = default;
  // Number of tasks that run at once.
  virtual std::uint32_t workers() const = 0;
  virtual void post(Task task) = 0;
  // REQUIRES: `mutex` is held. Returns after `changed` was notified, or earlier; the caller checks
  // again.
  virtual void wait(Mutex& mutex, Condition& changed) = 0;
  virtual void sleep_for(Duration time) = 0;
};

}  // namespace cairn
