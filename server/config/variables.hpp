#pragma once

#include <set>
#include <span>
#include <string>

#include "base/result.hpp"

namespace cairn {

// unknown_field, by name, where the environment has a variable that begins with CAIRN_ and is no
// setting: a misspelt one would be left out in silence. Not refused are those without a value,
// those of Cairn's other programs, and those that an orchestrator makes for a service of that name
// (CAIRN_SERVICE_HOST, CAIRN_PORT_7070_TCP).
Result<> check_variables(std::span<const char* const> environment,
                         const std::set<std::string>& settings);

}  // namespace cairn
