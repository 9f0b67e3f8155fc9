#include "transport/io/disk_io.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <system_error>

#include "base/file_error.hpp"
#include "base/mutex.hpp"

namespace cairn {
namespace {

// Joins the results of several calls.
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
  std::optional<Error> error_;  // the last call to end reads it without the lock
  DiskIo::Done done_;
};

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

std::vector<Result<>> DiskIo::run_all(std::vector<DiskCall> calls) {
  Mutex mutex;
  Condition ended;
  std::vector<Result<>> results(calls.size());
  std::size_t left = calls.size();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto end = [&, i](Result<> result) {
      MutexLock lock(mutex);
      results[i] = std::move(result);
      if (--left == 0) ended.notify_all();
    };
    try {
      submit(std::move(calls[i]), end);
    } catch (const std::bad_alloc&) {
      end(Error{ErrorCode::no_capacity, "there is no memory for it"});
    }
  }
  MutexLock lock(mutex);
  while (left > 0) wait(mutex, ended);
  return results;
}

Result<> DiskIo::read(int fd, std::span<const DiskRun> runs) {
  std::vector<DiskCall> calls;
  calls.push_back({DiskCall::Kind::read, fd, {runs.begin(), runs.end()}});
  return std::move(run_all(std::move(calls)).front());
}

Result<> DiskIo::write(int fd, std::span<const DiskRun> runs) {
  std::vector<DiskCall> calls;
  calls.push_back({DiskCall::Kind::write, fd, {runs.begin(), runs.end()}});
  return std::move(run_all(std::move(calls)).front());
}

Result<> DiskIo::flush(int fd) {
  while (::fdatasync(fd) != 0) {
    if (errno == EINTR) continue;
    return Error{file_error_code(errno),
                 "the slot file cannot be flushed: " + std::generic_category().message(errno)};
  }
  return {};
}

Result<> punch_hole(int fd, DiskRange range) {
  const auto at = static_cast<::off_t>(range.offset_bytes);
  const auto size = static_cast<::off_t>(range.size_bytes);
  while (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, size) != 0) {
    if (errno == EINTR) continue;
    return Error{errno == EOPNOTSUPP ? ErrorCode::not_implemented : file_error_code(errno),
                 "a hole at offset " + std::to_string(range.offset_bytes) +
                     " of the slot file failed: " + std::generic_category().message(errno)};
  }
  return {};
}

}  // namespace cairn
