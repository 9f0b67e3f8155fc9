#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "blockmgr/share/group_types.hpp"
#include "blockmgr/share/share_blocks.hpp"

namespace cairn {

// One group that this server is a rank of: its communicator, its thread and its queue. Thread-safe.
class Group {
 public:
  struct Parts {
    std::string_view kind;  // of collectives: a name that stays
    // Takes its time, the first time.
    std::function<Result<Collectives*>()> collectives;
    PinnedPool& packing;
    TransferTable& transfers;
    Logger& log;
    const Clock& clock;
    const GroupOptions& options;
    AllShareCounters& counters;
    std::atomic<std::uint64_t>& failures;  // counts this group's, if it fails
    std::uint32_t lease_ms = 0;
  };
  // Begins to join. `joined` as in Groups::join. Throws std::system_error where there is no thread.
  Group(const Parts& parts, const GroupJoin& request, Done<GroupInfo> joined);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  GroupInfo info() const;
  // It was never let in: nobody is told of it.
  bool refused() const;
  Result<TransferId> share(ShareRequest request);
  bool cancel(TransferId id);  // false where it is not in the queue
  // Ends what is under way and the thread. Idempotent.
  void leave();

 private:
  struct Operation {
    TransferId id;
    ShareRequest request;
  };
  std::unique_ptr<Communicator> join(Done<GroupInfo> joined);
  // `accepted` runs once nobody but the other ranks is waited for.
  Result<std::unique_ptr<Communicator>> meet(UniqueFunction<void()> accepted);
  void work(Communicator& communicator);
  void fail(const Error& why);
  void give_up();  // what the thread does after something threw
  ShareCounters& counters(ShareKind kind) const {
    return parts_.counters[static_cast<std::size_t>(kind)];
  }
  // Ends all that is queued with that state.
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
  Communicator* communicator_ CAIRN_GUARDED_BY(mutex_) = nullptr;  // the thread's
  Thread thread_;                                                  // last: it uses all the others
};

}  // namespace cairn
