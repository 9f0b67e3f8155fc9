#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_function.hpp"
#include "blockmgr/index/lease_quota.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/stats.hpp"
#include "blockmgr/index/types.hpp"
#include "blockmgr/index/user_table.hpp"
#include "transport/transfer/transfer_job.hpp"

namespace cairn {

class CacheLock;

// A batch of copies to one tier. Each source and destination is pinned until its copy has ended.
// Under the cache's lock.
struct TransferBatch {
  enum class Purpose : std::uint8_t {
    offload,        // the sources are leaving their tier
    transfer,       // requested by a client
    write_through,  // best effort
  };
  struct Item {
    SlotRef source;
    SlotRef destination;
    bool ended = false;  // arrived, failed or cancelled
  };
  std::uint64_t number = 0;  // 0: has not begun
  TimePoint began{};
  Purpose purpose = Purpose::transfer;
  Tier to = Tier::device;
  std::int32_t priority = 0;
  bool drop_source = false;                          // transfer
  bool is_prefetch = false;                          // transfer: no request waits for it yet
  bool is_waited_for = false;                        // a prefetch for which a request waits by now
  UserNumber prefetching_user = 0;                   // a prefetch's
  std::uint64_t prefetching_units = 0;               // expected, of its share of the tier
  EvictionReason reason = EvictionReason::capacity;  // offload
  std::optional<TransferId> transfer;
  std::optional<LeaseId> lease;  // also holds the new copies, if it is still open
  std::vector<Item> items;       // sorted by source tier
  std::vector<BlockKey> keys;    // transfer: of the items
  LeaseQuotaShare pins;          // transfer: the requester's, until the end
  std::uint64_t following = 0;   // transfer: keys that other batches bring
  // transfer: number of its keys that others wait for, by their priority.
  std::map<std::int32_t, std::uint64_t> followed;
  // transfer: copies already in the tier. Pinned until the end, so that making room for the rest
  // does not evict them.
  std::vector<SlotRef> kept;
  bool asking = false;               // requesting slots now
  std::uint64_t request = 0;         // for the slots, while it waits for them; 0: none
  std::size_t next = 0;              // the first item not yet handed to the scheduler
  std::uint32_t jobs = 0;            // in progress
  std::map<std::size_t, JobId> ids;  // of the jobs in progress, by first item
  std::set<std::size_t> ended_jobs;  // by first item
  bool open = false;  // keys are still being added or given up in steps, so it cannot end yet
  bool cancelled = false;
  bool over = false;  // finished; its own end may call finish() again
  std::uint64_t failed = 0;
  std::uint64_t skipped = 0;    // cancelled items
  std::uint64_t left = 0;       // sources that left their tier
  std::uint64_t offloaded = 0;  // those of `left` that are in the lower tier now
  UniqueFunction<void(CacheLock&, const TransferBatch&)> ended;  // under the lock; may be empty

  bool finished(std::size_t first) const { return ended_jobs.contains(first); }
  // Its own priority, or a higher one of a batch that waits for it.
  std::int32_t urgency() const {
    return followed.empty() ? priority : std::max(priority, followed.rbegin()->first);
  }
  bool ended_all() const {
    return !open && request == 0 && jobs == 0 && next == items.size() && following == 0;
  }
};

}  // namespace cairn
