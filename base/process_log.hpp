#pragma once

#include <string_view>

#include "base/log.hpp"

namespace cairn {

// Makes a Logger the process's log: exceptions in threads are logged there, and its queue is
// written before a broken invariant aborts the process. At most one at a time.
class ProcessLog {
 public:
  // Borrows the log.
  explicit ProcessLog(Logger& log);
  ~ProcessLog();
  ProcessLog(const ProcessLog&) = delete;
  ProcessLog& operator=(const ProcessLog&) = delete;
};

// Logs an error to the process's log, or to stderr if there is none.
void report_error(std::string_view message, std::initializer_list<LogField> fields,
                  const LogRate& rate = {}) noexcept;

// Writes one line, with its line end, to stderr before the process ends, after the queued log
// lines. Allocates no memory. Takes at most two seconds if nobody reads stderr.
void write_last_words(std::string_view text) noexcept;

}  // namespace cairn
