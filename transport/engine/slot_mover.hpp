#pragma once

#include "transport/engine/job_part.hpp"

namespace cairn {

// How many pairs are one part.
std::size_t slots_per_part(const TransferJob& job);

// Moves a part of a job's pairs into or out of its slot file, and reports each: headers and
// checksums are written with the bytes, and what is read is compared with its checksum. What is
// read is in the destination before it is known to be right, so nobody may see it before the pair
// is reported. No thread waits while staging memory, the disk or a device is waited for.
//
// `ended` runs once, when every pair of the part was reported and nothing of it is moving: on any
// thread, and maybe inside this. REQUIRES: job->job.slots.
void move_slots(JobPart part, const JobEquipment& equipment, UniqueFunction<void()> ended);

}  // namespace cairn
