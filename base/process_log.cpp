#include "base/process_log.hpp"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <mutex>

#include "base/assert.hpp"
#include "base/clock.hpp"

namespace cairn {
namespace {

constexpr std::chrono::milliseconds kLastFlush{500};
constexpr int kLastWordsMs = 1'000;
// If another program fills the pipe between poll() and write().
constexpr unsigned kGiveUpAfterS = 2;

// Global, because report_error() and write_last_words() have no other context.
struct Current {
  std::mutex mutex;
  Logger* log = nullptr;
};
Current& current() {
  static Current one;
  return one;
}

}  // namespace

ProcessLog::ProcessLog(Logger& log) {
  const std::lock_guard lock(current().mutex);
  CAIRN_ASSERT(current().log == nullptr, "lines would go to one of two logs");
  current().log = &log;
}

ProcessLog::~ProcessLog() {
  const std::lock_guard lock(current().mutex);
  current().log = nullptr;
}

void report_error(std::string_view message, std::initializer_list<LogField> fields,
                  const LogRate& rate) noexcept {
  const std::lock_guard lock(current().mutex);
  if (current().log != nullptr) return current().log->log(LogLevel::error, message, fields, rate);
  try {
    const std::string line = logfmt_line({.unix_ms = SystemClock().unix_ms(),
                                          .level = LogLevel::error,
                                          .message = message,
                                          .fields = {fields.begin(), fields.size()}}) +
                             '\n';
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kNoMemory = "level=error msg=\"no memory for a log line\"\n";
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, kNoMemory.data(), kNoMemory.size());
  }
}

void write_last_words(std::string_view text) noexcept {
  {
    // The holder of the mutex may wait for a lock of this thread.
    const std::unique_lock lock(current().mutex, std::try_to_lock);
    if (lock && current().log != nullptr) current().log->flush(kLastFlush);
  }
  pollfd reader{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&reader, 1, kLastWordsMs) != 1) return;
  // A writable pipe has room for at least this much.
  const std::string_view shown = text.substr(0, PIPE_BUF);
  ::alarm(kGiveUpAfterS);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, shown.data(), shown.size());
  ::alarm(0);
}

}  // namespace cairn
