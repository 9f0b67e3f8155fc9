#pragma once

#include <memory>

#include "memory/alloc/pinned_pool.hpp"
#include "transport/copy/stream_threads.hpp"
#include "transport/engine/fair_queue.hpp"
#include "transport/io/disk_io.hpp"

namespace cairn {

// What parts of jobs with a side in a slot file are moved with. Borrows.
struct SlotEquipment {
  DiskIo& disk;
  PinnedPool& staging;
  StreamThreads& threads;
};

// How many pairs are one part.
std::size_t slots_per_part(const TransferJob& job);

// Moves a part of a job's pairs into or out of its slot file, and reports each: headers and
// checksums are written with the bytes, and what is read is compared with its checksum. What is
// read is in the destination before it is known to be right, so nobody may see it before the pair
// is reported. No thread waits while staging memory or the disk is waited for.
//
// `ended` runs once, when every pair of the part was reported and nothing of it is moving: on any
// thread, and maybe inside this. REQUIRES: job->job.slots.
struct SlotPart {
  std::shared_ptr<ActiveJob> job;
  PairRange pairs;
  CopyMode mode;  // of copies between staging memory and a device
};
void move_slots(SlotPart part, SlotEquipment equipment, UniqueFunction<void()> ended);

}  // namespace cairn
