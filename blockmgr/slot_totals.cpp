#include "blockmgr/slot_totals.hpp"

#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Bytes per slot of the tier's memory.
std::uint64_t slot_bytes(const BlockLayout& layout) {
  std::uint64_t bytes = 0;
  for (const RegionView& region : layout.regions()) bytes += region.size_bytes();
  return bytes / layout.config().num_blocks;
}

std::string device_of(const BlockLayout& layout) {
  switch (layout.storage_kind()) {
    case StorageKind::device:
    case StorageKind::unified:
      return std::to_string(layout.device_id());
    case StorageKind::disk:
      return "disk";
    case StorageKind::system:
    case StorageKind::pinned:
      return "host";
  }
  invariant_broken("StorageKind", "a value outside the enumeration");
}

}  // namespace

void reset_slot_peaks(CacheCore& core, int device_id) {
  CacheLock locked(core, LockUse::upkeep);
  for (Tier tier : kTiers) {
    if (!core.spaces[index_of(tier)]) continue;
    if (device_of(core.slots(tier)) != std::to_string(device_id)) continue;
    locked->store.pool(tier).reset_peak();
  }
}

void SlotTotals::add(CacheCore& core) {
  CacheLock locked(core, LockUse::look);
  for (Tier tier : kTiers) {
    if (!core.spaces[index_of(tier)]) continue;
    const BlockLayout& layout = core.slots(tier);
    AllocatorStatistics& all = by_device_[device_of(layout)];
    const AllocatorStatistics one = locked->store.pool(tier).statistics(slot_bytes(layout));
    all.allocated_bytes += one.allocated_bytes;
    all.cached_bytes += one.cached_bytes;
    all.reserved_bytes += one.reserved_bytes;
    all.peak_allocated_bytes += one.peak_allocated_bytes;
    all.peak_reserved_bytes += one.peak_reserved_bytes;
    ++all.segments;
    all.largest_free_bytes = std::max(all.largest_free_bytes, one.largest_free_bytes);
    all.allocations += one.allocations;
    all.frees += one.frees;
  }
}

void SlotTotals::retire(CacheCore& core) {
  SlotTotals going;
  going.add(core);
  for (const auto& [device, gone] : going.by_device_) {
    AllocatorStatistics& all = by_device_[device];
    all.allocations += gone.allocations;
    all.frees += gone.allocations;  // those in use are freed with the cache
  }
}

std::vector<NamedAllocator> SlotTotals::named() const {
  std::vector<NamedAllocator> all;
  for (const auto& [device, now] : by_device_) {
    all.push_back({.allocator = "slots", .device = device, .now = now, .from_others = true});
  }
  return all;
}

}  // namespace cairn
