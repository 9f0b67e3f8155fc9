#include "blockmgr/index/slab_map.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace cairn {
namespace {

// Slabs that one search looks at: up to 100 ns each.
constexpr std::uint32_t kLookedAtAtOnce = 256;

}  // namespace

SlabMap::SlabMap(SlotSizes sizes, std::uint32_t units) : sizes_(std::move(sizes)), empty_(0) {
  CAIRN_ASSERT(sizes_.are_several(), "slots of one size need no slabs");
  for (const std::uint32_t block_units : sizes_.block_units) {
    const auto same = std::ranges::find(by_size_, block_units, &Size::units);
    size_of_group_.push_back(static_cast<SizeNumber>(same - by_size_.begin()));
    if (same != by_size_.end()) continue;
    by_size_.push_back(
        {.units = block_units, .per_slab = sizes_.slab_units / block_units, .free = FreeBitmap(0)});
  }
  set_limit(units, [](SlotNumber) { return false; });
}

std::uint64_t SlabMap::memory_bytes() const {
  std::uint64_t bytes = slabs_.size() * sizeof(Slab) + empty_.memory_bytes();
  for (const Size& size : by_size_) bytes += size.free.memory_bytes();
  return bytes;
}

SlotNumber SlabMap::take(KvGroupNumber group) {
  const SizeNumber number = size_of_group_[group];
  Size& size = by_size_[number];
  if (size.free.free_count() == 0) give_size(empty_.lowest(), number);
  const SlotNumber slot = size.free.lowest();
  note_taken(slot);
  return slot;
}

bool SlabMap::take(SlotNumber slot, KvGroupNumber group) {
  const SizeNumber number = size_of_group_[group];
  const Size& size = by_size_[number];
  const SlabNumber slab = slab_of(slot);
  const std::uint32_t within = slot - first_of(slab);
  if (slab >= limit_ || within % size.units != 0 || within / size.units >= size.per_slab) {
    return false;
  }
  if (slabs_[slab].used == 0 && !slabs_[slab].closed) give_size(slab, number);
  if (slabs_[slab].size != number || !size.free.is_free(slot)) return false;
  note_taken(slot);
  return true;
}

std::optional<SlabMap::FreeSlot> SlabMap::free_slot_with(SlotNumber unit) const {
  const SlabNumber number = slab_of(unit);
  if (number >= limit_ || slabs_[number].closed || slabs_[number].size == kNoSize) {
    return std::nullopt;
  }
  const Size& size = by_size_[slabs_[number].size];
  const std::uint32_t within = (unit - first_of(number)) / size.units;
  const SlotNumber slot = first_of(number) + within * size.units;
  if (within >= size.per_slab || !size.free.is_free(slot)) return std::nullopt;
  const auto group = std::ranges::find(size_of_group_, slabs_[number].size);
  return FreeSlot{slot, static_cast<KvGroupNumber>(group - size_of_group_.begin())};
}

void SlabMap::note_taken(SlotNumber slot) {
  const SlabNumber number = slab_of(slot);
  Slab& slab = slabs_[number];
  Size& size = by_size_[slab.size];
  size.free.take(slot);
  if (slab.used++ == 0) {
    remove_empty(number);
    free_units_ -= sizes_.slab_units - size.per_slab * size.units;
  }
  free_units_ -= size.units;
}

void SlabMap::give_back(SlotNumber slot, KvGroupNumber group) {
  const SlabNumber number = slab_of(slot);
  Slab& slab = slabs_[number];
  CAIRN_ASSERT(slab.used > 0 && slab.size == size_of_group_[group],
               "the slab's next blocks would overlap");
  --slab.used;
  if (slab.closed) {
    if (slab.used == 0 && number < limit_) show(number, [](SlotNumber) { return false; });
    return;
  }
  Size& size = by_size_[slab.size];
  size.free.give_back(slot);
  free_units_ += size.units;
  if (slab.used > 0) return;
  add_empty(number);
  free_units_ += sizes_.slab_units - size.per_slab * size.units;
}

void SlabMap::give_size(SlabNumber slab, SizeNumber size) {
  CAIRN_ASSERT(slabs_[slab].used == 0, "blocks of two sizes would overlap");
  if (slabs_[slab].size == size) return;
  remove_empty(slab);
  if (slabs_[slab].size != kNoSize) {
    take_free_slots(slab);
    ++slabs_moved_;
  }
  slabs_[slab].size = size;
  add_empty(slab);
  Size& to = by_size_[size];
  for (std::uint32_t i = 0; i < to.per_slab; ++i) to.free.give_back(first_of(slab) + i * to.units);
}

