#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.hpp"

namespace cairn {

struct Service;

// A condition that needs attention, for as long as it lasts. GET /v1/system, cairnctl status and
// the status page show all of them.
struct Warning {
  std::string_view kind;  // one of warning_kinds()
  std::string subject;    // the node, server, cache, group or device
  std::string detail;
};
std::vector<Warning> warnings_of(const Service& service);
std::vector<std::string_view> warning_kinds();

// Logs when a warning begins and when it ends. Not thread-safe.
class WarningLog {
 public:
  // Borrows the log.
  explicit WarningLog(Logger& log) : log_(log) {}
  // `now`: all current warnings.
  void look(const std::vector<Warning>& now);

 private:
  Logger& log_;
  std::map<std::pair<std::string_view, std::string>, std::string> logged_;  // with their details
};

}  // namespace cairn
