#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "blockmgr/cache/transfer_table.hpp"
#include "blockmgr/share/group_types.hpp"
#include "blockmgr/share/share_stats.hpp"
#include "memory/alloc/pinned_pool.hpp"
#include "memory/device_runtime.hpp"
#include "transport/copy/device_memory.hpp"

namespace cairn {

class Group;

// The groups that this server is a rank of, and the operations in them. Each group has a thread
// that joins it and then does its operations one by one, in the order in which they were asked for:
// every rank must be asked in the same order. Thread-safe.
class Groups {
 public:
  struct Services {
    DeviceRuntime& runtime;
    DeviceMemory& device_memory;  // what groups of NCCL have theirs from
    TransferTable& transfers;
    Logger& log;
    const Clock& clock;
    std::uint32_t lease_ms = 0;  // of slots that are being received into
  };
  // Borrows the services, which must outlive it. `local` makes the groups of that kind.
  Groups(const Services& services, GroupOptions options, std::unique_ptr<Collectives> local);
  // Leaves all of them.
  ~Groups();
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // Answers once nobody but the other ranks is waited for, or with why not; rank 0 with the unique
  // id for the others. What takes its time (a host's name, NCCL's loading) is done on the group's
  // own thread. group_exists; too_many; out_of_range for a rank or a world size that cannot be;
  // what Collectives::invite and join answer.
  void join(const GroupJoin& request, Done<GroupInfo> done);
  Result<GroupInfo> find(std::string_view name) const;  // unknown_group
  std::vector<GroupInfo> list() const;                  // by name
  // What is under way there and on the other ranks fails. Waits for it, so it is not for network
  // threads.
  Result<> leave(std::string_view name);  // unknown_group

  // unknown_group; queue_full; out_of_range for a peer or a root that is none; unavailable once the
  // group has failed.
  Result<TransferId> share(std::string_view name, ShareRequest request);
  // Takes an operation that has not begun out of its queue; its transfer ends as cancelled.
  void cancel(TransferId id);

  GroupsStats stats() const;
  std::vector<NamedAllocator> allocators() const;
  const GroupOptions& options() const { return options_; }

 private:
  // May load a library: not for a network thread, nor for the owner of a lock.
  Result<Collectives*> collectives(std::string_view kind);
  std::shared_ptr<Group> look_up(std::string_view name) const;  // or null

  const Services services_;
  const GroupOptions options_;
  PinnedPool packing_;
  const std::unique_ptr<Collectives> local_;
  AllShareCounters counters_;
  std::atomic<std::uint64_t> failures_ = 0;
  Mutex nccl_mutex_;                                                 // held while it is loaded
  std::unique_ptr<Collectives> nccl_ CAIRN_GUARDED_BY(nccl_mutex_);  // once it was asked for
  std::atomic<Collectives*> loaded_nccl_ = nullptr;                  // the same: no scrape waits
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Group>, std::less<>> groups_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
