#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "base/unique_function.hpp"

namespace cairn {

// Threads that run what is posted, oldest first. Thread-safe.
class TaskThreads {
 public:
  // Told which of the threads runs it, from 0 on: what a thread keeps from task to task lies there.
  using Task = UniqueFunction<void(std::size_t thread)>;

  struct Options {
    std::string name;
    std::uint32_t threads = 1;  // at least 1
  };
  // Throws std::system_error where there is no thread.
  explicit TaskThreads(const Options& options);
  // Runs what was posted until now, and what that posts.
  ~TaskThreads();
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;

  // What it throws is told on stderr.
  void post(Task task);

 private:
  void stop();
  void work(std::size_t thread);

  const std::string name_;
  Mutex mutex_;
  Condition posted_;  // or the end has come
  std::deque<Task> tasks_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t running_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;
};

}  // namespace cairn
