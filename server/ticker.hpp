#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/unique_function.hpp"

namespace cairn {

// Calls a function again and again on a thread of its own, until destroyed.
class Ticker {
 public:
  Ticker(std::chrono::milliseconds period, UniqueFunction<void()> function)
      : thread_([this, period, function = std::move(function)](std::stop_token stop) mutable {
          std::unique_lock lock(mutex_);
          while (!stop.stop_requested()) {
            function();
            wake_.wait_for(lock, stop, period, [] { return false; });
          }
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace cairn
