#pragma once

#include <memory>

#include "memory/alloc/pinned_pool.hpp"
#include "transport/copy/stream_pool.hpp"
#include "transport/io/disk_io.hpp"
#include "transport/transfer/fair_queue.hpp"

namespace cairn {

// The unit of transfer.
struct JobPart {
  std::shared_ptr<ActiveJob> job;
  PairRange pairs;
  CopyMode mode;  // strategy is never `automatic`
};

// What movers need. Borrows.
struct JobEquipment {
  DiskIo& disk;
  PinnedPool& staging;
  StreamPool& streams;
  Executor& executor;
};

}  // namespace cairn
