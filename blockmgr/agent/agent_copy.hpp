#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "blockmgr/agent/agent.hpp"
#include "blockmgr/agent/layer_copy.hpp"
#include "blockmgr/cache/cache.hpp"

namespace cairn {

// Blocks of a cache to an agent's memory, or the other way round.
struct AgentCopyRequest {
  std::shared_ptr<Cache> cache = {};
  std::shared_ptr<Agent> agent = {};
  std::vector<BlockKey> keys = {};
  std::vector<std::uint32_t> blocks = {};  // the agent's, one a key
  std::shared_ptr<LeaseQuota> pins = {};   // where the blocks count meanwhile; null: nowhere
};
struct AgentStoreRequest : AgentCopyRequest {
  std::vector<std::optional<BlockKey>> parents = {};  // one a key
  std::optional<Tier> tier = {};                      // nothing: the cache's highest
  std::shared_ptr<BlockQuota> quota = {};             // the caller's; null: none
  LeaseHolder holder = {};                            // of the lease under which they are stored
};

// Copies the keys from whichever tier they are in. All of them are held until the end.
// unknown_key where the cache lacks one; impossible for another shape; out_of_range for a block
// that the agent lacks; state_conflict for one that is named twice; unknown_agent; queue_full;
// lease_quota.
Result<TransferId> load_to_agent(AgentCopyRequest request, std::shared_ptr<AgentCounters> counters);
// Copies the blocks into slots and commits them under their keys, once every byte is there; a key
// that is there already counts as done, and is held until the end. As load_to_agent(), but for
// unknown_key; unknown_tier; what an allocation refuses is told by the transfer.
Result<TransferId> store_from_agent(AgentStoreRequest request,
                                    std::shared_ptr<AgentCounters> counters);

// What both have: a transfer, and what of it failed.
class AgentCopy {
 public:
  AgentCopy(const AgentCopyRequest& request, AgentCounters::Direction& counts,
            std::shared_ptr<AgentCounters> counters);
  virtual ~AgentCopy();
  AgentCopy(const AgentCopy&) = delete;
  AgentCopy& operator=(const AgentCopy&) = delete;

  TransferId id() const {
    MutexLock lock(mutex_);
    return id_;
  }
  // What has not begun ends as cancelled.
  void cancel();

 protected:
  Result<> check() const;
  // The agent's memory stays mapped from here on, and knows what copies from it or to it.
  Result<> take_on(const std::shared_ptr<AgentCopy>& self);
  // The transfer begins: from here on it ends by finish().
  Result<> open();
  // It is cancelled with this.
  void follow(std::shared_ptr<LayerCopy> copy);
  void progressed(std::uint64_t layers);
  // Tells the end. Nothing is held for it any more but the agent's memory, which is let go here.
  struct End {
    std::uint64_t done_blocks = 0;
    std::uint64_t copied_blocks = 0;  // of those, the ones that were not there before
    std::vector<TransferStatus::Failure> failures = {};
  };
  void finish(End end);
  TransferTable& transfers() const { return core_->services->transfers; }

  const std::shared_ptr<CacheCore> core_;
  const std::shared_ptr<Agent> agent_;
  const std::vector<BlockKey> keys_;
  const std::vector<std::uint32_t> blocks_;

 private:
  const std::shared_ptr<AgentCounters> counters_;
  AgentCounters::Direction& counts_;
  Agent::Use use_;
  mutable Mutex mutex_;
  TransferId id_ CAIRN_GUARDED_BY(mutex_){};
  bool cancelled_ CAIRN_GUARDED_BY(mutex_) = false;
  bool finished_ CAIRN_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<LayerCopy>> parts_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
