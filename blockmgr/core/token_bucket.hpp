#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.hpp"
#include "base/mutex.hpp"

namespace cairn {

// Limits the bytes per second that the server moves to or from disk on its own initiative. Blocks
// that a client names in a request do not count. Thread-safe.
class TokenBucket {
 public:
  explicit TokenBucket(std::uint64_t bytes_per_s) : bytes_per_s_(bytes_per_s) {}  // 0: no limit

  // Returns true if some bytes are left. A call may take more than that: the next callers wait
  // longer. So a block larger than one second's bytes gets through.
  bool take(std::uint64_t bytes, TimePoint now) {
    if (bytes_per_s_ == 0) return true;
    MutexLock lock(mutex_);
    refill(now);
    if (left_ <= 0) return false;
    left_ -= static_cast<double>(bytes);
    return true;
  }

 private:
  void refill(TimePoint now) CAIRN_REQUIRES(mutex_) {
    const auto rate = static_cast<double>(bytes_per_s_);
    if (!begun_) left_ = rate;
    begun_ = true;
    const double seconds = std::chrono::duration<double>(now - last_).count();
    if (seconds > 0) {
      left_ = std::min(rate, left_ + rate * std::min(seconds, kLongest));
      last_ = now;
    }
  }

  static constexpr double kLongest = 1e6;  // no sum can overflow
  const std::uint64_t bytes_per_s_;
  Mutex mutex_;
  bool begun_ CAIRN_GUARDED_BY(mutex_) = false;
  TimePoint last_ CAIRN_GUARDED_BY(mutex_){};
  double left_ CAIRN_GUARDED_BY(mutex_) = 0;  // below 0: taken in advance
};

}  // namespace cairn
