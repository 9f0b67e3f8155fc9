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

// Threads that run what is posted, oldest first. Thread-safe.
class TaskThreads final : public Executor {
 public:
  struct Options {
    std::string name;
    std::uint32_t threads = 1;  // at least 1
    std::size_t max_queued = SIZE_MAX;
  };
  // Throws std::system_error where there is no thread.
  explicit TaskThreads(const Options& options);
  ~TaskThreads() override;  // as stop()
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;

  std::uint32_t workers() const override { return static_cast<std::uint32_t>(threads_.size()); }
  // What it throws is told on stderr. REQUIRES: no bound was set.
  void post(Task task) override;
  // False where so many wait as may; the task is then destroyed.
  [[nodiscard]] bool try_post(Task task);
  void wait(Mutex& mutex, Condition& changed) override { changed.wait(mutex); }
  void sleep_for(Duration time) override { std::this_thread::sleep_for(time); }
  // Runs what was posted until now, and what that posts, then ends the threads. REQUIRES: nobody
  // else posts any more.
  void stop();

 private:
  void work();

  const std::string name_;
  const std::size_t max_queued_;
  Mutex mutex_;
  Condition posted_;  // or the end has come
  std::deque<Task> tasks_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t running_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;
};

}  // namespace cairn
