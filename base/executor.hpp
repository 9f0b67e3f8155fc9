#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/unique_function.hpp"

namespace cairn {

// Who runs what is posted, and how its users wait. Two implementations: TaskThreads, and the one
// thread of a simulation, which goes on with other work where it would wait. Thread-safe.
class Executor {
 public:
  using Task = UniqueFunction<void()>;

  virtual ~Executor() = default;
  // Tasks that run at a time.
  virtual std::uint32_t workers() const = 0;
  virtual void post(Task task) = 0;
  // With the mutex held: returns once `changed` was notified, or earlier. The caller looks again.
  virtual void wait(Mutex& mutex, Condition& changed) = 0;
  virtual void sleep_for(Duration time) = 0;
};

}  // namespace cairn
