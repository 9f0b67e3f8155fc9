#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "blockmgr/collectives/collective_blocks.hpp"
#include "blockmgr/collectives/group_types.hpp"

namespace cairn {

// A group that has this server as a rank: its communicator, thread and queue. Thread-safe.
class Group {
 public:
  struct Parts {
    std::string_view kind;  // of collectives; a constant
    // The first call may take long.
    std::function<Result<Collectives*>()> collectives;
    PinnedPool& packing;
    TransferTable& transfers;
    Logger& log;
    const Clock& clock;
    const GroupOptions& options;
    AllCollectiveCounters& counters;
    std::atomic<std::uint64_t>& failures;  // incremented if this group fails
    std::uint32_t lease_ms = 0;
  };
  // Begins to join. `joined` as in Groups::join. Throws std::system_error if the thread cannot be
  // started.
  Group(const Parts& parts, const GroupJoin& request, Done<GroupInfo> joined);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  GroupInfo info() const;
  // The join was refused. Groups does not show the group.
  bool refused() const;
  Result<TransferId> share(CollectiveRequest request);
  bool cancel(TransferId id);  // false if it is not queued
  // Aborts the current operation and ends the thread. Idempotent.
  void leave();

 private:
  struct Operation {
    TransferId id;
    CollectiveRequest request;
  };
  std::unique_ptr<Communicator> join(Done<GroupInfo> joined);
  // `accepted` runs once only the other ranks are missing.
  Result<std::unique_ptr<Communicator>> meet(UniqueFunction<void()> accepted);
  void work(Communicator& communicator);
  void fail(const Error& why);
  void give_up();  // cleans up after the thread's work threw
  CollectiveCounters& counters(CollectiveKind kind) const {
    return parts_.counters[static_cast<std::size_t>(kind)];
  }
  // Ends all queued operations with that state.
  void end_queue(TransferState state, const Error& why);

  const Parts parts_;
  JoinStop stop_;
  mutable Mutex mutex_;
  Condition changed_;
  GroupInfo info_ CAIRN_GUARDED_BY(mutex_);
  std::deque<Operation> queue_ CAIRN_GUARDED_BY(mutex_);
  bool busy_ CAIRN_GUARDED_BY(mutex_) = false;
  bool refused_ CAIRN_GUARDED_BY(mutex_) = false;
  bool leaving_ CAIRN_GUARDED_BY(mutex_) = false;
  Communicator* communicator_ CAIRN_GUARDED_BY(mutex_) = nullptr;  // owned by the thread
  Thread thread_;                                                  // last: uses all others
};

}  // namespace cairn
