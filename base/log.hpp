#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/clock.hpp"
#include "base/line_writer.hpp"
#include "base/mutex.hpp"

namespace cairn {

enum class LogLevel : std::uint8_t { debug, info, warning, error };

std::string_view to_string(LogLevel level);

// A named value in a log line.
struct LogField {
  std::string_view name;
  std::variant<std::int64_t, std::uint64_t, double, bool, std::string_view> value;

  template <std::signed_integral T>
  LogField(std::string_view n, T v) : name(n), value(static_cast<std::int64_t>(v)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) LogField(std::string_view n, T v)
      : name(n), value(static_cast<std::uint64_t>(v)) {}
  LogField(std::string_view n, double v) : name(n), value(v) {}
  LogField(std::string_view n, bool v) : name(n), value(v) {}
  LogField(std::string_view n, std::string_view v) : name(n), value(v) {}
  LogField(std::string_view n, const char* v) : name(n), value(std::string_view(v)) {}
  LogField(std::string_view n, const std::string& v) : name(n), value(std::string_view(v)) {}
};

// The content of a log line.
struct LogLine {
  std::int64_t unix_ms = 0;
  LogLevel level = LogLevel::info;
  std::string_view message;
  std::span<const LogField> fields;
};

// Formats a line, without its line end.
using LogForm = std::string (*)(const LogLine&);
// `time=… level=info msg="…" cache=default`. Text is escaped as by append_printable().
std::string logfmt_line(const LogLine& line);
// "2023-11-14T22:13:20.007Z"
std::string log_time(std::int64_t unix_ms);
// Longer values are cut.
inline constexpr std::size_t kMaxLogTextBytes = 2048;
// The part of a value that is written, and whether it was cut.
struct LogText {
  std::string_view shown;
  bool is_cut = false;
};
inline LogText log_text(std::string_view text) {
  return {text.substr(0, kMaxLogTextBytes), text.size() > kMaxLogTextBytes};
}

// Limits the lines written per reason: `burst` at once, `per_s` on average. So callers, above all
// refused clients, cannot flood the log. Lines beyond the limit are counted, and the count is
// logged.
struct LogRate {
  // Added to the message, which is part of every reason. Must come from a bounded set.
  std::string_view reason = {};
  std::uint32_t burst = 100;
  std::uint32_t per_s = 10;  // 0: no limit
};
// For actions of the operator's own callers, which must be logged completely.
inline constexpr LogRate kEveryLine{.per_s = 0};

// Writes whole log lines in call order. Never waits for a reader. Thread-safe.
class Logger {
 public:
  // Further reasons share one rate.
  static constexpr std::size_t kMaxReasons = 256;
  // Delay from the first line left out to the report of their number.
  static constexpr std::chrono::seconds kLeftOutPeriod{1};

  struct Options {
    LogLevel least = LogLevel::info;
    LogForm form = logfmt_line;
  };
  // Borrows the clock and the writer; both must outlive it.
  Logger(const Clock& clock, LineWriter& writer, Options options);
  // Creates a writer for the descriptor.
  Logger(const Clock& clock, int fd, LogLevel least);
  // Logs what was left out.
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  bool enabled(LogLevel level) const { return level >= options_.least; }
  // `message` is a constant of the program, not user input: each is a reason.
  void log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {},
           const LogRate& rate = {}) noexcept;

  void debug(std::string_view m, std::initializer_list<LogField> f = {}) {
    log(LogLevel::debug, m, f);
  }
  void info(std::string_view m, std::initializer_list<LogField> f = {}) {
    log(LogLevel::info, m, f);
  }
  void warning(std::string_view m, std::initializer_list<LogField> f = {}) {
    log(LogLevel::warning, m, f);
  }
  void error(std::string_view m, std::initializer_list<LogField> f = {}) {
    log(LogLevel::error, m, f);
  }

  // Logs how many lines were left out since the last report. One thread must call it every few tens
  // of milliseconds.
  void report_left_out() noexcept;
  // Lines that the writer dropped.
  std::uint64_t dropped() const noexcept { return writer_.dropped(); }
  // Lines left out by their rate.
  std::uint64_t left_out() const noexcept { return left_out_.load(std::memory_order_relaxed); }
  bool flush(std::chrono::milliseconds within) noexcept { return writer_.flush(within); }

 private:
  struct Reason {
    LogLevel level = LogLevel::info;
    std::string message;
    std::string reason;
    TimePoint paid_until{};      // when the rate allows another full burst
    std::uint64_t left_out = 0;  // not reported yet
    TimePoint left_out_since{};
  };
  bool has_room(LogLevel level, std::string_view message, const LogRate& rate);
  Reason& reason_of(LogLevel level, std::string_view message, const LogRate& rate, TimePoint now)
      CAIRN_REQUIRES(mutex_);
  void report_left_out(bool is_end);
  void write(const LogLine& line);

  const Clock& clock_;
  const std::unique_ptr<LineWriter> own_writer_;  // null if the writer is borrowed
  LineWriter& writer_;
  const Options options_;
  std::atomic<std::uint64_t> left_out_{0};
  std::atomic<std::uint64_t> reported_dropped_{0};
  std::atomic<bool> has_unreported_{false};  // some lines left out are not reported yet
  Mutex mutex_;
  std::map<std::string, Reason, std::less<>> reasons_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
