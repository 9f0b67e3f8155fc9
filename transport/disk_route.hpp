#pragma once

#include "memory/alloc/pinned_pool.hpp"
#include "transport/disk_io.hpp"
#include "transport/job_report.hpp"
#include "transport/lane_crew.hpp"

namespace cairn {

// What a job with a side on disk is moved with. Borrows.
struct DiskEquipment {
  DiskIo& disk;
  PinnedPool& staging;
  LaneCrew& crew;
};

// Moves the pairs of a job that has a side on disk and reports each of them; on return nothing is
// moving any more. `mode` is for the copies between staging memory and a device.
void move_with_disk(const TransferJob& job, CopyMode mode, DiskEquipment equipment, Lane& lane,
                    JobReport& report);

}  // namespace cairn
