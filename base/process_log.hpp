#pragma once

#include <string_view>

#include "base/log.hpp"

namespace cairn {

// Makes a log the one of the process: work of a thread that threw is told of there, and what is
// queued in it is written before a broken invariant ends the process. There is one at a time.
class ProcessLog {
 public:
  // Borrows the log.
  explicit ProcessLog(Logger& log);
  ~ProcessLog();
  ProcessLog(const ProcessLog&) = delete;
  ProcessLog& operator=(const ProcessLog&) = delete;
};

// An error of the process's log; where it has none, a line on stderr.
void report_error(std::string_view message, std::initializer_list<LogField> fields,
                  const LogRate& rate = {}) noexcept;

// Writes a text (one line and its end) to stderr from a process that is about to end, behind what
// its log has queued. Takes no memory, and two seconds at most where nobody reads stderr.
void write_last_words(std::string_view text) noexcept;

}  // namespace cairn
