#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/executor.hpp"
#include "base/result.hpp"
#include "memory/alloc/statistics.hpp"
#include "memory/device_runtime.hpp"
#include "transport/copy/copy_choice.hpp"
#include "transport/copy/device_memory.hpp"
#include "transport/io/disk_io.hpp"
#include "transport/transfer/transfer_job.hpp"

namespace cairn {

struct TransferSchedulerOptions {
  // Parts between memory kinds in progress. One per direction keeps a bus busy. At least 1.
  std::uint32_t workers = 2;
  std::uint32_t max_queued_jobs = 1024;  // one more returns queue_full
  // Threads for checksums of disk transfers and for copies from staging memory. At least 1.
  std::uint32_t disk_threads = 2;
  // Parts with a side on disk in progress: as many blocks as a disk serves at a time. Also limited
  // by bytes, because an urgent job waits behind them.
  std::uint32_t disk_parts = 64;
  std::uint64_t disk_bytes = 16ull << 20;
  // Pinned staging memory for disk <-> device, allocated on first use. A block larger than this
  // still passes, alone.
  std::uint64_t staging_bytes = 64ull << 20;
  CopyStrategies strategy = {};
  std::uint32_t polling_interval_us = 20;  // for CopyStrategy::polling
  CopyThresholds copy_forms = {};
  // Per device: unused memory kept for the next transfer or tier.
  std::uint64_t device_kept_bytes = 0;
};

struct TransferSchedulerStats {
  std::uint64_t queued = 0;
  std::uint64_t running = 0;
  std::uint64_t submitted = 0;  // accepted; ends as done, failed or cancelled
  std::uint64_t done = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t rejected = 0;  // refused by submit()
  std::uint64_t bytes_moved = 0;
  // Completed copy jobs by memory kinds and strategy, without cancelled jobs.
  struct Copied {
    StorageKind from = StorageKind::pinned;
    StorageKind to = StorageKind::pinned;
    CopyStrategy strategy = CopyStrategy::sync;
    std::uint64_t jobs = 0;
  };
  std::vector<Copied> copied = {};  // only non-zero entries
  // Bytes of unified memory prefetched in each direction.
  std::uint64_t prefetched_to_device_bytes = 0;
  std::uint64_t prefetched_to_host_bytes = 0;
};

// Moves blocks between memory kinds and disk. It has two routes, one between memory kinds and one
// for the disk. Each runs a limited number of parts, with a FairQueue in front. Jobs whose bytes
// nobody waits for use at most half of a route, so that clients find room. Thread-safe.
class TransferScheduler {
 public:
  // Borrows runtime, disk and clock; they must outlive it. Without an `executor` it starts
  // `workers` + `disk_threads` threads. Throws std::system_error if a thread cannot be started.
  TransferScheduler(DeviceRuntime& runtime, DiskIo& disk, const Clock& clock,
                    TransferSchedulerOptions options, std::unique_ptr<Executor> executor = nullptr);
  // Cancels jobs that have not started and waits for the others. Do not call from a completion.
  ~TransferScheduler();
  TransferScheduler(const TransferScheduler&) = delete;
  TransferScheduler& operator=(const TransferScheduler&) = delete;

  // Queues a job. After an error, on_complete is not called and `job` is unchanged. Errors:
  // - queue_full.
  // - impossible: both sides on disk; one side on disk without slots; layouts of different shapes;
  //   a destination block named twice; a block that is both source and destination in one layout.
  // - out_of_range: a block that a layout does not have.
  // - unavailable: the scheduler is being destroyed.
  Result<JobId> submit(TransferJob&& job);
  // Returns true if no part of the job had started; its completion has then run with `cancelled`.
  bool cancel(JobId id);
  // Raises the job's priority and class. Returns true if no part had started.
  bool raise(JobId id, const Raise& to);
  TransferSchedulerStats stats() const;
  // Device memory and staging memory on the host.
  std::vector<NamedAllocator> allocators() const;
  // Returns the memory that one of these allocators keeps for reuse. False if it has none of that
  // name. May wait for a device's streams.
  bool give_back_cached(std::string_view allocator);
  // Allocates zeroed device memory, freed with the Region, from the same allocator as the scratch
  // memory of transfers. See DeviceRuntime::allocate_device().
  Result<Region> allocate_device(std::uint64_t size_bytes, DeviceRuntime::DeviceOptions options);
  // The allocator for others that use streams.
  DeviceMemory& device_memory();
  // Returns unused memory to the driver, which waits for pending work on its streams. Returns the
  // number of bytes. Errors: out_of_range for an unknown device; device_error.
  Result<std::uint64_t> empty_cache(int device_id);
  // The same on a worker, for callers that may not wait. An error of it is not reported: memory
  // stays cached.
  void empty_cache_later(int device_id);
  // Resets both peaks to the current values. Error: out_of_range.
  Result<> reset_peaks(int device_id);
  DiskIo& disk() const;
  // For others that wait for the scheduler's work.
  Executor& executor() const;
  // Blocks until nothing is queued or running, including jobs that completions submit.
  void wait_idle();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
