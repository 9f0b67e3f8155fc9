#pragma once

#include <string>

#include "base/log.hpp"

namespace cairn {

// Formats a log line as a JSON object: `time`, `level`, `msg` and the line's values. ASCII only;
// invalid UTF-8 becomes U+FFFD.
std::string json_log_line(const LogLine& line);

}  // namespace cairn
