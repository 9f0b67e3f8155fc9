#include "transport/io/disk_io.hpp"

#include <optional>

#include "base/mutex.hpp"

namespace cairn {
namespace {

// The end of several calls.
class Joint {
 public:
  Joint(std::size_t calls, DiskIo::Done done) : left_(calls), done_(std::move(done)) {}

  void ended(Result<> result, std::size_t calls = 1) {
    {
      MutexLock lock(mutex_);
      if (!result && !error_) error_ = std::move(result).error();
      left_ -= calls;
      if (left_ > 0) return;
    }
    if (error_) {
      done_(std::move(*error_));
    } else {
      done_({});
    }
  }

 private:
  Mutex mutex_;
  std::size_t left_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Error> error_;  // read by who takes the last one away
  DiskIo::Done done_;
};

// The end of a call that somebody waits for.
class Awaited {
 public:
  DiskIo::Done done() {
    return [this](Result<> result) {
      MutexLock lock(mutex_);
      result_ = std::move(result);
      ended_.notify_all();
    };
  }
  Result<> wait() {
    MutexLock lock(mutex_);
    while (!result_) ended_.wait(mutex_);
    return std::move(*result_);
  }

 private:
  Mutex mutex_;
  Condition ended_;
  std::optional<Result<>> result_ CAIRN_GUARDED_BY(mutex_);
};

Result<> submit_and_wait(DiskIo& disk, DiskCall::Kind kind, int fd, std::span<const DiskRun> runs) {
  Awaited awaited;
  disk.submit({kind, fd, {runs.begin(), runs.end()}}, awaited.done());
  return awaited.wait();
}

}  // namespace

void DiskIo::submit_all(std::vector<DiskCall> calls, Done done) {
  if (calls.size() == 1) return submit(std::move(calls.front()), std::move(done));
  const std::size_t count = calls.size();
  const auto joint = std::make_shared<Joint>(count, std::move(done));
  for (std::size_t i = 0; i < count; ++i) {
    try {
      submit(std::move(calls[i]), [joint](Result<> result) { joint->ended(std::move(result)); });
    } catch (const std::bad_alloc&) {
      return joint->ended(Error{ErrorCode::no_capacity, "there is no memory for it"}, count - i);
    }
  }
}

Result<> DiskIo::read(int fd, std::span<const DiskRun> runs) {
  return submit_and_wait(*this, DiskCall::Kind::read, fd, runs);
}

Result<> DiskIo::write(int fd, std::span<const DiskRun> runs) {
  return submit_and_wait(*this, DiskCall::Kind::write, fd, runs);
}

}  // namespace cairn
