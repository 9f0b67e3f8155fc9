#include "base/log.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <new>
#include <utility>

#include "base/assert.hpp"
#include "base/printable.hpp"

namespace cairn {
namespace {

// Quotes values with special characters, so that clients cannot forge log lines.
void append_text(std::string& line, std::string_view text) {
  const auto [shown, is_cut] = log_text(text);
  bool plain = !shown.empty() && !is_cut;
  for (char c : shown) plain = plain && c > ' ' && c < 0x7F && c != '"' && c != '=' && c != '\\';
  if (plain) {
    line += shown;
    return;
  }
  line += '"';
  append_printable(line, shown);
  if (is_cut) line += "...";
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

std::string log_time(std::int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 64> buffer{};
  const std::size_t n = std::strftime(buffer.data(), buffer.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  std::string text(buffer.data(), n);
  std::snprintf(buffer.data(), buffer.size(), ".%03dZ", static_cast<int>(unix_ms % 1000));
  return text += buffer.data();
}

std::string logfmt_line(const LogLine& line) {
  std::string text = "time=" + log_time(line.unix_ms) + " level=";
  text += to_string(line.level);
  text += " msg=";
  append_text(text, line.message);
  for (const LogField& field : line.fields) {
    text += ' ';
    text += field.name;
    text += '=';
    std::visit(AppendValue{text}, field.value);
  }
  return text;
}

Logger::Logger(const Clock& clock, LineWriter& writer, Options options)
    : clock_(clock), writer_(writer), options_(options) {}

Logger::Logger(const Clock& clock, int fd, LogLevel least)
    : clock_(clock),
      own_writer_(std::make_unique<LineWriter>(fd)),
      writer_(*own_writer_),
      options_{.least = least} {}

Logger::~Logger() {
  try {
    report_left_out(/*is_end=*/true);
  } catch (const std::bad_alloc&) {
    // The lines stay in left_out().
  }
}

void Logger::log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields,
                 const LogRate& rate) noexcept {
  if (!enabled(level)) return;
  // A failing log must not stop the service.
  try {
    if (!has_room(level, message, rate)) return;
    write({.unix_ms = clock_.unix_ms(),
           .level = level,
           .message = message,
           .fields = {fields.begin(), fields.size()}});
  } catch (const std::bad_alloc&) {
    writer_.count_dropped();
  }
}

bool Logger::has_room(LogLevel level, std::string_view message, const LogRate& rate) {
  if (rate.per_s == 0) return true;
  const TimePoint now = clock_.now();
  const Duration each = std::chrono::nanoseconds(1'000'000'000 / rate.per_s);
  MutexLock lock(mutex_);
  Reason& reason = reason_of(level, message, rate, now);
  const TimePoint paid_until = std::max(reason.paid_until, now) + each;
  if (paid_until - now <= each * rate.burst) {
    reason.paid_until = paid_until;
    return true;
  }
  if (reason.left_out++ == 0) reason.left_out_since = now;
  left_out_.fetch_add(1, std::memory_order_relaxed);
  has_unreported_.store(true, std::memory_order_relaxed);
  return false;
}

Logger::Reason& Logger::reason_of(LogLevel level, std::string_view message, const LogRate& rate,
                                  TimePoint now) {
  std::string key(message);
  key += '\n';
  key += rate.reason;
  if (const auto at = reasons_.find(key); at != reasons_.end()) return at->second;
  if (reasons_.size() >= kMaxReasons) {
    std::erase_if(reasons_, [now](const auto& entry) {
      return entry.second.left_out == 0 && entry.second.paid_until <= now;
    });
  }
  if (reasons_.size() >= kMaxReasons) {
    return reasons_.try_emplace("", Reason{.level = level, .message = "several", .reason = {}})
        .first->second;
  }
  return reasons_
      .emplace(std::move(key), Reason{.level = level,
                                      .message = std::string(message),
                                      .reason = std::string(rate.reason)})
      .first->second;
}

void Logger::report_left_out() noexcept {
  if (!has_unreported_.load(std::memory_order_relaxed)) return;
  try {
    report_left_out(/*is_end=*/false);
  } catch (const std::bad_alloc&) {
    // The next call tries again.
  }
}

void Logger::report_left_out(bool is_end) {
  const TimePoint now = clock_.now();
  MutexLock lock(mutex_);
  has_unreported_.store(false, std::memory_order_relaxed);
  for (auto& [key, reason] : reasons_) {
    if (reason.left_out == 0) continue;
    if (!is_end && now - reason.left_out_since < kLeftOutPeriod) {
      has_unreported_.store(true, std::memory_order_relaxed);
      continue;
    }
    const std::string message =
        std::to_string(reason.left_out) + " more lines of this reason left out";
    const std::array fields = {LogField{"of", reason.message}, LogField{"reason", reason.reason},
                               LogField{"left_out", reason.left_out}};
    write(
        {.unix_ms = clock_.unix_ms(), .level = reason.level, .message = message, .fields = fields});
    reason.left_out = 0;
  }
}

void Logger::write(const LogLine& line) {
  const std::uint64_t dropped = writer_.dropped();
  if (!writer_.write(options_.form(line) + '\n')) return;
  // Report a gap once, after the first line that follows it.
  std::uint64_t reported = reported_dropped_.load(std::memory_order_relaxed);
  if (dropped <= reported || !enabled(LogLevel::warning)) return;
  if (!reported_dropped_.compare_exchange_strong(reported, dropped)) return;
  const std::array fields = {LogField{"dropped", dropped - reported}};
  const bool is_reported =
      writer_.try_write(options_.form({.unix_ms = line.unix_ms,
                                       .level = LogLevel::warning,
                                       .message = "lines were dropped: nobody took them in time",
                                       .fields = fields}) +
                        '\n');
  // No room for the report: try again after the next line.
  if (!is_reported) reported_dropped_.fetch_sub(dropped - reported);
}

}  // namespace cairn
