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

void PinnedPool::acquire(std::uint64_t size_bytes, Done done) {
  bool queued = false;
  {
    MutexLock lock(mutex_);
    queued = waiting_.size() < options_.max_waiting;
    if (queued) {
      waiting_.push_back({std::max(size_bytes, options_.least_slot_bytes), std::move(done)});
    }
  }
  if (!queued) {
    done(Error{ErrorCode::queue_full,
               std::to_string(options_.max_waiting) + " users wait for pinned memory already"});
    return;
  }
  serve();
}

Result<PinnedPool::Slot> PinnedPool::acquire(std::uint64_t size_bytes) {
  std::promise<Result<Slot>> answer;
  auto answered = answer.get_future();
  acquire(size_bytes, [&answer](Result<Slot> slot) { answer.set_value(std::move(slot)); });
  return answered.get();
}

void PinnedPool::serve() {
  while (serve_one()) {
  }
}

// Serves the first in the queue; false where it has to wait or nobody else does. After the answer
// the pool is not touched unless somebody waits: it may be gone with its last user.
bool PinnedPool::serve_one() {
  std::vector<Region> dropped;  // goes after the lock
  bool others_wait = false;
  Done done;
  Region region;
  std::uint64_t size_bytes = 0;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) return false;
    size_bytes = waiting_.front().size_bytes;
    region = take_kept(size_bytes);
    if (region.empty()) {
      if (!make_room(size_bytes, dropped)) return false;
      promised_bytes_ += size_bytes;
    } else {
      ++counts_.cache_hits;
      count_lent(region.size_bytes());
    }
    ++lent_;
    done = std::move(waiting_.front().done);
    waiting_.pop_front();
    others_wait = !waiting_.empty();
  }
  if (!region.empty()) {
    done(Slot(*this, std::move(region)));
    return others_wait;
  }
  dropped.clear();
  // Without the lock: pinning takes a millisecond a gigabyte and more.
  auto made = runtime_.allocate_pinned(size_bytes, options_.placement);
  // With a lost device nothing can be pinned any more; for disks and for devices that still work
  // other memory does as well.
  if (!made && runtime_.lost()) made = Region::system(size_bytes);
  {
    MutexLock lock(mutex_);
    promised_bytes_ -= size_bytes;
    if (made) {
      ++counts_.cache_misses;
      counts_.reserved_bytes += made->size_bytes();
      counts_.peak_reserved_bytes = std::max(counts_.peak_reserved_bytes, counts_.reserved_bytes);
      count_lent(made->size_bytes());
    } else {
      --lent_;
    }
    others_wait = !waiting_.empty();
  }
  if (made) {
    done(Slot(*this, std::move(*made)));
  } else {
    done(std::move(made).error());
  }
  return others_wait;
}

void PinnedPool::count_lent(std::uint64_t size_bytes) {
  counts_.allocated_bytes += size_bytes;
  counts_.peak_allocated_bytes = std::max(counts_.peak_allocated_bytes, counts_.allocated_bytes);
}

// The smallest slot that is large enough; an empty region where there is none.
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

// True where a slot of that size can be had without passing the limit; lets go of slots that are
// too small to be of use where that makes room.
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
  Region beyond;  // goes after the lock
  bool somebody_waits = false;
  {
    MutexLock lock(mutex_);
    --lent_;
    ++counts_.frees;
    counts_.allocated_bytes -= region.size_bytes();
    // One that was had beyond the limit is not kept.
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
