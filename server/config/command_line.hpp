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

// Tell whether a server could start with these settings.
struct CheckConfig {
  Settings settings;
};

// Print the hash of the token on standard input.
struct HashToken {};

// How a process was started. Only borrowed.
struct CommandLine {
  std::span<const char* const> arguments;         // the program's name first
  std::span<const char* const> environment = {};  // "NAME=value" each
};

// Reads the flags, the variables (CAIRN_MAX_LEASES for --max-leases) and the file that --config
// names: a flag wins over its variable, a variable over the file, an empty variable is none, and
// one that is no setting is refused: see check_variables(). The error names the flag, the variable
// or the field.
Result<std::variant<Settings, PrintAndExit, HashToken, CheckConfig>> read_command_line(
    const CommandLine& given);

}  // namespace cairn
