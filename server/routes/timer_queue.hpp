#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <utility>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "base/unique_function.hpp"

namespace cairn {

// Runs functions at given times, one after another on its own thread. So a waiting request does not
// hold a network thread. Reports exceptions. Bounded. Thread-safe; functions may add and cancel.
class TimerQueue {
 public:
  // Identifies an entry: its time and a number.
  using Ticket = std::pair<TimePoint, std::uint64_t>;

  // Throws std::system_error if the thread cannot be started.
  explicit TimerQueue(std::size_t max_entries);
  // Destroys the remaining functions without running them.
  ~TimerQueue();

  // Returns nullopt if the queue is full; the function is then destroyed.
  std::optional<Ticket> add(TimePoint when, UniqueFunction<void()> function);
  // Destroys the function, unless it is running or has run.
  void cancel(const Ticket& ticket);
  // Runs all queued functions now, on this thread.
  void flush();

 private:
  void run(const std::stop_token& stop);

  const std::size_t max_entries_;
  Mutex mutex_;
  Condition wake_;
  std::map<Ticket, UniqueFunction<void()>> entries_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t next_number_ CAIRN_GUARDED_BY(mutex_) = 0;
  Thread thread_;  // last: it uses all the others
};

}  // namespace cairn
