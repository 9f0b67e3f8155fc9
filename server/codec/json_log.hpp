#pragma once

#include <string>

#include "base/log.hpp"

namespace cairn {

// A line of the log as a JSON object: `time`, `level`, `msg` and the line's values. ASCII alone;
// bytes that are no UTF-8 are shown as U+FFFD.
std::string json_log_line(const LogLine& line);

}  // namespace cairn
