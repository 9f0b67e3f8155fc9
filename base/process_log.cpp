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
// Should another program fill the pipe between the question whether there is room and the write.
constexpr unsigned kGiveUpAfterS = 2;

// A thread that threw and a broken invariant know of no object but the process.
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
    constexpr std::string_view kNoMemory = "level=error msg=\"no memory for a line of the log\"\n";
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, kNoMemory.data(), kNoMemory.size());
  }
}

void write_last_words(std::string_view text) noexcept {
  {
    // Whoever holds it may be waiting for a lock of this thread's.
    const std::unique_lock lock(current().mutex, std::try_to_lock);
    if (lock && current().log != nullptr) current().log->flush(kLastFlush);
  }
  pollfd reader{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&reader, 1, kLastWordsMs) != 1) return;
  // No more than a pipe that can be written to has room for.
  const std::string_view shown = text.substr(0, PIPE_BUF);
  ::alarm(kGiveUpAfterS);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, shown.data(), shown.size());
  ::alarm(0);
}

}  // namespace cairn
