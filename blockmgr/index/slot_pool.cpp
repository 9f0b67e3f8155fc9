#include "blockmgr/index/slot_pool.hpp"

#include <algorithm>
#include <bit>

#include "base/assert.hpp"

namespace cairn {

SlotPool::SlotPool(std::uint32_t capacity) : records_(capacity), free_(capacity), limit_(capacity) {
  CAIRN_ASSERT(capacity <= kMaxSlots, "slots would share a reference");
  counts_[static_cast<std::size_t>(SlotState::free)] = capacity;
}

void SlotPool::set_limit(std::uint32_t limit) {
  CAIRN_ASSERT(limit <= kMaxSlots, "slots would share a reference");
  if (limit > end()) {
    free_.grow(limit);
    records_.resize(limit);
  }
  for (SlotNumber slot = std::min(limit, limit_); slot < std::max(limit, limit_); ++slot) {
    const bool is_free = records_[slot].life == SlotLife::free;
    if (limit < limit_) {
      if (is_free) free_.take(slot);
      if (!is_free) ++beyond_count_;
    } else {
      if (is_free) free_.give_back(slot);
      if (!is_free) --beyond_count_;
    }
    if (is_free) counts_[static_cast<std::size_t>(SlotState::free)] += limit < limit_ ? -1u : 1u;
  }
  limit_ = limit;
}

SlotState SlotPool::state_of(const SlotRecord& record) {
  if (record.life == SlotLife::free) return SlotState::free;
  if (record.life == SlotLife::allocated) return SlotState::allocated;
  return record.pins > 0 ? SlotState::committed : SlotState::evictable;
}

std::uint64_t SlotPool::memory_bytes() const {
  return records_.size() * sizeof(SlotRecord) + free_.memory_bytes();
}

AllocatorStatistics SlotPool::statistics(std::uint64_t slot_bytes) const {
  const std::uint64_t used = capacity() - free_count();
  AllocatorStatistics now;
  now.allocated_bytes = used * slot_bytes;
  now.reserved_bytes = capacity() * slot_bytes;
  now.cached_bytes = now.reserved_bytes - now.allocated_bytes;
  now.peak_allocated_bytes = most_used_ * slot_bytes;
  now.peak_reserved_bytes = now.reserved_bytes;
  // Slots that are allocated together need not be neighbours.
  now.largest_free_bytes = now.cached_bytes;
  now.frees = frees_;
  now.allocations = frees_ + used;
  now.cache_hits = now.allocations;  // all of them were reserved with the tier
  return now;
}

void SlotPool::prefetch_neighbours(SlotNumber slot) const {
  const SlotRecord& record = records_[slot];
  if (record.place != EvictionPlace::listed) return;
  if (record.previous != kNoSlot) __builtin_prefetch(&records_[record.previous], 1);
  if (record.next != kNoSlot) __builtin_prefetch(&records_[record.next], 1);
}

SlotNumber SlotPool::take() {
  const SlotNumber slot = free_.take_lowest();
  begin_life(slot);
  return slot;
}

void SlotPool::take(SlotNumber slot, std::uint64_t generation) {
  free_.take(slot);
  records_[slot].generation = generation;
  begin_life(slot);
}

void SlotPool::begin_life(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  --counter(record);
  record.life = SlotLife::allocated;
  record.owner = kNoOwner;
  record.pins = 1;
  ++counter(record);
  most_used_ = std::max(most_used_, capacity() - free_count());
}

void SlotPool::give_back(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  CAIRN_ASSERT(record.pins == 0 && record.leases == 0, "somebody's bytes would be overwritten");
  CAIRN_ASSERT(record.place == EvictionPlace::none, "a free slot would be evicted");
  --counter(record);
  // One life, one generation: handles of this life are stale from here on.
  record = SlotRecord{.generation = record.generation + 1};
  ++frees_;
  if (slot >= limit_) {
    --beyond_count_;
    return;
  }
  ++counter(record);
  free_.give_back(slot);
}

void SlotPool::set_committed(SlotNumber slot, std::uint32_t owner) {
  SlotRecord& record = records_[slot];
  CAIRN_ASSERT(record.life == SlotLife::allocated, "a slot would have two owners");
  --counter(record);
  record.life = SlotLife::committed;
  record.owner = owner;
  ++counter(record);
}

void SlotPool::pin(SlotNumber slot) {
  pin_in_place(slot);
  unlist(slot);
}

void SlotPool::pin_in_place(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  if (record.pins++ > 0 || record.life != SlotLife::committed) return;
  --counts_[static_cast<std::size_t>(SlotState::evictable)];
  ++counts_[static_cast<std::size_t>(SlotState::committed)];
}

bool SlotPool::unpin(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  CAIRN_ASSERT(record.pins > record.leases, "a pin given back twice frees somebody's block");
  if (--record.pins > 0) return false;
  if (record.life == SlotLife::committed) {
    --counts_[static_cast<std::size_t>(SlotState::committed)];
    ++counts_[static_cast<std::size_t>(SlotState::evictable)];
  }
  return true;
}

void SlotPool::add_lease(SlotNumber slot) {
  if (records_[slot].leases++ == 0) ++leased_count_;
}

void SlotPool::remove_lease(SlotNumber slot) {
  CAIRN_ASSERT(records_[slot].leases > 0, "a lease given back twice frees somebody's block");
  if (--records_[slot].leases == 0) --leased_count_;
}

void SlotPool::list_last(SlotNumber slot) { insert_before(slot, kNoSlot); }

void SlotPool::list_first(SlotNumber slot, UseStamp latest) {
  const SlotNumber first = lists_[records_[slot].priority].first;
  if (first != kNoSlot) latest = std::min(latest, UseStamp{records_[first].last_use.value - 1});
  records_[slot].last_use = latest;
  insert_before(slot, first);
}

void SlotPool::list_by_use(SlotNumber slot) {
  const SlotRecord& record = records_[slot];
  SlotNumber next = lists_[record.priority].first;
  while (next != kNoSlot && records_[next].last_use < record.last_use) next = records_[next].next;
  insert_before(slot, next);
}

void SlotPool::insert_before(SlotNumber slot, SlotNumber next) {
  SlotRecord& record = records_[slot];
  List& list = lists_[record.priority];
  record.place = EvictionPlace::listed;
  record.next = next;
  record.previous = next == kNoSlot ? list.last : records_[next].previous;
  (record.previous == kNoSlot ? list.first : records_[record.previous].next) = slot;
  (next == kNoSlot ? list.last : records_[next].previous) = slot;
  non_empty_lists_[record.priority / 64] |= std::uint64_t{1} << (record.priority % 64);
}

void SlotPool::unlist(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  if (record.place == EvictionPlace::listed) {
    List& list = lists_[record.priority];
    (record.previous == kNoSlot ? list.first : records_[record.previous].next) = record.next;
    (record.next == kNoSlot ? list.last : records_[record.next].previous) = record.previous;
    if (list.first == kNoSlot) {
      non_empty_lists_[record.priority / 64] &= ~(std::uint64_t{1} << (record.priority % 64));
    }
  }
  record.place = EvictionPlace::none;
}

void SlotPool::hand_place_over(SlotNumber from, SlotNumber to) {
  if (records_[from].place == EvictionPlace::listed) {
    insert_before(to, from);
  } else {
    records_[to].place = records_[from].place;
  }
  unlist(from);
}

void SlotPool::park(SlotNumber slot) {
  unlist(slot);
  records_[slot].place = EvictionPlace::parked;
}

SlotNumber SlotPool::next_to_go() const {
  for (std::size_t word = 0; word < non_empty_lists_.size(); ++word) {
    if (non_empty_lists_[word] == 0) continue;
    const auto bit = static_cast<std::size_t>(std::countr_zero(non_empty_lists_[word]));
    return lists_[word * 64 + bit].first;
  }
  return kNoSlot;
}

}  // namespace cairn
