#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.hpp"

namespace cairn {

struct Service;

// Something that is not as it should be, for as long as that lasts. GET /v1/system tells of all of
// them, and so do cairnctl status and the page.
struct Warning {
  std::string_view kind;  // one of warning_kinds()
  std::string subject;    // which node, server, cache, group or device
  std::string detail;
};
std::vector<Warning> warnings_of(const Service& service);
std::vector<std::string_view> warning_kinds();

// Says in the log when a warning begins and when it has ended. Used by one thread.
class WarningLog {
 public:
  // Borrows the log.
  explicit WarningLog(Logger& log) : log_(log) {}
  // `now`: all that there are.
  void look(const std::vector<Warning>& now);

 private:
  Logger& log_;
  std::map<std::pair<std::string_view, std::string>, std::string> told_;  // details
};

}  // namespace cairn
