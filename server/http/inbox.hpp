#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <thread>

#include "base/mutex.hpp"
#include "base/unique_function.hpp"

namespace cairn::http {

// Lets other threads run tasks on a network thread. Shared, because callers may outlive the thread:
// tasks posted after close() are dropped. Thread-safe.
class Inbox {
 public:
  explicit Inbox(boost::asio::io_context& io) : io_(&io) {}

  // Makes the calling thread the network thread.
  void open_on_this_thread() { thread_ = std::this_thread::get_id(); }
  bool on_thread() const {
    return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  // Runs `task` on the network thread, later.
  void post(UniqueFunction<void()> task);
  void close();

 private:
  std::atomic<std::thread::id> thread_;
  Mutex mutex_;
  boost::asio::io_context* io_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::http
