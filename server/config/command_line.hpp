#pragma once

#include <span>
#include <string>
#include <variant>

#include "server/config/settings.hpp"

namespace cairn {

// Print a text instead of serving.
struct PrintAndExit {
  std::string text;
};

// Check whether a server could start with these settings.
struct CheckConfig {
  Settings settings;
};

// Print the hash of the token on standard input.
struct HashToken {};

// How a process was started. Borrowed.
struct CommandLine {
  std::span<const char* const> arguments;         // the program's name first
  std::span<const char* const> environment = {};  // "NAME=value" each
};

// Reads the flags, the variables (CAIRN_MAX_LEASES for --max-leases) and the file of --config. A
// flag overrides its variable, and a variable overrides the file. Empty variables are ignored,
// unknown ones refused: see check_variables(). The error names the flag, the variable or the field.
Result<std::variant<Settings, PrintAndExit, HashToken, CheckConfig>> read_command_line(
    const CommandLine& given);

}  // namespace cairn
