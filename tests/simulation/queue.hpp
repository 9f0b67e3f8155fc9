#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.hpp"
#include "tests/simulation/seeded_random.hpp"

namespace cairn::sim {

// The first violation that a run finds. It ends the run.
class Finding {
 public:
  void report(std::string what) {
    if (what_.empty()) what_ = std::move(what);
  }
  bool any() const { return !what_.empty(); }
  const std::string& what() const { return what_; }

 private:
  std::string what_;
};

// The future events. The clock jumps from one to the next. A waiter runs the next events on the
// same thread, so calls that overlap on real threads are nested here. Only the random numbers
// decide.
class Queue final : public Clock {
 public:
  explicit Queue(Finding& finding) : finding_(finding), random_(0) {}

  TimePoint now() const override { return now_; }
  std::int64_t unix_ms() const override;

  // All later decisions follow from the seed.
  void reseed(std::uint64_t seed) { random_ = Random(seed); }
  Random& random() { return random_; }
  Finding& finding() { return finding_; }

  using Event = UniqueFunction<void()>;
  // Hardware events run during any wait; the others are work of the program.
  enum class Kind : std::uint8_t { work, hardware };
  void after(Duration delay, Event event, Kind kind = Kind::work);
  // How long hardware or another thread takes: mostly microseconds, sometimes far longer.
  Duration some_delay();
  bool empty() const { return events_.empty(); }
  // Runs the next event. Returns false if there is none.
  bool step();
  // The same, but aborts if there is none, since nothing would end the wait.
  void step_for(const char* waiter);
  // The same with hardware events only, for a waiter that holds a lock.
  void step_hardware_for(const char* waiter);
  void advance(Duration time);
  void drain();
  std::uint64_t steps() const { return steps_; }

  // As Executor::wait().
  void wait(Mutex& mutex, const char* waiter);

 private:
  Finding& finding_;
  Random random_;
  TimePoint now_{};
  std::uint64_t steps_ = 0;
  std::uint64_t last_ = 0;
  struct Entry {
    Event event;
    Kind kind = Kind::work;
  };
  using Events = std::map<std::pair<TimePoint, std::uint64_t>, Entry>;  // equal times: by age
  void run(Events::iterator next);

  Events events_;
};

// An executor whose tasks run as events, at most one per worker. A waiting task keeps its worker.
class QueuedTasks final : public Executor {
 public:
  struct Options {
    std::uint32_t workers = 1;
  };
  // Borrows the queue.
  QueuedTasks(Queue& queue, Options options);
  ~QueuedTasks() override;

  std::uint32_t workers() const override { return static_cast<std::uint32_t>(busy_.size()); }
  void post(Task task) override;
  void wait(Mutex& mutex, Condition&) override { queue_.wait(mutex, "the engine"); }
  void sleep_for(Duration time) override { queue_.advance(time); }

 private:
  void begin();

  Queue& queue_;
  std::vector<bool> busy_;
  std::deque<Task> waiting_;
};

}  // namespace cairn::sim
