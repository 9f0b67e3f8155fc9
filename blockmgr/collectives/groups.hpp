#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "blockmgr/collectives/collective_stats.hpp"
#include "blockmgr/collectives/group_types.hpp"
#include "blockmgr/transfer/transfer_table.hpp"
#include "memory/alloc/pinned_pool.hpp"
#include "memory/device_runtime.hpp"
#include "transport/copy/device_memory.hpp"

namespace cairn {

class Group;

// The groups that have this server as a rank, and their operations. Each group has a thread that
// joins it and then runs its operations one by one, in the order of the calls. Every rank must be
// called in the same order. Thread-safe.
class Groups {
 public:
  struct Services {
    DeviceRuntime& runtime;
    DeviceMemory& device_memory;  // for NCCL groups
    TransferTable& transfers;
    Logger& log;
    const Clock& clock;
    std::uint32_t lease_ms = 0;  // of an operation's lease on its blocks
  };
  // Borrows the services, which must outlive it. `local` makes the local groups.
  Groups(const Services& services, GroupOptions options, std::unique_ptr<Collectives> local);
  // Leaves all groups.
  ~Groups();
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // Joins a group. `done` runs once only the other ranks are missing, or with an error. Rank 0 gets
  // the unique id for the others. Slow steps (resolving a host's name, loading NCCL) run on the
  // group's own thread. Errors:
  // - group_exists, too_many.
  // - out_of_range for the rank or the world size.
  // - missing_field, impossible or malformed for the unique id.
  // - impossible for an unknown device.
  // - unavailable if the thread cannot be started, or without NCCL.
  // - those of Collectives::invite and join.
  void join(const GroupJoin& request, Done<GroupInfo> done);
  Result<GroupInfo> find(std::string_view name) const;  // unknown_group
  std::vector<GroupInfo> list() const;                  // sorted by name
  // The current operation fails, here and on the other ranks. Waits for its end: do not call this
  // on a network thread.
  Result<> leave(std::string_view name);  // unknown_group

  // Queues an operation. Errors: unknown_group; queue_full; out_of_range for an invalid peer or
  // root; unavailable if the group has failed.
  Result<TransferId> share(std::string_view name, CollectiveRequest request);
  // Removes an operation that has not started from its queue. Its transfer ends as cancelled.
  void cancel(TransferId id);

  GroupsStats stats() const;
  std::vector<NamedAllocator> allocators() const;
  // As BlockManager::give_back_cached().
  bool give_back_cached(std::string_view allocator);
  const GroupOptions& options() const { return options_; }

 private:
  // May load a library: do not call it on a network thread or with a lock held.
  Result<Collectives*> collectives(std::string_view kind);
  std::shared_ptr<Group> look_up(std::string_view name) const;  // or null

  const Services services_;
  const GroupOptions options_;
  PinnedPool packing_;
  const std::unique_ptr<Collectives> local_;
  AllCollectiveCounters counters_;
  std::atomic<std::uint64_t> failures_ = 0;
  Mutex nccl_mutex_;                                                 // held while NCCL is loaded
  std::unique_ptr<Collectives> nccl_ CAIRN_GUARDED_BY(nccl_mutex_);  // null before the first use
  std::atomic<Collectives*> loaded_nccl_ = nullptr;  // the same, without waiting for the lock
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Group>, std::less<>> groups_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
