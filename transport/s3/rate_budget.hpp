#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace cairn {

// A bound of units per time: a bucket that fills evenly, and holds what `burst` brings. Not
// thread-safe.
class RateBudget {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Rate {
    std::uint64_t units = 0;  // 0: no bound
    std::chrono::milliseconds per{1'000};
    std::chrono::milliseconds burst{1'000};
  };

  explicit RateBudget(Rate rate) : rate_(rate), left_(most()) {}

  // Whether `units` may be used now. A request larger than a burst may use a full bucket, and then
  // the bucket is in debt, so that the rate holds in the long run.
  bool may(std::uint64_t units, TimePoint now) {
    if (rate_.units == 0) return true;
    fill(now);
    return left_ >= std::min(static_cast<double>(units), most());
  }
  void use(std::uint64_t units, TimePoint now) {
    if (rate_.units == 0) return;
    fill(now);
    left_ -= static_cast<double>(units);
  }

 private:
  double most() const {
    return std::max(1.0, static_cast<double>(rate_.units) *
                             static_cast<double>(rate_.burst.count()) /
                             static_cast<double>(rate_.per.count()));
  }
  void fill(TimePoint now) {
    if (filled_ != TimePoint{}) {
      const std::chrono::duration<double, std::milli> passed = now - filled_;
      left_ = std::min(most(), left_ + static_cast<double>(rate_.units) * passed.count() /
                                           static_cast<double>(rate_.per.count()));
    }
    filled_ = now;
  }

  Rate rate_;
  double left_;
  TimePoint filled_{};
};

}  // namespace cairn
