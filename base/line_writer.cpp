#include "base/line_writer.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "base/mutex.hpp"

namespace cairn {
namespace {

// Blocks all signals while a thread is created, so that the thread inherits the mask. Signals are
// for the program's other threads; a closed pipe gives EPIPE instead of SIGPIPE.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// Returns the number of bytes written before an error; all of them on success.
std::size_t write_all(int fd, std::string_view text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t bytes = ::write(fd, text.data() + done, text.size() - done);
    if (bytes >= 0) {
      done += static_cast<std::size_t>(bytes);
    } else if (errno == EAGAIN) {
      // Another user of the pipe has set O_NONBLOCK; this thread may block.
      pollfd writable{fd, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      break;
    }
  }
  return done;
}

}  // namespace

struct LineWriter::Shared {
  explicit Shared(int descriptor) : fd(descriptor) {}

  bool take(std::string line) {
    MutexLock lock(mutex);
    if (queued_bytes + line.size() > kMaxQueuedBytes) return false;
    const std::size_t bytes = line.size();
    lines.push_back(std::move(line));
    queued_bytes += bytes;
    ++taken;
    changed.notify_all();
    return true;
  }

  // Blocks for the next line; nullopt at the end.
  std::optional<std::string> next() {
    MutexLock lock(mutex);
    ended = taken - lines.size();
    changed.notify_all();
    while (lines.empty() && !ends) changed.wait(mutex);
    if (lines.empty() || is_left_alone) return std::nullopt;
    std::string line = std::move(lines.front());
    lines.pop_front();
    queued_bytes -= line.size();
    return line;
  }

  void run() {
    bool is_cut = false;  // the last line was cut: start the next one on a new line
    while (std::optional<std::string> line = next()) {
      if (is_cut) is_cut = write_all(fd, "\n") == 0;
      const std::size_t written = is_cut ? 0 : write_all(fd, *line);
      if (written == line->size()) continue;
      dropped.fetch_add(1, std::memory_order_relaxed);
      is_cut = is_cut || written > 0;
    }
  }

  // Returns true once the first `count` lines are written, false after `within`.
  bool wait(std::uint64_t count, std::chrono::milliseconds within) CAIRN_REQUIRES(mutex) {
    const auto until = std::chrono::steady_clock::now() + within;
    while (ended < count) {
      if (changed.wait_until(mutex, until) == std::cv_status::timeout) return ended >= count;
    }
    return true;
  }

  const int fd;
  std::atomic<std::uint64_t> dropped{0};
  Mutex mutex;
  Condition changed;
  std::deque<std::string> lines CAIRN_GUARDED_BY(mutex);
  std::size_t queued_bytes CAIRN_GUARDED_BY(mutex) = 0;
  std::uint64_t taken CAIRN_GUARDED_BY(mutex) = 0;
  std::uint64_t ended CAIRN_GUARDED_BY(mutex) = 0;  // written, or refused by the descriptor
  bool ends CAIRN_GUARDED_BY(mutex) = false;
  bool is_left_alone CAIRN_GUARDED_BY(mutex) = false;  // the fd may be another file by now
};

LineWriter::LineWriter(int fd) : shared_(std::make_shared<Shared>(fd)) {
  const SignalsBlocked blocked;
  thread_ = Thread("lines", [shared = shared_](const std::stop_token&) { shared->run(); });
}

LineWriter::~LineWriter() {
  MutexLock lock(shared_->mutex);
  shared_->ends = true;
  shared_->changed.notify_all();
  if (shared_->wait(shared_->taken, kEndsWithin)) return;
  // A write that blocks on its reader ends only with the process.
  shared_->is_left_alone = true;
  thread_.detach();
}

bool LineWriter::try_write(std::string line) noexcept {
  try {
    return shared_->take(std::move(line));
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool LineWriter::write(std::string line) noexcept {
  const bool is_taken = try_write(std::move(line));
  if (!is_taken) count_dropped();
  return is_taken;
}

void LineWriter::count_dropped() noexcept {
  shared_->dropped.fetch_add(1, std::memory_order_relaxed);
}

bool LineWriter::flush(std::chrono::milliseconds within) noexcept {
  MutexLock lock(shared_->mutex);
  return shared_->wait(shared_->taken, within);
}

std::uint64_t LineWriter::dropped() const noexcept {
  return shared_->dropped.load(std::memory_order_relaxed);
}

}  // namespace cairn
