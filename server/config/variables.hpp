#pragma once

#include <set>
#include <span>
#include <string>

#include "base/result.hpp"

namespace cairn {

// Error: unknown_field if the environment has a CAIRN_ variable that is not a setting, so that a
// misspelt one is not silently ignored. Accepts variables without a value, those of Cairn's other
// programs, and those that an orchestrator sets for a service named cairn (CAIRN_SERVICE_HOST,
// CAIRN_PORT_7070_TCP).
Result<> check_variables(std::span<const char* const> environment,
                         const std::set<std::string>& settings);

}  // namespace cairn
