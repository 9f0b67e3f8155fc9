#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/executor.hpp"
#include "base/result.hpp"
#include "memory/alloc/statistics.hpp"
#include "memory/device_runtime.hpp"
#include "transport/copy/copy_choice.hpp"
#include "transport/copy/device_memory.hpp"
#include "transport/engine/transfer_job.hpp"
#include "transport/io/disk_io.hpp"

namespace cairn {

struct TransferEngineOptions {
  // Parts of jobs between memory kinds under way at once: one a direction keeps a bus busy; at
  // least 1
  std::uint32_t workers = 2;
  std::uint32_t max_queued_jobs = 1024;  // more are queue_full
  // Threads for checksums of what goes to and comes from disk, and for copies out of staging
  // memory; at least 1
  std::uint32_t disk_threads = 2;
  // Parts of jobs with a side on disk under way at once: as many blocks as a disk serves at a time.
  // Large ones are bounded by their bytes too: what is urgent waits behind so many at most.
  std::uint32_t disk_parts = 64;
  std::uint64_t disk_bytes = 16ull << 20;
  // Bounce memory for disk <-> device, pinned at first need. A block larger than all of it still
  // gets through, alone.
  std::uint64_t staging_bytes = 64ull << 20;
  CopyStrategies strategy = {};
  std::uint32_t polling_interval_us = 20;  // of CopyStrategy::polling
  CopyThresholds copy_forms = {};
  // Of each device: memory that nobody uses and that is kept for the next movement or tier.
  std::uint64_t device_kept_bytes = 0;
};

struct TransferEngineStats {
  std::uint64_t queued = 0;
  std::uint64_t running = 0;
  std::uint64_t submitted = 0;  // accepted; ends as one of the next three
  std::uint64_t done = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t rejected = 0;  // refused by submit()
  std::uint64_t bytes_moved = 0;
  // Of jobs that copied and have ended, cancelled ones aside: between which kinds of memory, how.
  struct Copied {
    StorageKind from = StorageKind::pinned;
    StorageKind to = StorageKind::pinned;
    CopyStrategy strategy = CopyStrategy::sync;
    std::uint64_t jobs = 0;
  };
  std::vector<Copied> copied = {};  // those that are not 0
  // Of unified memory, that was asked to go there.
  std::uint64_t prefetched_to_device_bytes = 0;
  std::uint64_t prefetched_to_host_bytes = 0;
};

// Moves blocks between memory kinds and disk. Two routes, one between memory kinds and one for the
// disk, each with so many parts of jobs under way and a FairQueue before them; what nobody's bytes
// wait for has half of a route at most, so that a client finds the other half free. Thread-safe.
class TransferEngine {
 public:
  // Borrows all three, which must outlive it. `executor`: null for threads of its own, `workers`
  // and `disk_threads` of them. Throws std::system_error where there is no thread.
  TransferEngine(DeviceRuntime& runtime, DiskIo& disk, const Clock& clock,
                 TransferEngineOptions options, std::unique_ptr<Executor> executor = nullptr);
  // Cancels what has not begun, waits for what has. Not to be run by a completion.
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  // queue_full; impossible for two sides on disk, for a side on disk without its slots, for layouts
  // of different shapes, a destination block named twice, a block that is both source and
  // destination in one layout; out_of_range for a block that a layout lacks; unavailable once the
  // engine is being destroyed. An error means that on_complete is not called and `job` is as it
  // was.
  Result<JobId> submit(TransferJob&& job);
  // True where no part of the job had begun: its completion has run with `cancelled`.
  bool cancel(JobId id);
  // Gives a job the priority where that is higher than its own. True where no part had begun.
  bool raise(JobId id, std::int32_t priority);
  TransferEngineStats stats() const;
  // Of devices, and of bounce memory on the host.
  std::vector<NamedAllocator> allocators() const;
  // Memory of a device, zeroed, until the Region goes: from the allocator that movements' scratch
  // memory is of. As DeviceRuntime::allocate_device().
  Result<Region> allocate_device(std::uint64_t size_bytes, DeviceRuntime::DeviceOptions options);
  // The same memory, for others that work on streams.
  DeviceMemory& device_memory();
  // Of a device: what nobody uses goes back to the driver, which waits for what its streams still
  // do; answers how many bytes that were. out_of_range for an unknown device; device_error.
  Result<std::uint64_t> empty_cache(int device_id);
  // Both peaks of it are what is had now. out_of_range.
  Result<> reset_peaks(int device_id);
  DiskIo& disk() const;
  // For those who wait for what the engine does.
  Executor& executor() const;
  // Blocks until nothing is queued or running, jobs submitted by completions included.
  void wait_idle();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
