#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/done.hpp"
#include "base/mutex.hpp"
#include "blockmgr/index/types.hpp"
#include "layouts/block_layout.hpp"
#include "memory/alloc/pinned_pool.hpp"
#include "memory/device_runtime.hpp"

namespace cairn {

// Lends blocks of pinned memory in a cache's canonical order. Client bytes pass through them into
// and out of tiers that the CPU cannot reach. Thread-safe.
class CanonicalStaging {
 public:
  // Borrows both, which must outlive it and its blocks. `shapes`: of the blocks of each KV group;
  // num_blocks is ignored.
  CanonicalStaging(DeviceRuntime& runtime, PinnedPool& pool, std::vector<LayoutConfig> shapes);

  // A borrowed block, the only one of its layout. The destructor returns it, on any thread.
  class Block {
   public:
    std::byte* data() const { return slot_.data(); }
    const BlockLayout& layout() const { return layout_; }

   private:
    friend class CanonicalStaging;
    Block(PinnedPool::Slot slot, BlockLayout layout)
        : slot_(std::move(slot)), layout_(std::move(layout)) {}
    PinnedPool::Slot slot_;
    BlockLayout layout_;
  };

  // Calls `done` at once, or when a block is returned, on the thread that returned it. Errors:
  // queue_full; those of the allocation.
  void acquire(KvGroupNumber kv_group, Done<Block> done);

  // Returns a block of zeros, the only one of its layout; allocated on the first call. Errors:
  // those of the allocation.
  Result<const BlockLayout*> zeros(KvGroupNumber kv_group);

 private:
  DeviceRuntime& runtime_;
  PinnedPool& pool_;
  std::vector<LayoutConfig> shapes_;  // of one block each
  Mutex mutex_;
  std::vector<std::optional<BlockLayout>> zeros_ CAIRN_GUARDED_BY(mutex_);  // by group
};

}  // namespace cairn
