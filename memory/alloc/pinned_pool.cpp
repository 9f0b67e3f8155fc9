#include "memory/alloc/pinned_pool.hpp"

#include <algorithm>
#include <future>
#include <string>

#include "base/assert.hpp"

namespace cairn {

PinnedPool::PinnedPool(DeviceRuntime& runtime, Options options)
    : runtime_(runtime), options_(options) {}

PinnedPool::~PinnedPool() {
  MutexLock lock(mutex_);
  CAIRN_ASSERT(lent_ == 0, "bounce memory would be freed under a copy");
}

PinnedPool::Slot::~Slot() {
  if (!region_.empty()) pool_->give_back(std::move(region_));
}

// After the callback this object may be destroyed with its last user: no other thread calls it, and
// it is the last action here.
void PinnedPool::acquire(std::uint64_t size_bytes, Done done) {
  size_bytes = std::max(size_bytes, options_.least_slot_bytes);
  std::vector<Region> dropped;  // destroyed after the lock
  std::optional<Region> granted;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) granted = grant(size_bytes, dropped);
    if (!granted && waiting_.size() < options_.max_waiting) {
      return waiting_.push_back({size_bytes, std::move(done)});
    }
  }
  if (!granted) {
    return done(Error{ErrorCode::queue_full, std::to_string(options_.max_waiting) +
                                                 " users wait for pinned memory already"});
  }
  dropped.clear();
  Result<Slot> slot = provide(std::move(*granted), size_bytes);
  if (!slot) serve();  // its room belongs to others
  done(std::move(slot));
}

Result<PinnedPool::Slot> PinnedPool::acquire(std::uint64_t size_bytes) {
  std::promise<Result<Slot>> answer;
  auto answered = answer.get_future();
  acquire(size_bytes, [&answer](Result<Slot> slot) { answer.set_value(std::move(slot)); });
  return answered.get();
}

// REQUIRES: a user of the pool exists until this returns.
void PinnedPool::serve() {
  while (true) {
    std::vector<Region> dropped;  // destroyed after the lock
    std::optional<Region> granted;
    Waiter first;
    {
      MutexLock lock(mutex_);
      if (waiting_.empty()) return;
      granted = grant(waiting_.front().size_bytes, dropped);
      if (!granted) return;
      first = std::move(waiting_.front());
      waiting_.pop_front();
    }
    dropped.clear();
    first.done(provide(std::move(*granted), first.size_bytes));
  }
}

// A kept slot, or an empty region if one of that size may be made.
std::optional<Region> PinnedPool::grant(std::uint64_t size_bytes, std::vector<Region>& dropped) {
  Region region = take_kept(size_bytes);
  if (region.empty()) {
    if (!make_room(size_bytes, dropped)) return std::nullopt;
    promised_bytes_ += size_bytes;
  } else {
    ++counts_.cache_hits;
    count_lent(region.size_bytes());
  }
  ++lent_;
  return region;
}

// Without the lock: pinning takes a millisecond per gigabyte and more.
Result<PinnedPool::Slot> PinnedPool::provide(Region granted, std::uint64_t size_bytes) {
  if (!granted.empty()) return Slot(*this, std::move(granted));
  auto made = runtime_.allocate_pinned(size_bytes, options_.placement);
  // After a device is lost nothing can be pinned; for disks and for working devices other memory is
  // good enough.
  if (!made && runtime_.lost()) made = Region::system(size_bytes);
  MutexLock lock(mutex_);
  promised_bytes_ -= size_bytes;
  if (!made) {
    --lent_;
    return std::move(made).error();
  }
  ++counts_.cache_misses;
  counts_.reserved_bytes += made->size_bytes();
  counts_.peak_reserved_bytes = std::max(counts_.peak_reserved_bytes, counts_.reserved_bytes);
  count_lent(made->size_bytes());
  return Slot(*this, std::move(*made));
}

void PinnedPool::count_lent(std::uint64_t size_bytes) {
  counts_.allocated_bytes += size_bytes;
  counts_.peak_allocated_bytes = std::max(counts_.peak_allocated_bytes, counts_.allocated_bytes);
}

// The smallest slot that is large enough; an empty region if there is none.
Region PinnedPool::take_kept(std::uint64_t size_bytes) {
  auto best = kept_.end();
  for (auto slot = kept_.begin(); slot != kept_.end(); ++slot) {
    if (slot->size_bytes() < size_bytes) continue;
    if (best == kept_.end() || slot->size_bytes() < best->size_bytes()) best = slot;
  }
  if (best == kept_.end()) return {};
  std::swap(*best, kept_.back());
  Region region = std::move(kept_.back());
  kept_.pop_back();
  return region;
}

// Returns true if a slot of that size is possible within the limit; frees slots that are too small
// if that makes room.
bool PinnedPool::make_room(std::uint64_t size_bytes, std::vector<Region>& dropped) {
  const auto fits = [&] {
    const std::uint64_t held_bytes = counts_.reserved_bytes + promised_bytes_;
    return size_bytes <= options_.limit_bytes && held_bytes <= options_.limit_bytes - size_bytes;
  };
  while (!fits() && !kept_.empty()) {
    counts_.reserved_bytes -= kept_.back().size_bytes();
    dropped.push_back(std::move(kept_.back()));
    kept_.pop_back();
  }
  return fits() || lent_ < options_.min_lent;
}

void PinnedPool::give_back(Region region) {
  Region beyond;  // destroyed after the lock
  bool somebody_waits = false;
  {
    MutexLock lock(mutex_);
    --lent_;
    ++counts_.frees;
    counts_.allocated_bytes -= region.size_bytes();
    // A slot that was allocated above the limit is not kept.
    if (counts_.reserved_bytes > options_.limit_bytes) {
      counts_.reserved_bytes -= region.size_bytes();
      beyond = std::move(region);
    } else {
      kept_.push_back(std::move(region));
    }
    somebody_waits = !waiting_.empty();
  }
  if (somebody_waits) serve();
}

void PinnedPool::trim() {
  std::vector<Region> unused;  // destroyed after the lock
  MutexLock lock(mutex_);
  unused.swap(kept_);
  for (const Region& slot : unused) counts_.reserved_bytes -= slot.size_bytes();
}

AllocatorStatistics PinnedPool::statistics() const {
  MutexLock lock(mutex_);
  AllocatorStatistics now = counts_;
  now.limit_bytes = options_.limit_bytes;
  now.allocations = now.cache_hits + now.cache_misses;
  now.cached_bytes = now.reserved_bytes - now.allocated_bytes;
  for (const Region& slot : kept_) {
    now.largest_free_bytes = std::max(now.largest_free_bytes, slot.size_bytes());
  }
  return now;
}

}  // namespace cairn
