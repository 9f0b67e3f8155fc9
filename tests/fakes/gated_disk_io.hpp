#pragma once

#include "base/mutex.hpp"
#include "transport/disk_io.hpp"

namespace cairn::fakes {

// A disk whose calls wait while its gate is closed, so that a test can hold a transfer in the
// middle. Thread-safe.
class GatedDiskIo final : public DiskIo {
 public:
  // Borrows the real one. The gate is open.
  explicit GatedDiskIo(DiskIo& real) : real_(real) {}

  void close() {
    MutexLock lock(mutex_);
    open_ = false;
  }
  void open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // Returns when that many calls wait at the gate.
  void wait_for_calls(std::uint64_t calls) {
    MutexLock lock(mutex_);
    while (waiting_ < calls) changed_.wait(mutex_);
  }

  Result<> read(int fd, std::span<const DiskRun> runs) override {
    pass();
    return real_.read(fd, runs);
  }
  Result<> write(int fd, std::span<const DiskRun> runs) override {
    pass();
    return real_.write(fd, runs);
  }

 private:
  void pass() {
    MutexLock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    while (!open_) changed_.wait(mutex_);
    --waiting_;
  }

  DiskIo& real_;
  Mutex mutex_;
  Condition changed_;
  std::uint64_t waiting_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool open_ CAIRN_GUARDED_BY(mutex_) = true;
};

}  // namespace cairn::fakes
