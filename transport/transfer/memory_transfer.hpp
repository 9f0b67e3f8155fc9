#pragma once

#include "transport/transfer/job_part.hpp"

namespace cairn {

// Pairs per part. An urgent job waits for one part at most.
std::size_t memory_pairs_per_part(const TransferJob& job);

// Moves a part between two memory layouts and reports each pair. Blocks no thread while a device
// copies, unless the strategy is blocking or copies are retried after an error.
//
// Calls `ended` once, when every pair has been reported and nothing moves: on the executor, or
// inside this call.
void move_in_memory(JobPart part, const JobEquipment& equipment, UniqueFunction<void()> ended);

}  // namespace cairn
