#include "base/log.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <new>

#include "base/assert.hpp"
#include "base/printable.hpp"

namespace cairn {
namespace {

// A value with anything but plain printable characters is quoted, so a client cannot forge a line.
void append_text(std::string& line, std::string_view text) {
  bool plain = !text.empty();
  for (char c : text) plain = plain && c > ' ' && c < 0x7F && c != '"' && c != '=' && c != '\\';
  if (plain) {
    line += text;
    return;
  }
  line += '"';
  append_printable(line, text);
  line += '"';
}

template <class Number>
void append_number(std::string& line, Number value) {
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  line.append(buffer.data(), end);
}

struct AppendValue {
  std::string& line;
  void operator()(std::int64_t v) const { append_number(line, v); }
  void operator()(std::uint64_t v) const { append_number(line, v); }
  void operator()(double v) const { append_number(line, v); }
  void operator()(bool v) const { line += v ? "true" : "false"; }
  void operator()(std::string_view v) const { append_text(line, v); }
};

void append_time(std::string& line, std::int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 64> buffer{};
  const std::size_t n = std::strftime(buffer.data(), buffer.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  line.append(buffer.data(), n);
  std::snprintf(buffer.data(), buffer.size(), ".%03dZ", static_cast<int>(unix_ms % 1000));
  line += buffer.data();
}

std::string line_of(std::int64_t unix_ms, LogLevel level, std::string_view message,
                    std::initializer_list<LogField> fields) {
  std::string line = "time=";
  append_time(line, unix_ms);
  line += " level=";
  line += to_string(level);
  line += " msg=";
  append_text(line, message);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.name;
    line += '=';
    std::visit(AppendValue{line}, field.value);
  }
  line += '\n';
  return line;
}

}  // namespace

std::string_view to_string(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
  }
  invariant_broken("LogLevel", "a value outside the enumeration");
}

Logger::Logger(const Clock& clock, int fd, LogLevel least)
    : clock_(clock), fd_(fd), least_(least) {}

void Logger::log(LogLevel level, std::string_view message,
                 std::initializer_list<LogField> fields) noexcept {
  if (!enabled(level)) return;
  // A log that cannot be written must not stop the service.
  try {
    const std::string line = line_of(clock_.unix_ms(), level, message, fields);
    [[maybe_unused]] const ssize_t written = ::write(fd_, line.data(), line.size());
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kNoMemory = "level=error msg=\"no memory for a line of the log\"\n";
    [[maybe_unused]] const ssize_t written = ::write(fd_, kNoMemory.data(), kNoMemory.size());
  }
}

}  // namespace cairn
