#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "memory/device_runtime.hpp"

namespace cairn {

// Pinned bounce memory, got from the runtime when it is first needed and kept for the next user.
// Thread-safe. A thread holds at most one slot at a time, or two could wait for each other.
class StagingPool {
 public:
  // Slots are of at least this size, so that jobs of different shapes can share them.
  static constexpr std::uint64_t kLeastSlotBytes = 1ull << 20;

  StagingPool(DeviceRuntime& runtime, std::uint64_t limit_bytes);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // Memory of one user, given back when it goes. Move-only; must not outlive the pool.
  class Slot {
   public:
    Slot(Slot&& other) noexcept = default;
    Slot& operator=(Slot&&) = delete;
    ~Slot();
    RegionView view() const { return region_.view(); }

   private:
    friend class StagingPool;
    Slot(StagingPool& pool, Region region) : pool_(&pool), region_(std::move(region)) {}
    StagingPool* pool_;
    Region region_;
  };

  // A slot of `size_bytes` at least. Waits in turn while others hold what the limit allows; a slot
  // larger than the limit is had alone. The runtime's error where it gives no memory.
  Result<Slot> acquire(std::uint64_t size_bytes);

 private:
  void give_back(Region region);
  // True where a slot of that size can be had without passing the limit; lets go of slots that are
  // too small to be of use where that makes room.
  bool make_room(std::uint64_t size_bytes) CAIRN_REQUIRES(mutex_);
  std::vector<Region>::iterator find_free(std::uint64_t size_bytes) CAIRN_REQUIRES(mutex_);

  DeviceRuntime& runtime_;
  const std::uint64_t limit_bytes_;
  Mutex mutex_;
  Condition changed_;
  std::vector<Region> free_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t held_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;  // free and in use
  std::uint64_t slots_in_use_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_turn_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t turn_ CAIRN_GUARDED_BY(mutex_) = 0;  // of the waiter that is served next
};

}  // namespace cairn
