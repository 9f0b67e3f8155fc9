#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "base/log.hpp"
#include "blockmgr/group_types.hpp"
#include "blockmgr/share_blocks.hpp"

namespace cairn {

// One group that this server is a rank of: its communicator, its thread and its queue. Thread-safe.
class Group {
 public:
  struct Parts {
    Collectives& collectives;
    PinnedPool& packing;
    TransferTable& transfers;
    Logger& log;
    const GroupOptions& options;
    std::uint32_t lease_ms = 0;
  };
  // Begins to join; `invitation` is rank 0's. `joined` as in Groups::join.
  Group(const Parts& parts, const GroupJoin& request, std::unique_ptr<Invitation> invitation,
        Done<GroupInfo> joined);
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
  void run(std::unique_ptr<Invitation> invitation, Done<GroupInfo> joined);
  std::unique_ptr<Communicator> join(std::unique_ptr<Invitation> invitation,
                                     Done<GroupInfo> joined);
  void work(Communicator& communicator);
  void fail(const Error& why);
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
  std::thread thread_;                                             // last: it uses all the others
};

}  // namespace cairn
