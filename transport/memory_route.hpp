#pragma once

#include "transport/job_report.hpp"
#include "transport/stream_copier.hpp"

namespace cairn {

// Moves the job's pairs between two layouts in memory and reports each of them; on return nothing
// is moving any more. mode.strategy is a resolved one.
void move_in_memory(const TransferJob& job, CopyMode mode, Lane& lane, JobReport& report);

}  // namespace cairn
