#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/executor.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"

namespace cairn {

// Threads that run posted tasks, oldest first. Thread-safe.
class TaskThreads final : public Executor {
 public:
  struct Options {
    std::string name;
    std::uint32_t threads = 1;  // at least 1
    std::size_t max_queued = SIZE_MAX;
  };
  // Throws std::system_error if a thread cannot be started.
  explicit TaskThreads(const Options& options);
  ~TaskThreads() override;  // calls stop()
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;

  std::uint32_t workers() const override { return static_cast<std::uint32_t>(threads_.size()); }
  // Logs exceptions of the task. REQUIRES: max_queued is not set.
  void post(Task task) override;
  // Returns false, and destroys the task, if the queue is full.
  [[nodiscard]] bool try_post(Task task);
  void wait(Mutex& mutex, Condition& changed) override { changed.wait(mutex); }
  void sleep_for(Duration time) override { std::this_thread::sleep_for(time); }
  // Runs all posted tasks, and those that they post, then ends the threads. REQUIRES: no other
  // thread posts.
  void stop();

 private:
  void work();

  const std::string name_;
  const std::size_t max_queued_;
  Mutex mutex_;
  Condition posted_;  // notified for a task or for stop()
  std::deque<Task> tasks_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t running_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;
};

}  // namespace cairn
