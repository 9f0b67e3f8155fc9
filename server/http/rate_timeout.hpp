#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/clock.hpp"

namespace cairn::http {

// How long a connection waits for its client while a body arrives or a response leaves: at most
// `grace_ms` without a byte, and in total at most `grace_ms` plus the time that the bytes moved so
// far take at the minimum rate. So a client that trickles bytes times out like one that stops. Time
// that the server itself takes is not counted.
class RateTimeout {
 public:
  struct Limits {
    std::uint32_t grace_ms = 0;
    std::uint32_t least_rate_bytes_per_s = 1;
  };

  void begin(const Limits& limits) {
    limits_ = limits;
    left_ = std::chrono::milliseconds(limits.grace_ms);
    waiting_ = false;
  }
  // Starts a wait and returns its deadline.
  TimePoint wait(TimePoint now) {
    waited_since_ = now;
    waiting_ = true;
    return now + std::min<Duration>(left_, std::chrono::milliseconds(limits_.grace_ms));
  }
  // Ends the wait, if there is one.
  void waited(TimePoint now) {
    if (!waiting_) return;
    waiting_ = false;
    left_ = std::max(Duration::zero(), left_ - (now - waited_since_));
  }
  void moved(std::uint64_t bytes) {
    const auto earned =
        std::chrono::nanoseconds(bytes * (1'000'000'000 / limits_.least_rate_bytes_per_s));
    left_ = std::min<Duration>(left_ + earned, kMost);
  }

 private:
  // Limit for endless streams, so that the sum cannot overflow.
  static constexpr std::chrono::hours kMost{24};
  Limits limits_;
  Duration left_{};
  TimePoint waited_since_;
  bool waiting_ = false;
};

}  // namespace cairn::http
