#pragma once

#include "transport/engine/job_part.hpp"

namespace cairn {

// How many pairs are one part: what is urgent waits for one of them at most.
std::size_t memory_pairs_per_part(const TransferJob& job);

// Moves a part of a job's pairs between two layouts in memory, and reports each. No thread waits
// while a device copies, unless the strategy is to wait, or copies are made again after an error.
//
// `ended` runs once, when every pair of the part was reported and nothing of it is moving: on the
// executor, or inside this.
void move_in_memory(JobPart part, const JobEquipment& equipment, UniqueFunction<void()> ended);

}  // namespace cairn
