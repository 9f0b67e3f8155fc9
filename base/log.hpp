#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "base/clock.hpp"

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

// Lines of `name=value` pairs (logfmt) on a file descriptor: `time=… level=info msg="…"
// cache=default`. A line is one write(2), so lines of several threads never mix. Text is shown as
// append_printable does. Thread-safe.
class Logger {
 public:
  // Borrows the clock and the descriptor, which must outlive it.
  Logger(const Clock& clock, int fd, LogLevel least);

  bool enabled(LogLevel level) const { return level >= least_; }
  void log(LogLevel level, std::string_view message,
           std::initializer_list<LogField> fields = {}) noexcept;

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

 private:
  const Clock& clock_;
  const int fd_;
  const LogLevel least_;
};

}  // namespace cairn
