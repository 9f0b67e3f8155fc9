#pragma once

#include <chrono>
#include <cstdint>

namespace cairn {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// Where the program gets its time from, so that tests can give it theirs. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Never goes back: for leases, deadlines and durations.
  virtual TimePoint now() const = 0;
  // Milliseconds since 1970 (UTC): only to be shown to people and clients.
  virtual std::int64_t unix_ms() const = 0;
};

class SystemClock final : public Clock {
 public:
  TimePoint now() const override;
  std::int64_t unix_ms() const override;
};

}  // namespace cairn
