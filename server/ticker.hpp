#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "base/thread.hpp"
#include "base/unique_function.hpp"

namespace cairn {

// Calls a function periodically on its own thread, until destroyed. If a call throws, reports that
// and goes on.
class Ticker {
 public:
  // Throws std::system_error if the thread cannot be started.
  Ticker(const std::string& name, std::chrono::milliseconds period, UniqueFunction<void()> function)
      : thread_(name, [this, name, period,
                       function = std::move(function)](const std::stop_token& stop) mutable {
          std::unique_lock lock(mutex_);
          while (!stop.stop_requested()) {
            guarded(name, function);
            wake_.wait_for(lock, stop, period, [] { return false; });
          }
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any wake_;
  Thread thread_;  // last: it uses all the others
};

}  // namespace cairn
