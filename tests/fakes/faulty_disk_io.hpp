#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "transport/io/disk_io.hpp"

namespace cairn::fakes {

// A disk that fails calls on request, after it has moved half of a call's bytes: a caller that
// takes a failed call for a good one is noticed. Thread-safe.
class FaultyDiskIo final : public DiskIo {
 public:
  // Borrows the real one.
  explicit FaultyDiskIo(DiskIo& real) : real_(real) {}

  // The n-th call from now on fails, counted from 1; 0: none.
  void fail_call(std::uint64_t n) {
    MutexLock lock(mutex_);
    calls_ = 0;
    failing_call_ = n;
  }
  // Every call fails that touches a byte of [offset_bytes, offset_bytes + size_bytes).
  struct Range {
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;
  };
  void fail_range(Range range) {
    MutexLock lock(mutex_);
    bad_ranges_.push_back(range);
  }
  std::uint64_t failures() const {
    MutexLock lock(mutex_);
    return failures_;
  }

  void submit(DiskCall call, Done done) override {
    if (!fails(call.runs)) return real_.submit(std::move(call), std::move(done));
    call.runs = half(call.runs);
    real_.submit(std::move(call), [done = std::move(done)](const Result<>&) mutable {
      done(Error{ErrorCode::io_error, "the test made this call fail"});
    });
  }
  Result<> punch(int fd, DiskRange range) override {
    const DiskRun run{nullptr, range.offset_bytes, range.size_bytes};
    if (fails({&run, 1})) return Error{ErrorCode::io_error, "the test made this call fail"};
    return real_.punch(fd, range);
  }

 private:
  bool fails(std::span<const DiskRun> runs) {
    MutexLock lock(mutex_);
    bool bad = ++calls_ == failing_call_;
    for (const Range& range : bad_ranges_) {
      for (const DiskRun& run : runs) {
        bad = bad || (run.offset_bytes < range.offset_bytes + range.size_bytes &&
                      range.offset_bytes < run.offset_bytes + run.size_bytes);
      }
    }
    failures_ += bad ? 1 : 0;
    return bad;
  }
  static std::vector<DiskRun> half(std::span<const DiskRun> runs) {
    std::uint64_t left = 0;
    for (const DiskRun& run : runs) left += run.size_bytes;
    left /= 2;
    std::vector<DiskRun> half;
    for (DiskRun run : runs) {
      if (left == 0) break;
      run.size_bytes = std::min(run.size_bytes, left);
      left -= run.size_bytes;
      half.push_back(run);
    }
    return half;
  }
  DiskIo& real_;
  mutable Mutex mutex_;
  std::uint64_t calls_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t failing_call_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t failures_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::vector<Range> bad_ranges_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::fakes
