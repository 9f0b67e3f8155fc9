#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/mutex.hpp"
#include "blockmgr/cache/cache.hpp"
#include "memory/alloc/pinned_pool.hpp"
#include "memory/device_runtime.hpp"

namespace cairn {

// Blocks of pinned memory in a cache's canonical order, lent one by one: the way of a client's
// bytes into and out of tiers that the CPU does not reach. Thread-safe.
class CanonicalStaging {
 public:
  // Borrows both, which must outlive it and its blocks. `shape`: of the cache, num_blocks aside.
  CanonicalStaging(DeviceRuntime& runtime, PinnedPool& pool, const LayoutConfig& shape);

  // A block on loan, the only one of its layout; goes back when destroyed, on any thread.
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

  // Answers now, or when a block comes back, on the thread that gave it back. queue_full; what the
  // allocation answers.
  void acquire(Done<Block> done);

  // A block that is never lent and is all zeros, the only one of its layout; made at the first
  // call. What the allocation answers.
  Result<const BlockLayout*> zeros();

 private:
  DeviceRuntime& runtime_;
  PinnedPool& pool_;
  const LayoutConfig shape_;
  Mutex mutex_;
  std::optional<BlockLayout> zeros_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
