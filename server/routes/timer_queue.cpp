#include "server/routes/timer_queue.hpp"

namespace cairn {

TimerQueue::TimerQueue(std::size_t max_entries)
    : max_entries_(max_entries),
      thread_("timers", [this](const std::stop_token& stop) { run(stop); }) {}

TimerQueue::~TimerQueue() {
  thread_.request_stop();
  thread_.join();
}

std::optional<TimerQueue::Ticket> TimerQueue::add(TimePoint when, UniqueFunction<void()> function) {
  Ticket ticket;
  bool is_first = false;
  {
    MutexLock lock(mutex_);
    if (entries_.size() == max_entries_) return std::nullopt;
    ticket = {when, next_number_++};
    const auto added = entries_.emplace(ticket, std::move(function)).first;
    // A separate statement: within one, begin() might be evaluated before emplace().
    is_first = added == entries_.begin();
  }
  if (is_first) wake_.notify_one();
  return ticket;
}

void TimerQueue::cancel(const Ticket& ticket) {
  UniqueFunction<void()> destroyed_unlocked;
  MutexLock lock(mutex_);
  const auto found = entries_.find(ticket);
  if (found == entries_.end()) return;
  destroyed_unlocked = std::move(found->second);
  entries_.erase(found);
}

void TimerQueue::flush() {
  std::map<Ticket, UniqueFunction<void()>> all;
  {
    MutexLock lock(mutex_);
    all.swap(entries_);
  }
  for (auto& [ticket, function] : all) guarded("timers", function);
}

void TimerQueue::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (entries_.empty()) {
      wake_.wait(lock, stop, [this] { return !entries_.empty(); });
      continue;
    }
    const auto first = entries_.begin();
    const TimePoint when = first->first.first;
    if (std::chrono::steady_clock::now() < when) {
      // Wakes early for a new entry that comes before this one.
      wake_.wait_until(lock, stop, when, [this, when] {
        return !entries_.empty() && entries_.begin()->first.first < when;
      });
      continue;
    }
    UniqueFunction<void()> function = std::move(first->second);
    entries_.erase(first);
    lock.unlock();
    guarded("timers", function);
    function = {};
    lock.lock();
  }
}

}  // namespace cairn
