#pragma once

#include "transport/copy/stream_copier.hpp"
#include "transport/engine/job_report.hpp"

namespace cairn {

// How many pairs are one part: what is urgent waits for one of them at most.
std::size_t memory_pairs_per_part(const TransferJob& job);

// Moves these pairs of a job between two layouts in memory and reports each of them; on return
// nothing is moving any more. mode.strategy is a resolved one.
struct MemoryPart {
  const TransferJob& job;
  PairRange pairs;
  CopyMode mode;
};
void move_in_memory(const MemoryPart& part, StreamSet& streams, JobReport& report);

}  // namespace cairn
