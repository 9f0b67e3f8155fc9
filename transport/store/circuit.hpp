#pragma once

#include <algorithm>
#include <chrono>
#include <random>

namespace cairn {

// Pauses requests after a failure: for 0.1 s, then twice as long each time, up to 5 s. Not
// thread-safe.
class Circuit {
 public:
  using Clock = std::chrono::steady_clock;

  bool is_open() const { return Clock::now() < open_until_; }
  Clock::time_point open_until() const { return open_until_; }
  // A failure during the pause counts as the same failure.
  void failed(std::minstd_rand& random) {
    if (is_open()) return;
    pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
    // Spreads the retries of a fleet's servers.
    std::uniform_real_distribution<double> jitter(0.75, 1.25);
    open_until_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(pause_ * jitter(random));
  }
  void answered() {
    pause_ = std::chrono::milliseconds(0);
    open_until_ = {};
  }

 private:
  static constexpr std::chrono::milliseconds kFirstPause{100};
  static constexpr std::chrono::milliseconds kLongestPause{5'000};
  std::chrono::milliseconds pause_{0};
  Clock::time_point open_until_{};
};

}  // namespace cairn
