#include "base/task_threads.hpp"

#include "base/assert.hpp"

namespace cairn {

TaskThreads::TaskThreads(const Options& options)
    : name_(options.name), max_queued_(options.max_queued) {
  CAIRN_ASSERT(options.threads > 0, "nothing posted would ever run");
  try {
    for (std::uint32_t i = 0; i < options.threads; ++i) {
      threads_.emplace_back(name_ + " " + std::to_string(i),
                            [this](const std::stop_token&) { work(); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

TaskThreads::~TaskThreads() { stop(); }

void TaskThreads::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_all();
  threads_.clear();
}

void TaskThreads::post(Task task) {
  const bool posted = try_post(std::move(task));
  CAIRN_ASSERT(posted, "a task would be lost");
}

bool TaskThreads::try_post(Task task) {
  {
    MutexLock lock(mutex_);
    if (tasks_.size() >= max_queued_) return false;
    tasks_.push_back(std::move(task));
    // Under the lock: `this` may be destroyed once the task has run.
    posted_.notify_one();
  }
  return true;
}

void TaskThreads::work() {
  while (true) {
    Task task;
    {
      MutexLock lock(mutex_);
      // A running task may post another one.
      while (tasks_.empty() && !(stopping_ && running_ == 0)) posted_.wait(mutex_);
      if (tasks_.empty()) break;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      ++running_;
    }
    guarded(name_, task);
    task = {};
    MutexLock lock(mutex_);
    --running_;
    if (stopping_ && running_ == 0) posted_.notify_all();
  }
}

}  // namespace cairn
