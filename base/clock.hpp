#pragma once

#include <chrono>
#include <cstdint>

namespace cairn {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// The source of time; tests replace it. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic. Use it for leases, deadlines and durations.
  virtual TimePoint now() const = 0;
  // Milliseconds since 1970 (UTC). Only to show to people and clients.
  virtual std::int64_t unix_ms() const = 0;
};

class SystemClock final : public Clock {
 public:
  TimePoint now() const override;
  std::int64_t unix_ms() const override;
};

}  // namespace cairn
