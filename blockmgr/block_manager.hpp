#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "blockmgr/agent/agents.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/disk/disk_place.hpp"
#include "blockmgr/index/event_ring.hpp"
#include "blockmgr/share/groups.hpp"
#include "blockmgr/snapshot/snapshots.hpp"
#include "memory/device_runtime.hpp"
#include "transport/engine/transfer_engine.hpp"

namespace cairn {

// The caches of a server, the leases and movements in them. Thread-safe; no call blocks on I/O but
// create_cache, drop_cache, checkpoint and the destructor; none waits for another that does, but
// those.
class BlockManager {
 public:
  // Borrows all four, which must outlive it. The destructor ends every lease and waits until the
  // engine has let go of every slot.
  BlockManager(DeviceRuntime& runtime, TransferEngine& engine, const Clock& clock, Logger& log,
               BlockManagerOptions options, GroupOptions groups = {});
  ~BlockManager();

  struct Created {
    std::shared_ptr<Cache> cache;
    bool is_new = false;  // false: it was there with the same configuration
  };
  // Reserves the tiers' memory and files. A disk tier whose files are there with another number of
  // slots is resized: what fits stays. Where it cannot be, it keeps the size it has, which a change
  // may try again. cache_exists with another configuration;
  // impossible_shape; no_capacity; too_many; impossible for a disk path that leaves the data
  // directory.
  Result<Created> create_cache(const CacheConfig& given);
  // Undoes it: what was made goes, and files that were there before stay as they are.
  // REQUIRES: is_new.
  void take_back(const Created& created);
  // Keeps what the caller remembers of a cache in the labels of its slot files, whatever it is, so
  // that labelled_files() tells it where the caller's own copy is lost. Nothing without a disk
  // tier. Blocks on I/O. impossible: more than kMaxDescriptionBytes; unknown_cache; io_error;
  // no_capacity.
  Result<> describe_cache(std::string_view name, const std::string& description);
  // The slot files below the disk tiers' folders, whether a cache has them or not. Blocks on I/O.
  std::vector<LabelledFile> labelled_files() const;
  Result<std::shared_ptr<Cache>> find_cache(std::string_view name) const;  // unknown_cache
  std::vector<std::shared_ptr<Cache>> caches() const;                      // by name
  // `leased` while a lease holds blocks, unless forced: its leases then end. Answers how many
  // ended.
  Result<std::uint64_t> drop_cache(std::string_view name, bool force);

  // The cache a lease belongs to. unknown_lease.
  Result<std::shared_ptr<Cache>> cache_of(const LeaseId& lease) const;

  Result<TransferStatus> transfer(TransferId id) const;  // unknown_transfer
  TransferList transfers(const TransferListRequest& request) const;
  // Of the cache that it moves or moved blocks of; empty where that is gone. unknown_transfer.
  Result<std::string> cache_name_of(TransferId id) const;
  // Runs `ended` once when the transfer has ended, at once where it has.
  Result<> watch_transfer(TransferId id, UniqueFunction<void(const TransferStatus&)> ended);
  // Cancels what has not begun; answers the state after that.
  Result<TransferStatus> cancel_transfer(TransferId id);
  struct TransferCounts {
    std::uint64_t queued = 0;
    std::uint64_t running = 0;
  };
  TransferCounts transfer_counts() const;

  CacheTotals totals() const;
  // What stages clients' bytes, and the tiers' slots.
  std::vector<NamedAllocator> allocators() const;
  // The peaks of the slots on that device are what is in use now.
  void reset_peaks(int device_id);
  // The groups that this server is a rank of. Their operations are transfers.
  Groups& groups();
  // The engines that have registered memory. Their copies are transfers.
  Agents& agents();
  // Of snapshots and of the indexes of disk tiers.
  const MappedCounts& mapped() const;
  // What comes and goes in all caches, for those who listen.
  const EventRing& events() const;

  Snapshots& snapshots();

  // Ends leases and keys whose time has come. Called every few tens of milliseconds by a thread of
  // the server's; tests call it by hand.
  void tick();

  // Works off what was noted of the requests: what other sizes of the caches would find, and
  // whether they should go by LRU. Called every few tens of milliseconds by another thread than
  // tick() is: it takes longer. Where nobody calls it, requests do it now and then.
  void follow_reuse();

  // Makes the indexes of all disk tiers durable now. Blocks on I/O. It is also done from time to
  // time, and by the destructor.
  void checkpoint();

  const BlockManagerOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
