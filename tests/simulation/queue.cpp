#include "tests/simulation/queue.hpp"

#include <algorithm>

#include "base/assert.hpp"
#include "base/thread.hpp"

namespace cairn::sim {
namespace {

constexpr std::int64_t kStartUnixMs = 1'700'000'000'000;

}  // namespace

std::int64_t Queue::unix_ms() const {
  return kStartUnixMs +
         std::chrono::duration_cast<std::chrono::milliseconds>(now_.time_since_epoch()).count();
}

void Queue::after(Duration delay, Event event, Kind kind) {
  events_.emplace(std::pair(now_ + delay, ++last_), Entry{std::move(event), kind});
}

Duration Queue::some_delay() {
  const std::uint64_t kind = random_.below(16);
  const std::uint64_t max_us = kind < 10 ? 100 : kind < 15 ? 3'000 : 200'000;
  return std::chrono::microseconds(1 + random_.below(max_us));
}

bool Queue::step() {
  if (events_.empty()) return false;
  run(events_.begin());
  return true;
}

void Queue::run(Events::iterator next) {
  auto taken = events_.extract(next);
  now_ = std::max(now_, taken.key().first);
  ++steps_;
  taken.mapped().event();
}

void Queue::step_hardware_for(const char* waiter) {
  const auto next = std::ranges::find_if(
      events_, [](const auto& entry) { return entry.second.kind == Kind::hardware; });
  if (next != events_.end()) return run(next);
  invariant_broken(waiter, "no hardware event will end this wait");
}

void Queue::step_for(const char* waiter) {
  if (step()) return;
  // The waiter's stack lies below this frame, so this cannot return.
  invariant_broken(waiter, "nothing under way will end this wait");
}

void Queue::advance(Duration time) {
  const TimePoint end = now_ + time;
  while (!events_.empty() && events_.begin()->first.first <= end) step();
  now_ = std::max(now_, end);
}

void Queue::drain() {
  while (step()) {
  }
}

void Queue::wait(Mutex& mutex, const char* waiter) {
  mutex.unlock();
  step_for(waiter);
  mutex.lock();
}

QueuedTasks::QueuedTasks(Queue& queue, Options options)
    : queue_(queue), busy_(options.workers, false) {}

QueuedTasks::~QueuedTasks() {
  const auto is_busy = [this] { return std::ranges::find(busy_, true) != busy_.end(); };
  while (is_busy()) queue_.step_for("the executor's end");
}

void QueuedTasks::post(Task task) {
  waiting_.push_back(std::move(task));
  begin();
}

void QueuedTasks::begin() {
  while (!waiting_.empty()) {
    const auto free = std::ranges::find(busy_, false);
    if (free == busy_.end()) return;
    *free = true;
    const auto worker = static_cast<std::size_t>(free - busy_.begin());
    queue_.after(queue_.some_delay(), [this, worker, task = std::move(waiting_.front())]() mutable {
      guarded("task", [&] { task(); });
      task = {};
      busy_[worker] = false;
      begin();
    });
    waiting_.pop_front();
  }
}

}  // namespace cairn::sim