void SlabMap::add_empty(SlabNumber slab) {
  empty_.give_back(slab);
  if (slabs_[slab].size != kNoSize) ++by_size_[slabs_[slab].size].empty;
}

void SlabMap::remove_empty(SlabNumber slab) {
  empty_.take(slab);
  if (slabs_[slab].size != kNoSize) --by_size_[slabs_[slab].size].empty;
}

void SlabMap::take_free_slots(SlabNumber slab) {
  Size& size = by_size_[slabs_[slab].size];
  for (std::uint32_t i = 0; i < size.per_slab; ++i) {
    const SlotNumber slot = first_of(slab) + i * size.units;
    if (size.free.is_free(slot)) size.free.take(slot);
  }
}

void SlabMap::set_limit(std::uint32_t units, const IsInUse& is_in_use) {
  CAIRN_ASSERT(units % sizes_.slab_units == 0, "a block would lie beyond the tier's end");
  const SlabNumber limit = units / sizes_.slab_units;
  if (limit > slabs_.size()) {
    empty_.grow(limit);
    for (Size& size : by_size_) size.free.grow(units);
    slabs_.resize(limit, {.closed = true});
  }
  for (SlabNumber slab = limit; slab < limit_; ++slab) hide(slab);
  for (SlabNumber slab = limit_; slab < limit; ++slab) show(slab, is_in_use);
  limit_ = limit;
}

void SlabMap::hide(SlabNumber number) {
  Slab& slab = slabs_[number];
  if (slab.closed) return;
  if (slab.used == 0) {
    remove_empty(number);
    free_units_ -= sizes_.slab_units;
  } else {
    free_units_ -= free_units_of(slab);
  }
  if (slab.size != kNoSize) take_free_slots(number);
  slab.closed = true;
}

void SlabMap::show(SlabNumber number, const IsInUse& is_in_use) {
  Slab& slab = slabs_[number];
  slab.closed = false;
  if (slab.size != kNoSize) {
    Size& size = by_size_[slab.size];
    for (std::uint32_t i = 0; i < size.per_slab; ++i) {
      const SlotNumber slot = first_of(number) + i * size.units;
      if (slab.used == 0 || !is_in_use(slot)) size.free.give_back(slot);
    }
  }
  if (slab.used == 0) {
    add_empty(number);
    free_units_ += sizes_.slab_units;
  } else {
    free_units_ += free_units_of(slab);
  }
}

void SlabMap::reopen(SlabNumber slab, const IsInUse& is_in_use) {
  if (slab < limit_ && slabs_[slab].closed) show(slab, is_in_use);
}

std::vector<SlotNumber> SlabMap::used_slots(SlabNumber slab, const IsInUse& is_in_use) const {
  std::vector<SlotNumber> used;
  if (slabs_[slab].used == 0) return used;
  const Size& size = by_size_[slabs_[slab].size];
  for (std::uint32_t i = 0; i < size.per_slab; ++i) {
    const SlotNumber slot = first_of(slab) + i * size.units;
    if (is_in_use(slot)) used.push_back(slot);
  }
  return used;
}

std::optional<SlabNumber> SlabMap::to_vacate(KvGroupNumber group, const IsInUse& is_in_use,
                                             const IsInUse& may_move) {
  std::optional<SlabNumber> best;
  std::uint32_t least_units = ~std::uint32_t{0};
  for (SizeNumber number = 0; number < by_size_.size(); ++number) {
    Size& size = by_size_[number];
    if (number == size_of_group_[group] || size.free.free_count() < size.per_slab) continue;
    for (std::uint32_t i = 0; i < std::min(limit_, kLookedAtAtOnce); ++i) {
      size.looked = size.looked + 1 < limit_ ? size.looked + 1 : 0;
      const Slab& slab = slabs_[size.looked];
      if (slab.size != number || slab.closed || slab.used == 0) continue;
      if (slab.used * size.units >= least_units) continue;
      if (!std::ranges::all_of(used_slots(size.looked, is_in_use), may_move)) continue;
      best = size.looked;
      least_units = slab.used * size.units;
    }
  }
  return best;
}

}  // namespace cairn
