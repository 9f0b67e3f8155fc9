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

// Runs functions at a time, one after the other on a thread of its own: a request that waits holds
// no network thread. What one throws is reported. Bounded. Thread-safe; functions may add and
// cancel.
class TimerQueue {
 public:
  // What names an entry: its time and a number.
  using Ticket = std::pair<TimePoint, std::uint64_t>;

  // Throws std::system_error where there is no thread.
  explicit TimerQueue(std::size_t max_entries);
  // Destroys what is left without running it.
  ~TimerQueue();

  // Nothing where the queue is full; the function is then destroyed.
  std::optional<Ticket> add(TimePoint when, UniqueFunction<void()> function);
  // The function is destroyed unless it runs now or has run.
  void cancel(const Ticket& ticket);
  // Runs all that is queued now, whatever its time, on this thread.
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
