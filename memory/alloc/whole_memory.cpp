#include "memory/alloc/whole_memory.hpp"

#include <atomic>
#include <new>
#include <utility>

#include "memory/exported_memory.hpp"

namespace cairn {

class WholeMemory::Backing final : public RegionBacking {
 public:
  Backing(std::shared_ptr<WholeMemory> owner, Region region, const Kind& kind)
      : owner_(std::move(owner)), region_(std::move(region)), kind_(kind) {}
  ~Backing() override { owner_->take_back(region_, kind_, may_stay_); }
  Result<ExportedMemory> share(const Region&) const override {
    may_stay_ = false;
    return region_.share();
  }
  Result<bool> let_go(std::span<const RegionView::Part> parts) override {
    may_stay_ = false;
    return region_.let_go(parts);
  }

 private:
  const std::shared_ptr<WholeMemory> owner_;
  Region region_;
  const Kind kind_;
  mutable std::atomic<bool> may_stay_{true};
};

Region WholeMemory::lend(const std::shared_ptr<WholeMemory>& self, Region region,
                         const Kind& kind) {
  const Region::Parts parts{.kind = region.kind(),
                            .device_id = region.device_id(),
                            .fd = region.shared_fd(),
                            .data = region.data(),
                            .size_bytes = region.size_bytes()};
  auto backing = std::make_unique<Backing>(self, std::move(region), kind);
  {
    MutexLock lock(self->mutex_);
    ++self->used_;
    self->used_bytes_ += kind.size_bytes;
  }
  return Region::adopt(parts, std::move(backing));
}

Region WholeMemory::take_idle(const Kind& kind) {
  MutexLock lock(mutex_);
  const auto found = idle_.find(kind);
  if (found == idle_.end()) return {};
  idle_bytes_ -= kind.size_bytes;
  return std::move(idle_.extract(found).mapped());
}

void WholeMemory::empty(bool for_good) {
  std::multimap<Kind, Region> going;  // to the driver, without the lock
  MutexLock lock(mutex_);
  going.swap(idle_);
  idle_bytes_ = 0;
  closed_ = closed_ || for_good;
}

WholeMemory::Now WholeMemory::now() const {
  MutexLock lock(mutex_);
  return {.used_bytes = used_bytes_,
          .used = used_,
          .idle_bytes = idle_bytes_,
          .idle = idle_.size(),
          .largest_idle_bytes = idle_.empty() ? 0 : idle_.rbegin()->first.size_bytes,
          .frees = frees_};
}

void WholeMemory::take_back(Region& region, const Kind& kind, bool may_stay) {
  MutexLock lock(mutex_);
  ++frees_;
  --used_;
  used_bytes_ -= kind.size_bytes;
  if (!may_stay || closed_ || kind.size_bytes > limit_bytes_ - idle_bytes_) return;
  try {
    idle_.emplace(kind, std::move(region));
    idle_bytes_ += kind.size_bytes;
  } catch (const std::bad_alloc&) {
    // Freed.
  }
}

}  // namespace cairn
