#include "blockmgr/index/slot_pool.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "base/assert.hpp"
#include "blockmgr/eviction/lru_order.hpp"

namespace cairn {

SlotPool::SlotPool(std::uint32_t slots, const EvictionPolicy* policy, const SlotSizes& sizes,
                   const SlotContents* contents)
    : records_(slots),
      histories_(policy == nullptr ? 0 : slots),
      free_(sizes.are_several() ? 0 : slots),
      slabs_(sizes.are_several() && slots > 0 ? std::make_unique<SlabMap>(sizes, slots) : nullptr),
      room_(contents != nullptr && contents->is_sparse()
                ? std::make_unique<PageRoom>(*contents, slots)
                : nullptr),
      limit_(slots),
      policy_(policy),
      lists_(make_lists(policy)) {
  CAIRN_ASSERT(slots <= kMaxSlots, "slots would share a reference");
}

std::uint32_t SlotPool::count(SlotState state) const {
  if (state == SlotState::free) return free_count();
  std::uint32_t slots = 0;
  for (std::size_t group = 0; group < groups_; ++group) {
    slots += counts_[group][static_cast<std::size_t>(state)];
  }
  return slots;
}

std::uint32_t SlotPool::evictable_of_groups() const {
  constexpr auto kEvictable = static_cast<std::size_t>(SlotState::evictable);
  std::uint32_t units = 0;
  for (std::size_t group = 0; group < groups_; ++group) {
    units += counts_[group][kEvictable] * units_of(static_cast<KvGroupNumber>(group));
  }
  return room_ ? room_->freed_by({.units = units, .of = units_in_use()}) : units;
}

std::uint32_t SlotPool::leased_units() const {
  if (!slabs_) return leased_count();
  std::uint32_t units = 0;
  for (std::size_t group = 0; group < groups_; ++group) {
    units += leased_[group] * slabs_->units_of(static_cast<KvGroupNumber>(group));
  }
  return units;
}

std::uint32_t SlotPool::leased_count() const {
  return std::accumulate(leased_.begin(), leased_.end(), std::uint32_t{0});
}

std::uint32_t SlotPool::protected_count() const {
  return std::accumulate(protected_.begin(), protected_.end(), std::uint32_t{0});
}

std::uint32_t SlotPool::protected_units() const {
  if (!slabs_) return protected_count();
  std::uint32_t units = 0;
  for (std::size_t group = 0; group < groups_; ++group) {
    units += protected_[group] * slabs_->units_of(static_cast<KvGroupNumber>(group));
  }
  return units;
}

void SlotPool::set_prefetched(SlotNumber slot, UserNumber user) {
  if (records_[slot].prefetched) return;
  records_[slot].prefetched = true;
  prefetched_units_ += units_in(slot);
  asked_.add({slot, units_in(slot)}, user, UserUnits::prefetched);
}

void SlotPool::end_prefetched(SlotNumber slot) {
  if (!records_[slot].prefetched) return;
  records_[slot].prefetched = false;
  prefetched_units_ -= units_in(slot);
  asked_.end({slot, units_in(slot)}, UserUnits::prefetched);
}

void SlotPool::expect_prefetched(UserNumber user, std::uint64_t units) {
  prefetched_units_ += units;
  asked_.expect(user, units);
}

void SlotPool::unexpect_prefetched(UserNumber user, std::uint64_t units) {
  prefetched_units_ -= units;
  asked_.unexpect(user, units);
}

std::uint64_t SlotPool::left_of(const Share& share) const {
  const auto most = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(share.share * size()));
  return most - std::min(most, share.used_units);
}

void SlotPool::set_raised(SlotNumber slot, UserNumber user) {
  asked_.add({slot, units_in(slot)}, user, UserUnits::raised);
}

void SlotPool::set_expected(SlotNumber slot, UserNumber user) {
  if (user != 0) {
    asked_.add({slot, units_in(slot)}, user, UserUnits::hinted);
  } else if (asked_.has_any()) {
    asked_.end({slot, units_in(slot)}, UserUnits::hinted);
  }
}

void SlotPool::move_asked(SlotNumber from, SlotNumber to) {
  if (!asked_.has_any()) return;
  records_[to].prefetched = records_[from].prefetched;
  records_[from].prefetched = false;
  asked_.move(from, to);
}

