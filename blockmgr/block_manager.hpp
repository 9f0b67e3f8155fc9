#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/collectives/groups.hpp"
#include "blockmgr/disk/disk_place.hpp"
#include "blockmgr/engine_memory/engine_memories.hpp"
#include "blockmgr/index/event_ring.hpp"
#include "blockmgr/snapshot/snapshots.hpp"
#include "memory/device_runtime.hpp"
#include "transport/transfer/transfer_scheduler.hpp"

namespace cairn {

// Owns a server's caches, with their leases and transfers. Thread-safe. Only create_cache,
// drop_cache, take_back, describe_cache, labelled_files, checkpoint and the destructor block on
// I/O; other calls do not wait for them.
class BlockManager {
 public:
  // Borrows the first four arguments, which must outlive it. The destructor ends all leases and
  // waits until the scheduler has released every slot.
  BlockManager(DeviceRuntime& runtime, TransferScheduler& scheduler, const Clock& clock,
               Logger& log, BlockManagerOptions options, GroupOptions groups = {});
  ~BlockManager();

  struct Created {
    std::shared_ptr<Cache> cache;
    bool is_new = false;  // false: it already existed with the same configuration
  };
  // Creates a cache and reserves its tiers' memory and files. If the files of a disk tier exist
  // with another number of slots, the tier is resized and keeps the blocks that fit. If the resize
  // fails, the tier keeps its old size; a later change may try again. Errors:
  // - cache_exists: it exists with another configuration.
  // - impossible_shape, no_capacity, too_many.
  // - impossible: for example a disk path outside the data directory.
  // - state_conflict: its memory or disk path is in use, or the old cache is still being removed.
  Result<Created> create_cache(const CacheConfig& given);
  // Undoes a creation. Deletes what it made, but no files that existed before.
  // REQUIRES: is_new.
  void take_back(const Created& created);
  // Stores `description`, which may be any bytes, in the labels of the cache's slot files. If the
  // caller loses its own copy, labelled_files() returns it. Does nothing without a disk tier.
  // Blocks on I/O. Errors: impossible for more than kMaxDescriptionBytes; unknown_cache; io_error;
  // no_capacity.
  Result<> describe_cache(std::string_view name, const std::string& description);
  // Returns all slot files below the disk tiers' folders, also those of no cache. Blocks on I/O.
  std::vector<LabelledFile> labelled_files() const;
  Result<std::shared_ptr<Cache>> find_cache(std::string_view name) const;  // unknown_cache
  std::vector<std::shared_ptr<Cache>> caches() const;                      // sorted by name
  // Removes a cache with its files and ends its leases. Returns the number of leases ended. Error:
  // `leased` if there are leases and `force` is false.
  Result<std::uint64_t> drop_cache(std::string_view name, bool force);

  // Returns the lease's cache. Error: unknown_lease.
  Result<std::shared_ptr<Cache>> cache_of(const LeaseId& lease) const;

  Result<TransferStatus> transfer(TransferId id) const;  // unknown_transfer
  TransferList transfers(const TransferListRequest& request) const;
  // Returns the cache of a transfer; empty if the cache is gone. Error: unknown_transfer.
  Result<std::string> cache_name_of(TransferId id) const;
  // Runs `ended` once when the transfer has ended; at once if it already has.
  Result<> watch_transfer(TransferId id, UniqueFunction<void(const TransferStatus&)> ended);
  // Cancels what has not started. Returns the state after that.
  Result<TransferStatus> cancel_transfer(TransferId id);
  struct TransferCounts {
    std::uint64_t queued = 0;
    std::uint64_t running = 0;
  };
  TransferCounts transfer_counts() const;

  CacheTotals totals() const;
  // Staging memory for clients' bytes, and the tiers' slots.
  std::vector<NamedAllocator> allocators() const;
  // Returns the memory that one of these allocators keeps for reuse. False if none of that name
  // keeps any.
  bool give_back_cached(std::string_view allocator);
  // Resets the device's slot peaks to the current use.
  void reset_peaks(int device_id);
  // The groups that have this server as a rank. Their operations are transfers.
  Groups& groups();
  // The engines that have registered memory. Their copies are transfers.
  EngineMemories& engine_memories();
  // Mappings of snapshots and of disk tiers' indexes.
  const MappedCounts& mapped() const;
  // Blocks added and removed in all caches, for subscribers.
  const EventRing& events() const;

  Snapshots& snapshots();

  // Ends overdue leases and expires keys. A server thread calls it every few tens of milliseconds;
  // tests call it directly.
  void tick();

  // Processes the noted requests: estimates hit rates at other sizes, and chooses between LRU and
  // the set order. Call it every few tens of milliseconds, not on the thread of tick(), because it
  // takes longer. Without these calls, requests do the work now and then.
  void follow_reuse();

  // Makes the indexes of all disk tiers durable now. Blocks on I/O. A thread also does it
  // periodically, and so does the destructor.
  void checkpoint();

  const BlockManagerOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
