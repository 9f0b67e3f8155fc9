#include "server/worker.hpp"

namespace cairn {

Worker::Worker(const std::string& name, std::size_t max_queued)
    : name_(name),
      max_queued_(max_queued),
      thread_(name, [this](const std::stop_token& stop) { run(stop); }) {}

void Worker::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

bool Worker::post(UniqueFunction<void()> task) {
  {
    MutexLock lock(mutex_);
    if (queue_.size() == max_queued_) return false;
    queue_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

void Worker::run(const std::stop_token& stop) {
  while (true) {
    UniqueFunction<void()> task;
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    guarded(name_, task);
  }
}

}  // namespace cairn
