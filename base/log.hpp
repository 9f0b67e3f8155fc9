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

// A named value of a log line.
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

// What a line of the log says.
struct LogLine {
  std::int64_t unix_ms = 0;
  LogLevel level = LogLevel::info;
  std::string_view message;
  std::span<const LogField> fields;
};

// How a line is written, its line end left out.
using LogForm = std::string (*)(const LogLine&);
// `time=… level=info msg="…" cache=default`. Text is shown as append_printable does.
std::string logfmt_line(const LogLine& line);
// "2023-11-14T22:13:20.007Z"
std::string log_time(std::int64_t unix_ms);
// Of one value; what is longer is cut.
inline constexpr std::size_t kMaxLogTextBytes = 2048;
// As much of a value as is written, and whether there is more.
struct LogText {
  std::string_view shown;
  bool is_cut = false;
};
inline LogText log_text(std::string_view text) {
  return {text.substr(0, kMaxLogTextBytes), text.size() > kMaxLogTextBytes};
}

// How many lines of one reason are written: that many at once, and so many a second on the whole.
// Whoever can have lines written, a client that is refused above all, can then not flood the log.
// The rest is counted and told of.
struct LogRate {
  // Beside the message, which is a reason already; out of a bounded set.
  std::string_view reason = {};
  std::uint32_t burst = 100;
  std::uint32_t per_s = 10;  // 0: all
};
// Of what the operator's own callers do, and is to be there as a whole.
inline constexpr LogRate kEveryLine{.per_s = 0};

// The log: whole lines, in the order of the calls, which never wait for whoever reads them.
// Thread-safe.
class Logger {
 public:
  // Beyond these, reasons share one rate.
  static constexpr std::size_t kMaxReasons = 256;
  // So long after the first line that was left out it is told how many there were.
  static constexpr std::chrono::seconds kLeftOutPeriod{1};

  struct Options {
    LogLevel least = LogLevel::info;
    LogForm form = logfmt_line;
  };
  // Borrows the clock and the writer, which must outlive it.
  Logger(const Clock& clock, LineWriter& writer, Options options);
  // With a writer of its own for the descriptor.
  Logger(const Clock& clock, int fd, LogLevel least);
  // Tells what was left out.
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  bool enabled(LogLevel level) const { return level >= options_.least; }
  // `message` is one of the program's own texts: a reason by itself.
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

  // Tells how many lines were left out since it was last told. Called every few tens of
  // milliseconds by one thread.
  void tell_left_out() noexcept;
  // Lines that the writer dropped.
  std::uint64_t dropped() const noexcept { return writer_.dropped(); }
  // Lines that their rate left out.
  std::uint64_t left_out() const noexcept { return left_out_.load(std::memory_order_relaxed); }
  bool flush(std::chrono::milliseconds within) noexcept { return writer_.flush(within); }

 private:
  struct Reason {
    LogLevel level = LogLevel::info;
    std::string message;
    std::string reason;
    TimePoint paid_until{};      // when the lines written so far are paid for, at the rate
    std::uint64_t left_out = 0;  // and not told yet
    TimePoint left_out_since{};
  };
  bool has_room(LogLevel level, std::string_view message, const LogRate& rate);
  Reason& reason_of(LogLevel level, std::string_view message, const LogRate& rate, TimePoint now)
      CAIRN_REQUIRES(mutex_);
  void tell_left_out(bool is_end);
  void write(const LogLine& line);

  const Clock& clock_;
  const std::unique_ptr<LineWriter> own_writer_;  // null: another's
  LineWriter& writer_;
  const Options options_;
  std::atomic<std::uint64_t> left_out_{0};
  std::atomic<std::uint64_t> told_dropped_{0};
  std::atomic<bool> has_untold_{false};  // lines that were left out, of any reason
  Mutex mutex_;
  std::map<std::string, Reason, std::less<>> reasons_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
