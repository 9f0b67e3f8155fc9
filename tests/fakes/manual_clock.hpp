#pragma once

#include <atomic>

#include "base/clock.hpp"

namespace cairn::fakes {

// Time that stands still until a test moves it, or moves by a step with each reading. Thread-safe.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override {
    return TimePoint(Duration(ticks_.fetch_add(ticks_per_reading_.load())));
  }
  std::int64_t unix_ms() const override {
    return kStartUnixMs +
           std::chrono::duration_cast<std::chrono::milliseconds>(Duration(ticks_.load())).count();
  }
  void advance(Duration by) { ticks_ += by.count(); }
  void advance_ms(std::int64_t ms) { advance(std::chrono::milliseconds(ms)); }
  void advance_with_each_reading(Duration by) { ticks_per_reading_ = by.count(); }

 private:
  static constexpr std::int64_t kStartUnixMs = 1'700'000'000'000;
  mutable std::atomic<Duration::rep> ticks_{0};
  std::atomic<Duration::rep> ticks_per_reading_{0};
};

}  // namespace cairn::fakes
