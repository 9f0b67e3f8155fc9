#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "base/mutex.hpp"

namespace cairn {

// Measures how fast something works that several threads ask for: bytes over the time in which any
// of it was in progress. Follows changes within a few windows. Thread-safe.
class RateMeter {
 public:
  // `clock` must outlive the meter.
  explicit RateMeter(const Clock& clock) : clock_(clock) {}

  void begin() {
    MutexLock lock(mutex_);
    if (in_progress_++ == 0) began_ = clock_.now();
  }
  // Ends what began. `bytes` is 0 if it failed.
  void end(std::uint64_t bytes) {
    MutexLock lock(mutex_);
    bytes_ += bytes;
    const TimePoint now = clock_.now();
    busy_ += now - began_;
    began_ = now;
    --in_progress_;
    if (bytes_ < kWindowBytes || busy_ <= Duration::zero()) return;
    const double rate = static_cast<double>(bytes_) / std::chrono::duration<double>(busy_).count();
    const double last = bytes_per_s_;
    bytes_per_s_ = last == 0 ? rate : (last + rate) / 2;
    bytes_ = 0;
    busy_ = Duration::zero();
  }

  // A first guess.
  void assume(double bytes_per_s) { bytes_per_s_ = bytes_per_s; }
  // 0: not known yet.
  double bytes_per_s() const { return bytes_per_s_; }

 private:
  // A few large blocks, or some hundred small ones.
  static constexpr std::uint64_t kWindowBytes = 16ull << 20;

  const Clock& clock_;
  Mutex mutex_;
  std::uint32_t in_progress_ CAIRN_GUARDED_BY(mutex_) = 0;
  TimePoint began_ CAIRN_GUARDED_BY(mutex_){};  // or when the last of several ended
  Duration busy_ CAIRN_GUARDED_BY(mutex_){};
  std::uint64_t bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::atomic<double> bytes_per_s_{0};
};

}  // namespace cairn
