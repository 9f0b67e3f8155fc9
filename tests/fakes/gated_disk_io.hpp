#pragma once

#include <deque>
#include <utility>

#include "base/mutex.hpp"
#include "transport/io/disk_io.hpp"

namespace cairn::fakes {

// A disk whose calls wait while its gate is closed, so that a test can hold a transfer midway.
// Thread-safe.
class GatedDiskIo final : public DiskIo {
 public:
  // Borrows the real one. The gate starts open.
  explicit GatedDiskIo(DiskIo& real) : real_(real) {}

  void close() {
    MutexLock lock(mutex_);
    open_ = false;
  }
  void open() {
    std::deque<Waiting> waiting;
    {
      MutexLock lock(mutex_);
      open_ = true;
      waiting.swap(waiting_);
    }
    for (Waiting& held : waiting) real_.submit(std::move(held.call), std::move(held.done));
  }
  // Returns when that many calls wait at the gate.
  void wait_for_calls(std::uint64_t calls) {
    MutexLock lock(mutex_);
    while (waiting_.size() < calls) changed_.wait(mutex_);
  }

  void submit(DiskCall call, Done done) override {
    {
      MutexLock lock(mutex_);
      if (!open_) {
        waiting_.push_back({std::move(call), std::move(done)});
        changed_.notify_all();
        return;
      }
    }
    real_.submit(std::move(call), std::move(done));
  }

 private:
  struct Waiting {
    DiskCall call;
    Done done;
  };
  DiskIo& real_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Waiting> waiting_ CAIRN_GUARDED_BY(mutex_);
  bool open_ CAIRN_GUARDED_BY(mutex_) = true;
};

}  // namespace cairn::fakes
