#pragma once

#include <algorithm>
#include <chrono>
#include <random>

namespace cairn {

// Whether something that failed is left alone: for 0.1 s, then for twice as long each time, 5 s at
// most. Not thread-safe.
class Circuit {
 public:
  using Clock = std::chrono::steady_clock;

  bool is_open() const { return Clock::now() < open_until_; }
  Clock::time_point open_until() const { return open_until_; }
  // What fails while it is open is the same failure.
  void failed(std::minstd_rand& random) {
    if (is_open()) return;
    pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
    // Not all servers of a fleet at the same moment.
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
