#pragma once

#include "tests/simulation/run.hpp"

namespace cairn::sim {

// The same run in a process of its own: an invariant that breaks there ends it, and is a finding
// with the words that it said.
RunOutcome run_in_child(const RunOptions& options);

}  // namespace cairn::sim
