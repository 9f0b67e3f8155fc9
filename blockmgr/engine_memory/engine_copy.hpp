#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/engine_memory/engine_memory.hpp"
#include "blockmgr/engine_memory/layer_copy.hpp"

namespace cairn {

// A copy of a cache's blocks to an agent's memory, or back.
struct EngineCopyRequest {
  std::shared_ptr<Cache> cache = {};
  std::shared_ptr<EngineMemory> memory = {};
  std::vector<BlockKey> keys = {};
  std::vector<std::uint32_t> blocks = {};  // the agent's block numbers, one per key
  std::shared_ptr<LeaseQuota> pins = {};   // counts the blocks as pinned meanwhile; null: none
  // The agent's blocks are this part of the cache's blocks.
  std::optional<ShardSelector> shard = {};
};
struct EngineStoreRequest : EngineCopyRequest {
  std::vector<std::optional<BlockKey>> parents = {};  // one per key
  std::optional<Tier> tier = {};                      // nullopt: the cache's highest
  std::shared_ptr<BlockQuota> quota = {};             // the caller's; null: none
  LeaseHolder holder = {};  // of the lease under which the blocks are stored
};

// Copies the keys' blocks to the agent, from whichever tier they are in. All are pinned until the
// end. Errors: unknown_key if the cache lacks one; impossible for another shape, or for a shard
// that the cache's blocks do not have; out_of_range for a block that the agent does not have;
// state_conflict for a block named twice; unknown_agent; queue_full; lease_quota.
Result<TransferId> load_to_engine(EngineCopyRequest request,
                                  std::shared_ptr<EngineMemoryCounters> counters);
// Copies the agent's blocks into slots, and commits them under their keys once all bytes have
// arrived. A key that is already stored counts as done and is pinned until the end. Errors: those
// of load_to_engine() except unknown_key; unknown_tier. The transfer reports failed allocations.
Result<TransferId> store_from_engine(EngineStoreRequest request,
                                     std::shared_ptr<EngineMemoryCounters> counters);

// The common part of both: a transfer and its failures.
class EngineCopy {
 public:
  EngineCopy(const EngineCopyRequest& request, EngineMemoryCounters::Direction& counts,
             std::shared_ptr<EngineMemoryCounters> counters);
  virtual ~EngineCopy();
  EngineCopy(const EngineCopy&) = delete;
  EngineCopy& operator=(const EngineCopy&) = delete;

  TransferId id() const {
    MutexLock lock(mutex_);
    return id_;
  }
  // Ends what has not started as cancelled.
  void cancel();

 protected:
  Result<> check() const;
  // Keeps the agent's memory mapped from now on, and registers this copy with the agent.
  Result<> take_on(const std::shared_ptr<EngineCopy>& self);
  // Begins the transfer; from now on it must end with finish().
  Result<> open();
  // From now on cancel() cancels `copy` too.
  void follow(std::shared_ptr<LayerCopy> copy);
  void progressed(std::uint64_t layers);
  // Reports the end and releases the agent's memory. REQUIRES: nothing else is held for the copy.
  struct End {
    std::uint64_t done_blocks = 0;
    std::uint64_t copied_blocks = 0;  // the part of done_blocks that was not stored before
    std::vector<TransferStatus::Failure> failures = {};
  };
  void finish(End end);
  TransferTable& transfers() const { return core_->services->transfers; }
  // Of all keys: an agent's blocks have one shape.
  KvGroupNumber kv_group() const { return keys_.empty() ? KvGroupNumber{0} : keys_[0].kv_group(); }

  const std::shared_ptr<CacheCore> core_;
  const std::shared_ptr<EngineMemory> memory_;
  const std::vector<BlockKey> keys_;
  const std::vector<std::uint32_t> blocks_;
  const BlockPart part_;
  // The cache's blocks in a tier, or the shard of them. REQUIRES: check(); for a shard, a tier in
  // memory.
  const BlockLayout& blocks_in(Tier tier);

 private:
  std::map<Tier, BlockLayout> part_layouts_;

  const std::shared_ptr<EngineMemoryCounters> counters_;
  EngineMemoryCounters::Direction& counts_;
  EngineMemory::Use use_;
  mutable Mutex mutex_;
  TransferId id_ CAIRN_GUARDED_BY(mutex_){};
  bool cancelled_ CAIRN_GUARDED_BY(mutex_) = false;
  bool finished_ CAIRN_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<LayerCopy>> parts_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
