#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "base/mutex.hpp"

namespace cairn {

// Measures how fast something works that several threads ask for: bytes over the time in which any
// of it was in progress. The last few hundred MiB count. Thread-safe.
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
    const TimePoint now = clock_.now();
    bytes_ += bytes;
    busy_ += now - began_;
    began_ = now;
    --in_progress_;
    if (bytes_ < kLeastBytes || busy_ <= Duration::zero()) return;
    bytes_per_s_ = static_cast<double>(bytes_) / std::chrono::duration<double>(busy_).count();
    if (bytes_ < kMostBytes) return;
    bytes_ /= 2;
    busy_ /= 2;
  }

  // A first guess.
  void assume(double bytes_per_s) { bytes_per_s_ = bytes_per_s; }
  // 0: not known yet.
  double bytes_per_s() const { return bytes_per_s_; }

 private:
  // A few large blocks, or some hundred small ones.
  static constexpr std::uint64_t kLeastBytes = 16ull << 20;
  // Several bursts: what was asked for together may end together.
  static constexpr std::uint64_t kMostBytes = 512ull << 20;

  const Clock& clock_;
  Mutex mutex_;
  std::uint32_t in_progress_ CAIRN_GUARDED_BY(mutex_) = 0;
  TimePoint began_ CAIRN_GUARDED_BY(mutex_){};  // or when the last of several ended
  Duration busy_ CAIRN_GUARDED_BY(mutex_){};
  std::uint64_t bytes_ CAIRN_GUARDED_BY(mutex_) = 0;  // in that time
  std::atomic<double> bytes_per_s_{0};
};

}  // namespace cairn
