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

// Pinned bounce buffers: allocated by the runtime at first need and kept for the next user, because
// pinning costs more than a copy. If all are in use, requests are served in order as buffers come
// back. After a device is lost, new ones are system memory. Thread-safe.
class alignas(kCacheLineBytes) PinnedPool {
 public:
  struct Options {
    std::uint64_t limit_bytes = 0;  // of all slots, in use and kept
    // Slots have at least this size, so that users of different shapes can share them.
    std::uint64_t least_slot_bytes = 1ull << 20;
    // This many are given out whatever their size and the limit. With one, a user that keeps a slot
    // larger than the limit would stop all others.
    std::uint32_t min_lent = 1;
    // With more waiting requests the service is overloaded, and an error is better than a longer
    // wait.
    std::size_t max_waiting = 1024;
    DeviceRuntime::PinnedOptions placement = {};
  };
  // Borrows the runtime, which must outlive it.
  PinnedPool(DeviceRuntime& runtime, Options options);
  // REQUIRES: every slot has come back, so no request waits.
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Memory of one user; the destructor returns it, on any thread. Holds the last user's bytes,
  // aligned to 4 KiB. Move-only.
  class Slot {
   public:
    Slot(Slot&& other) noexcept = default;
    Slot& operator=(Slot&&) = delete;
    ~Slot();
    std::byte* data() const { return region_.data(); }
    RegionView view() const { return region_.view(); }  // at least the requested size

   private:
    friend class PinnedPool;
    Slot(PinnedPool& pool, Region region) : pool_(&pool), region_(std::move(region)) {}
    PinnedPool* pool_;
    Region region_;
  };

  using Done = UniqueFunction<void(Result<Slot>)>;
  // Responds now, or when a slot comes back, on the thread that returned it. If a slot is larger
  // than the limit, `min_lent` can be in use at a time. queue_full: too many wait; the runtime's
  // error if it has no memory.
  void acquire(std::uint64_t size_bytes, Done done);
  // The same, and waits for the result. A thread that holds a slot must not wait for another one:
  // two such threads could wait for each other.
  Result<Slot> acquire(std::uint64_t size_bytes);

  // Frees the slots that are kept for the next user.
  void trim();

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
  std::uint64_t lent_ CAIRN_GUARDED_BY(mutex_) = 0;            // slots, including those being made
  std::uint64_t promised_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;  // of slots being made
  AllocatorStatistics counts_ CAIRN_GUARDED_BY(mutex_);
};

static_assert(has_lines_of_its_own<PinnedPool>);

}  // namespace cairn
