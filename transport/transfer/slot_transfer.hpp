#pragma once

#include "transport/transfer/job_part.hpp"

namespace cairn {

// Pairs per part.
std::size_t slots_per_part(const TransferJob& job);

// Moves a part into or out of its slot file and reports each pair. Writes headers and checksums
// with the data; verifies checksums on read. Data is in the destination before it is verified, so
// nobody may use it before its pair is reported. Blocks no thread while it waits for staging
// memory, the disk or a device.
//
// Calls `ended` once, when every pair has been reported and nothing moves: on any thread, or inside
// this call. REQUIRES: job->job.slots.
void move_slots(JobPart part, const JobEquipment& equipment, UniqueFunction<void()> ended);

}  // namespace cairn