void SlotPool::set_limit(std::uint32_t limit) {
  CAIRN_ASSERT(limit <= kMaxSlots, "slots would share a reference");
  const std::uint32_t old_end = end();
  if (limit > end()) {
    if (!slabs_) free_.grow(limit);
    if (policy_ != nullptr) histories_.resize(limit);
    records_.resize(limit);
  }
  if (slabs_) {
    try {
      slabs_->set_limit(limit, [this](SlotNumber slot) { return is_in_use(slot); });
    } catch (const std::bad_alloc&) {
      records_.resize(old_end);
      throw;
    }
  }
  for (SlotNumber slot = std::min(limit, limit_); slot < std::max(limit, limit_); ++slot) {
    if (is_in_use(slot)) {
      beyond_count_ += limit < limit_ ? units_in(slot) : -units_in(slot);
    } else if (!slabs_) {
      limit < limit_ ? free_.take(slot) : free_.give_back(slot);
    }
  }
  if (room_) room_->set_slots(limit, [this](SlotNumber slot) { return is_in_use(slot); });
  limit_ = limit;
}

SlotState SlotPool::state_of(const SlotRecord& record) {
  if (record.life == SlotLife::free) return SlotState::free;
  if (record.life == SlotLife::allocated) return SlotState::allocated;
  const bool stays = record.pins > 0 || record.is_protected;
  return stays ? SlotState::committed : SlotState::evictable;
}

std::uint64_t SlotPool::memory_bytes() const {
  return records_.size() * sizeof(SlotRecord) + histories_.size() * sizeof(BlockHistory) +
         free_.memory_bytes() + (slabs_ ? slabs_->memory_bytes() : 0) +
         (room_ ? room_->memory_bytes() : 0);
}

AllocatorStatistics SlotPool::statistics(std::uint64_t slot_bytes) const {
  const std::uint64_t used = capacity() - free_count();
  AllocatorStatistics now;
  now.allocated_bytes = used * slot_bytes;
  now.reserved_bytes = capacity() * slot_bytes;
  now.cached_bytes = now.reserved_bytes - now.allocated_bytes;
  now.peak_allocated_bytes = max_used_ * slot_bytes;
  now.peak_reserved_bytes = now.reserved_bytes;
  // Any free slots can be allocated together; they need not be adjacent.
  now.largest_free_bytes = now.cached_bytes;
  now.frees = frees_;
  now.allocations = frees_;
  for (const Counts& counts : counts_) {
    now.allocations += std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  }
  return now;
}

void SlotPool::prefetch_neighbours(SlotNumber slot) const {
  const SlotRecord& record = records_[slot];
  if (record.place != EvictionPlace::listed) return;
  if (record.previous != kNoSlot) __builtin_prefetch(&records_[record.previous], 1);
  if (record.next != kNoSlot) __builtin_prefetch(&records_[record.next], 1);
}

SlotNumber SlotPool::take(KvGroupNumber group) {
  SlotNumber slot = 0;
  if (slabs_) {
    slot = slabs_->take(group);
  } else {
    // A slot with pages first: they need not go back to the file system.
    slot = room_ && room_->has_kept() ? room_->first_kept() : free_.lowest();
    free_.take(slot);
  }
  begin_life(slot, group);
  return slot;
}

SlotNumber SlotPool::take_to_punch() {
  while (room_ && room_->has_kept()) {
    const SlotNumber unit = room_->first_kept();
    SlabMap::FreeSlot free{.slot = unit};
    if (slabs_) {
      const auto found = slabs_->free_slot_with(unit);
      if (!found) {
        // A block covers it that came back with a larger tier.
        room_->keep_no_more(unit);
        continue;
      }
      free = *found;
      slabs_->take(free.slot, free.kv_group);
    } else {
      free_.take(free.slot);
    }
    begin_life(free.slot, free.kv_group);
    room_->hold(free.slot);
    return free.slot;
  }
  return kNoSlot;
}

bool SlotPool::take(SlotNumber slot, KvGroupNumber group, std::uint64_t generation) {
  if (!slabs_) {
    free_.take(slot);
  } else if (!slabs_->take(slot, group)) {
    return false;
  }
  records_[slot].generation = generation & SlotRecord::kMaxGeneration;
  begin_life(slot, group);
  return true;
}

void SlotPool::begin_life(SlotNumber slot, KvGroupNumber group) {
  SlotRecord& record = records_[slot];
  record.life = SlotLife::allocated;
  record.kv_group = group & (kMaxKvGroups - 1);
  groups_ = std::max(groups_, std::size_t{group} + 1);
  record.owner = kNoOwner;
  record.pins = 1;
  ++counts_[group][static_cast<std::size_t>(SlotState::allocated)];
  if (room_) room_->take(slot, units_of(group));
  max_used_ = std::max(max_used_, capacity() - free_count());
}

