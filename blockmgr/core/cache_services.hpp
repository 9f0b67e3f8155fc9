#pragma once

#include <algorithm>

#include "base/log.hpp"
#include "base/mapped_data.hpp"
#include "blockmgr/core/token_bucket.hpp"
#include "blockmgr/core/total_counts.hpp"
#include "blockmgr/core/wait_group.hpp"
#include "blockmgr/index/event_ring.hpp"
#include "blockmgr/index/memory_quota.hpp"
#include "blockmgr/reuse/request_record.hpp"
#include "blockmgr/transfer/transfer_table.hpp"
#include "memory/alloc/pinned_pool.hpp"
#include "memory/host/available_memory.hpp"
#include "memory/host/host_memory.hpp"
#include "memory/host/page_populator.hpp"
#include "transport/transfer/transfer_scheduler.hpp"

namespace cairn {

// State that all caches of a manager share. The references must outlive the manager. The rest lives
// as long as anybody holds it.
struct CacheServices {
  CacheServices(DeviceRuntime& r, TransferScheduler& e, const Clock& c, Logger& l,
                BlockManagerOptions o)
      : runtime(r),
        scheduler(e),
        clock(c),
        log(l),
        options(std::move(o)),
        registered(std::make_shared<MemoryQuota>(MemoryQuota::Terms{
            .limit_bytes = options.max_registered_bytes != 0
                               ? options.max_registered_bytes
                               : std::min(AvailableMemory().bytes(), machine_memory_bytes()) / 2,
            .whose = "the limit import.max_bytes"})),
        staging(r, {.limit_bytes = options.staging_bytes,
                    .least_slot_bytes = kLeastStagingSlotBytes,
                    .min_lent = kLeastStagedBlocks}),
        transfers({.max_open = options.max_transfers,
                   .max_kept = options.kept_transfers,
                   .first_id = first_id(c)}),
        populator({.threads = options.populate_threads}),
        disk_writes(options.disk.write_bytes_per_s),
        disk_scrubs(options.disk.scrub_bytes_per_s),
        events({.capacity = options.kept_events, .first_id = first_id(c)}),
        record(options.record_path.empty()
                   ? nullptr
                   : std::make_unique<RequestRecord>(
                         c, l,
                         RequestRecord::Options{.path = options.record_path,
                                                .max_bytes = options.max_record_bytes})) {}

  // Each slot is one allocation of the runtime, which costs as much as a few copies of that size.
  static constexpr std::uint64_t kLeastStagingSlotBytes = 256ull << 10;
  // At least two, however large a block is: one slow client must not stop all others.
  static constexpr std::uint32_t kLeastStagedBlocks = 2;

  DeviceRuntime& runtime;
  TransferScheduler& scheduler;
  const Clock& clock;
  Logger& log;
  const BlockManagerOptions options;
  const std::shared_ptr<MemoryQuota> registered;  // memory of all engines
  PinnedPool staging;
  TransferTable transfers;
  PagePopulator populator;
  TokenBucket disk_writes;
  TokenBucket disk_scrubs;
  EventRing events;
  const std::unique_ptr<RequestRecord> record;  // null: no recording
  MappedCounts mapped;
  TotalCounts totals;
  WaitGroup jobs;

 private:
  // Unique across restarts: a server starts at least a second after the one before, and has fewer
  // than a million events per second on average. Below 2^53, so JavaScript can represent it.
  static std::uint64_t first_id(const Clock& clock) {
    return static_cast<std::uint64_t>(clock.unix_ms() / 1000) << 20;
  }
};

}  // namespace cairn
