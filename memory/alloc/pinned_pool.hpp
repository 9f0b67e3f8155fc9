#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/cache_line.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "memory/alloc/statistics.hpp"
#include "memory/device_runtime.hpp"

namespace cairn {

// Pinned bounce buffers: got from the runtime when they are first needed and kept for the next
// user, since pinning costs more than a copy. Who comes when all is lent is served in turn, as
// buffers come back. Once a device is lost new ones are system memory. Thread-safe.
class alignas(kCacheLineBytes) PinnedPool {
 public:
  struct Options {
    std::uint64_t limit_bytes = 0;  // of all slots, lent and kept
    // Slots are of at least this size, so that users of different shapes can share them.
    std::uint64_t least_slot_bytes = 1ull << 20;
    // So many are lent whatever their size and the limit: with one, who is slow to give back a slot
    // larger than the limit would stop all others.
    std::uint32_t min_lent = 1;
    // Beyond so many the service is overloaded, and saying so is better than a longer wait.
    std::size_t max_waiting = 1024;
    DeviceRuntime::PinnedOptions placement = {};
  };
  // Borrows the runtime, which must outlive it.
  PinnedPool(DeviceRuntime& runtime, Options options);
  // REQUIRES: every slot has come back, so nobody waits.
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Memory of one user, given back when it goes, on any thread. Its bytes are what the last user
  // left, aligned to 4 KiB. Move-only.
  class Slot {
   public:
    Slot(Slot&& other) noexcept = default;
    Slot& operator=(Slot&&) = delete;
    ~Slot();
    std::byte* data() const { return region_.data(); }
    RegionView view() const { return region_.view(); }  // as large as was asked for, at least

   private:
    friend class PinnedPool;
    Slot(PinnedPool& pool, Region region) : pool_(&pool), region_(std::move(region)) {}
    PinnedPool* pool_;
    Region region_;
  };

  using Done = UniqueFunction<void(Result<Slot>)>;
  // Answers now, or when a slot comes back, on the thread that gave it back. Where a slot is
  // larger than the limit, `min_lent` are had at a time. queue_full: too many wait; the runtime's
  // error where it gives no memory.
  void acquire(std::uint64_t size_bytes, Done done);
  // The same, and waits for the answer. A thread that holds a slot must not wait for another one:
  // two such could wait for each other.
  Result<Slot> acquire(std::uint64_t size_bytes);

  AllocatorStatistics statistics() const;

 private:
  struct Waiter {
    std::uint64_t size_bytes = 0;
    Done done = {};
  };
  void serve();
  void give_back(Region region);
  std::optional<Region> grant(std::uint64_t size_bytes, std::vector<Region>& dropped)
      CAIRN_REQUIRES(mutex_);
  Result<Slot> provide(Region granted, std::uint64_t size_bytes);
  Region take_kept(std::uint64_t size_bytes) CAIRN_REQUIRES(mutex_);
  bool make_room(std::uint64_t size_bytes, std::vector<Region>& dropped) CAIRN_REQUIRES(mutex_);
  void count_lent(std::uint64_t size_bytes) CAIRN_REQUIRES(mutex_);

  DeviceRuntime& runtime_;
  const Options options_;
  mutable Mutex mutex_;
  std::vector<Region> kept_ CAIRN_GUARDED_BY(mutex_);
  std::deque<Waiter> waiting_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t lent_ CAIRN_GUARDED_BY(mutex_) = 0;            // slots, those to come included
  std::uint64_t promised_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;  // of slots to come
  AllocatorStatistics counts_ CAIRN_GUARDED_BY(mutex_);
};

static_assert(has_lines_of_its_own<PinnedPool>);

}  // namespace cairn