void SlotPool::give_back(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  CAIRN_ASSERT(record.pins == 0 && record.leases == 0, "somebody's bytes would be overwritten");
  CAIRN_ASSERT(record.place == EvictionPlace::none, "a free slot would be evicted");
  CAIRN_ASSERT(!record.is_protected, "a pin would protect a free slot");
  end_prefetched(slot);
  if (asked_.has_any()) asked_.end({slot, units_in(slot)});
  --counter(record);
  const auto group = static_cast<KvGroupNumber>(record.kv_group);
  const bool was_written = record.life == SlotLife::committed;
  // One generation per life: handles of this life are stale from now on.
  record = SlotRecord{.generation = record.generation + 1};
  if (policy_ != nullptr) histories_[slot] = {};
  ++frees_;
  if (room_) {
    room_->give_back({.slot = slot, .units = units_of(group), .was_written = was_written});
  }
  if (slot >= limit_) beyond_count_ -= units_of(group);
  if (slabs_) {
    slabs_->give_back(slot, group);
  } else if (slot < limit_) {
    free_.give_back(slot);
  }
}

void SlotPool::protect(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  CAIRN_ASSERT(record.life == SlotLife::committed && !record.is_protected,
               "a slot would be counted twice");
  --counter(record);
  record.is_protected = true;
  ++counter(record);
  ++protected_[record.kv_group];
}

void SlotPool::unprotect(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  CAIRN_ASSERT(record.is_protected, "a pin would be given back twice");
  --counter(record);
  record.is_protected = false;
  ++counter(record);
  --protected_[record.kv_group];
}

std::optional<SlotPool::Vacating> SlotPool::begin_vacating(KvGroupNumber group) {
  const auto is_used = [this](SlotNumber slot) { return is_in_use(slot); };
  // A pinned block stays where it is: a client or a copy uses its memory.
  const auto may_move = [this](SlotNumber slot) {
    return records_[slot].life == SlotLife::committed && records_[slot].pins == 0;
  };
  const auto slab = slabs_->to_vacate(group, is_used, may_move);
  if (!slab) return std::nullopt;
  slabs_->close(*slab);
  return Vacating{.slab = *slab, .slots = slabs_->used_slots(*slab, is_used)};
}

void SlotPool::end_vacating(SlabNumber slab) {
  slabs_->reopen(slab, [this](SlotNumber slot) { return is_in_use(slot); });
}

void SlotPool::set_committed(SlotNumber slot, std::uint32_t owner) {
  SlotRecord& record = records_[slot];
  CAIRN_ASSERT(record.life == SlotLife::allocated, "a slot would have two owners");
  --counter(record);
  record.life = SlotLife::committed;
  record.owner = owner;
  ++counter(record);
  if (room_) room_->settle(slot, units_in(slot));
}

void SlotPool::pin(SlotNumber slot) {
  pin_in_place(slot);
  unlist(slot);
}

void SlotPool::list_first(SlotNumber slot, UseStamp latest) {
  const SlotNumber first = list_for(slot).first;
  if (first != kNoSlot) latest = std::min(latest, UseStamp{records_[first].last_use.value - 1});
  records_[slot].last_use = latest;
  insert_before(slot, first);
}

std::optional<std::uint64_t> SlotPool::age_in_tenths(SlotNumber slot, UseStamp now) {
  const SlotRecord& record = records_[slot];
  if (record.place != EvictionPlace::listed) return std::nullopt;
  const SlotNumber first = list_of(slot).first;
  const std::uint64_t tenth = (now.value - records_[first].last_use.value) / 10;
  return tenth == 0 ? 0 : (now.value - record.last_use.value) / tenth;
}

SlotNumber SlotPool::before(SlotNumber slot) const {
  const SlotRecord& record = records_[slot];
  return record.place == EvictionPlace::listed ? record.previous : kNoSlot;
}

void SlotPool::list_by_use(SlotNumber slot) {
  const SlotRecord& record = records_[slot];
  SlotNumber next = list_for(slot).first;
  while (next != kNoSlot && records_[next].last_use < record.last_use) next = records_[next].next;
  insert_before(slot, next);
}

void SlotPool::insert_before(SlotNumber slot, SlotNumber next) {
  SlotRecord& record = records_[slot];
  record.place = EvictionPlace::listed;
  list_of(slot).insert_before(records_, slot, next);
  note_filled(record);
}

void SlotPool::note_filled(const SlotRecord& record) {
  if (record.list == kCutOffList) return;
  lists_[record.priority].non_empty |= std::uint64_t{1} << record.list;
  non_empty_lists_[record.priority / 64] |= std::uint64_t{1} << (record.priority % 64);
}

void SlotPool::unlist(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  if (record.place == EvictionPlace::listed) {
    LinkedBlocks& list = list_of(slot);
    list.remove(records_, slot);
    if (list.empty() && record.list != kCutOffList) {
      Lists& lists = lists_[record.priority];
      lists.non_empty &= ~(std::uint64_t{1} << record.list);
      if (lists.non_empty == 0) {
        non_empty_lists_[record.priority / 64] &= ~(std::uint64_t{1} << (record.priority % 64));
      }
    }
  }
  record.place = EvictionPlace::none;
}

