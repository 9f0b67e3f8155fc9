#pragma once

#include "tests/simulation/run.hpp"

namespace cairn::sim {

// Does the run in a separate process. A broken invariant ends that process and becomes a finding
// with its message.
RunOutcome run_in_child(const RunOptions& options);

}  // namespace cairn::sim
