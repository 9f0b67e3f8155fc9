#pragma once

#include <span>
#include <string>
#include <variant>

#include "server/config/settings.hpp"

namespace cairn {

// What the command line asks for instead of serving.
struct PrintAndExit {
  std::string text;
};

// Reads the flags and the file that --config names; flags win. The error names the flag or the
// field.
Result<std::variant<Settings, PrintAndExit>> read_command_line(std::span<const char* const> args);

}  // namespace cairn