void SlotPool::hand_place_over(SlotNumber from, SlotNumber to) {
  if (records_[from].place == EvictionPlace::listed) {
    records_[to].list = records_[from].list;
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

SlotNumber SlotPool::next_to_go(std::int64_t unix_ms) {
  if (!cut_off_.empty()) return cut_off_.first;
  for (std::size_t word = 0; word < non_empty_lists_.size(); ++word) {
    if (non_empty_lists_[word] == 0) continue;
    const auto bit = static_cast<std::size_t>(std::countr_zero(non_empty_lists_[word]));
    const auto priority = static_cast<std::uint8_t>(word * 64 + bit);
    const Lists& lists = lists_[priority];
    if (chosen_.priority == priority) {
      const SlotNumber first = lists.by_number[chosen_.list].first;
      if (first != kNoSlot && histories_[first].request == chosen_.request) return first;
    }
    const std::uint32_t list = choose_list(lists, unix_ms);
    const SlotNumber slot = lists.by_number[list].first;
    chosen_ = {};
    if (has_history(slot)) {
      chosen_ = {priority, static_cast<std::uint8_t>(list), histories_[slot].request};
    }
    return slot;
  }
  return kNoSlot;
}

std::uint32_t SlotPool::choose_list(const Lists& lists, std::int64_t unix_ms) const {
  if (std::has_single_bit(lists.non_empty)) {
    return static_cast<std::uint32_t>(std::countr_zero(lists.non_empty));
  }
  constexpr std::uint64_t kOfUnknown = (std::uint64_t{1} << kNextUses) - 1;
  const bool all_by_use = policy_ == nullptr || follows_lru_;
  const std::uint32_t expected =
      all_by_use || (lists.non_empty & kOfUnknown) != 0 ? expected_blocks(lists) : 0;
  const auto worth_of = [&](SlotNumber first) {
    if (!all_by_use && has_history(first)) return policy_->worth(histories_[first], expected);
    return lru_worth({.next_use = records_[first].hinted,
                      .age_ms = unix_ms - records_[first].last_use.unix_ms(),
                      .expected_blocks = expected,
                      .capacity_blocks = size()});
  };
  std::uint32_t chosen = 0;
  SlotNumber chosen_slot = kNoSlot;
  float least = std::numeric_limits<float>::infinity();
  for (std::uint64_t left = lists.non_empty; left != 0; left &= left - 1) {
    const auto list = static_cast<std::uint32_t>(std::countr_zero(left));
    const SlotNumber first = lists.by_number[list].first;
    const float worth = worth_of(first);
    // Many blocks are used in the same millisecond.
    const bool is_before =
        worth == least && records_[first].last_use < records_[chosen_slot].last_use;
    if (worth >= least && !is_before) continue;
    least = worth;
    chosen = list;
    chosen_slot = first;
  }
  return chosen;
}

// An estimate: most blocks of a list have the same NextUse.
std::uint32_t SlotPool::expected_blocks(const Lists& lists) const {
  std::uint32_t blocks = 0;
  for (std::uint64_t left = lists.non_empty; left != 0; left &= left - 1) {
    const LinkedBlocks& list = lists.by_number[static_cast<std::size_t>(std::countr_zero(left))];
    if (expected_within_ms(records_[list.first].hinted) > 0) blocks += list.count;
  }
  return blocks;
}

void SlotPool::follow_lru(bool follows_lru) {
  if (std::exchange(follows_lru_, follows_lru) != follows_lru) choose_again();
}

SlotPool::PriorityLists SlotPool::make_lists(const EvictionPolicy* policy) {
  PriorityLists lists;
  const std::size_t count = policy == nullptr ? kNextUses : kNextUses + policy->kMaxLists;
  for (Lists& each : lists) each.by_number.resize(count);
  return lists;
}

SlotPool::PolicyRoom SlotPool::room_for(const EvictionPolicy* policy, std::uint32_t end) {
  PolicyRoom room{.policy = policy,
                  .histories = HugeVector<BlockHistory>(policy == nullptr ? 0 : end),
                  .lists = {}};
  if (policy != nullptr) room.lists = make_lists(policy);
  return room;
}

void SlotPool::set_policy(PolicyRoom& room) {
  CAIRN_ASSERT(room.policy == nullptr || room.histories.size() >= end(),
               "a slot would have no history");
  std::swap(policy_, room.policy);
  std::swap(histories_, room.histories);
  choose_again();
  // Lists of the old policy remain until they are empty.
  if (room.lists.front().by_number.size() <= lists_.front().by_number.size()) return;
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    room.lists[i].non_empty = lists_[i].non_empty;
    std::ranges::copy(lists_[i].by_number, room.lists[i].by_number.begin());
  }
  std::swap(lists_, room.lists);
}

}  // namespace cairn
