#include "transport/staging.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace cairn {

StagingPool::StagingPool(DeviceRuntime& runtime, std::uint64_t limit_bytes)
    : runtime_(runtime), limit_bytes_(limit_bytes) {}

StagingPool::~StagingPool() {
  MutexLock lock(mutex_);
  CAIRN_ASSERT(slots_in_use_ == 0, "staging memory would be freed under a copy");
}

StagingPool::Slot::~Slot() {
  if (!region_.empty()) pool_->give_back(std::move(region_));
}

Result<StagingPool::Slot> StagingPool::acquire(std::uint64_t size_bytes) {
  size_bytes = std::max(size_bytes, kLeastSlotBytes);
  MutexLock lock(mutex_);
  const std::uint64_t turn = next_turn_++;
  while (turn != turn_ || (find_free(size_bytes) == free_.end() && !make_room(size_bytes))) {
    changed_.wait(mutex_);
  }
  ++turn_;
  changed_.notify_all();
  if (auto found = find_free(size_bytes); found != free_.end()) {
    Region region = std::move(*found);
    free_.erase(found);
    ++slots_in_use_;
    return Slot(*this, std::move(region));
  }
  // Under the lock: whoever else needs a slot would have to wait for memory as well.
  auto made = runtime_.allocate_pinned(size_bytes, {});
  if (!made) return std::move(made).error();
  held_bytes_ += made->size_bytes();
  ++slots_in_use_;
  return Slot(*this, std::move(*made));
}

std::vector<Region>::iterator StagingPool::find_free(std::uint64_t size_bytes) {
  return std::ranges::find_if(free_,
                              [&](const Region& slot) { return slot.size_bytes() >= size_bytes; });
}

bool StagingPool::make_room(std::uint64_t size_bytes) {
  const auto fits = [&] {
    return size_bytes <= limit_bytes_ && held_bytes_ <= limit_bytes_ - size_bytes;
  };
  while (!fits() && !free_.empty()) {
    held_bytes_ -= free_.back().size_bytes();
    free_.pop_back();
  }
  return fits() || slots_in_use_ == 0;
}

void StagingPool::give_back(Region region) {
  MutexLock lock(mutex_);
  --slots_in_use_;
  // One that was had beyond the limit is not kept.
  if (held_bytes_ > limit_bytes_) {
    held_bytes_ -= region.size_bytes();
  } else {
    free_.push_back(std::move(region));
  }
  changed_.notify_all();
}

}  // namespace cairn
