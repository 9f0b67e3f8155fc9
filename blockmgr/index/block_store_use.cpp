// BlockStore: uses of copies, and the choice of victims.
#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "base/assert.hpp"
#include "blockmgr/index/block_store.hpp"

namespace cairn {
namespace {

// Tenths of the time that a list spans. A block used within the first tenth, such as a system
// prompt of many requests, will be used again soon. A block in the last tenth is evicted soon
// anyway.
constexpr std::uint64_t kInUse = 1;
constexpr std::uint64_t kGoesSoon = 9;
// Blocks aged together with a lent one under one hold of the lock: 20 ns each.
constexpr std::size_t kMaxLentTail = 128;
// Children looked at to find out whether all are protected: 20 ns each. A block with more of them
// stays, as with children that nobody protects.
constexpr std::uint32_t kMaxProtectedChildren = 64;

}  // namespace

// Inline, because each end of a lease calls it.
inline void BlockStore::list_last(SlotPool& slots, SlotNumber slot) {
  if (uses_ && options_.parents.empty()) {
    uses_->listed(slots.history(slot), slots[slot].hinted);
  } else if (uses_) {
    BlockHistory& decides = deciding_history(slots, slot);
    uses_->listed(decides, slots[slot].hinted);
    slots.history(slot) = decides;
  }
  slots.list_last(slot);
}

inline BlockHistory& BlockStore::deciding_history(SlotPool& slots, SlotNumber slot) {
  if (!follows_full_block(slots.kv_group(slot))) return slots.history(slot);
  const EntryNumber parent = index_[slots[slot].owner].parent;
  if (parent == kNoEntry || !index_[parent].present()) return slots.history(slot);
  return history(highest_copy(index_[parent]));
}

void BlockStore::pin(SlotRef at) {
  pool(at.tier()).pin(at.slot());
  record(at).last_use = next_stamp();
}

void BlockStore::pin_for_lease(SlotRef at) {
  record(at).used_again = true;
  pin(at);
  lease_pinned(at);
}

void BlockStore::unpin(SlotRef at) {
  SlotPool& slots = pool(at.tier());
  if (!slots.unpin(at.slot())) return;
  SlotRecord& slot = slots[at.slot()];
  if (slot.gone || slot.life == SlotLife::allocated) {
    free_slot(at);
  } else if (slot.drop_when_unpinned && goes_after_read(at)) {
    drop(at, EvictionReason::request);
  } else {
    slot.last_use = next_stamp();
    list_last(slots, at.slot());
  }
}

// It moved to another tier, and the copy there may have left it since.
bool BlockStore::goes_after_read(SlotRef at) {
  stay(at);
  return !is_last_copy(index_[record(at).owner], at.tier());
}

void BlockStore::unpin_in_place(SlotRef at) {
  SlotPool& slots = pool(at.tier());
  if (!slots.unpin(at.slot())) return;
  SlotRecord& slot = slots[at.slot()];
  if (slot.gone) {
    free_slot(at);
  } else if (slot.drop_when_unpinned && goes_after_read(at)) {
    drop(at, EvictionReason::request);
  } else if (slot.place == EvictionPlace::none) {  // used meanwhile
    slot.last_use = next_stamp();
    list_last(at);
  } else if (slot.place == EvictionPlace::parked && !blocked(slot.owner, at.tier())) {
    slots.list_by_use(at.slot());
  }
}

void BlockStore::unpin_for_lease(SlotRef at) {
  --lease_pins_;
  end_lease_pin(at);
}

void BlockStore::end_lease_pin(SlotRef at) {
  SlotRecord& slot = record(at);
  pool(at.tier()).remove_lease(at.slot());
  if (slot.life == SlotLife::allocated) {
    slot.gone = true;
    slot.owner = kNoOwner;
  } else if (!slot.gone && expired(slot.owner, now_)) {
    drop_all(slot.owner, EvictionReason::expired);
  }
  unpin(at);
}

void BlockStore::touch(SlotRef at) {
  SlotRecord& slot = record(at);
  if (slot.place == EvictionPlace::none) return;  // pinned: in use
  slot.last_use = next_stamp();
  pool(at.tier()).unlist(at.slot());
  list_last(at);
}

void BlockStore::list_last(SlotRef at) { list_last(pool(at.tier()), at.slot()); }

// Lookups found `from` until now. The copy that they find from now on takes over its history, and
// is listed where an offloaded block would be.
void BlockStore::hand_on(const Entry& entry, SlotRef from) {
  const SlotRef at = highest_copy(entry);
  SlotRecord& slot = record(at);
  const bool is_known = !uses_ || history(at).request == history(from).request;
  if (is_known && slot.hinted == record(from).hinted) return;
  const bool listed = slot.place == EvictionPlace::listed;
  if (listed) pool(at.tier()).unlist(at.slot());
  copy_history(from, at);
  if (!listed) return;
  slot.last_use = next_stamp();
  list_last(at);
}

RequestNumber BlockStore::begin_match(std::span<const KeyView> keys) {
  if (!uses_ || keys.empty()) return 0;
  for (SlotPool& slots : pools_) slots.choose_again();
  return uses_->begin_match({.blocks = static_cast<std::uint32_t>(keys.size()),
                             .last_key_hash = plain_hash(keys.back()),
                             .unix_ms = unix_ms_});
}

void BlockStore::missed(KeyView first, RequestNumber request) {
  if (uses_) uses_->missed(plain_hash(first), request);
}

std::optional<std::uint32_t> BlockStore::end_request(std::span<const SlotRef> held,
                                                     const RequestEnd& end) {
  if (!uses_) return std::nullopt;
  for (auto at = held.rbegin(); at != held.rend(); ++at) {
    const BlockHistory& block = history(*at);
    if (!block.is_known() || follows_full_block(kv_group(*at))) continue;
    return uses_->ended(block.request, end);
  }
  return std::nullopt;
}

void BlockStore::forget_hint(SlotRef at) {
  const bool listed = record(at).place == EvictionPlace::listed;
  if (listed) pool(at.tier()).unlist(at.slot());
  set_hinted(at, NextUse::unknown);
  if (!listed) return;
  record(at).last_use = next_stamp();
  list_last(at);
}

void BlockStore::copy_history(SlotRef from, SlotRef to) {
  if (uses_) history(to) = history(from);
  const UserNumber user = pool(from.tier()).asked().user_of(from.slot(), UserUnits::hinted);
  // The copy needs a share of its own tier.
  if (user != 0 && !has_share(to, user)) return;
  record(to).hinted = record(from).hinted;
  pool(to.tier()).set_expected(to.slot(), user);
}

bool BlockStore::believes(SlotRef at, const UseHint& use_hint) const {
  const SlotRecord& slot = record(at);
  if (slot.life != SlotLife::committed || slot.gone) return false;
  if (expected_within_ms(use_hint.next_use) > 0) return has_share(at, use_hint.user);
  const Entry& entry = index_[slot.owner];
  const std::uint32_t following = following_blocks(slot.owner);
  const bool is_end = following == 0 || (following == 1 && entry.ends_hinted != 0);
  return is_end && entry.user == use_hint.user && use_hint.user != kSeveralUsers;
}

bool BlockStore::has_share(SlotRef at, UserNumber user) const {
  const SlotPool& slots = pool(at.tier());
  const std::uint32_t more = slots.asked().has(at.slot()) ? 0 : units_in(at);
  return more <= asked_room(slots, user);
}

std::uint64_t BlockStore::asked_room(const SlotPool& slots, UserNumber user) const {
  if (user <= kNoToken || !several_tokens_) return UINT64_MAX;
  return slots.left_of({.share = kShareOfToken, .used_units = slots.asked().of(user)});
}

// The children of the same group, 2 at most: the windows and states of a block's key do not follow
// it. Each group but one may have such a child.
std::uint32_t BlockStore::following_blocks(EntryNumber number) const {
  const Entry& entry = index_[number];
  const std::uint32_t children = entry.children;
  if (options_.parents.empty() || children == 0) return std::min(children, 2u);
  if (children > kMaxKvGroups) return 2;
  std::uint32_t following = 0;
  for (EntryNumber child = details(number).first_child; child != kNoEntry;
       child = details(child).next_sibling) {
    following += index_[child].kv_group_bits == entry.kv_group_bits ? 1u : 0u;
  }
  return std::min(following, 2u);
}

// REQUIRES: `at` is not listed.
void BlockStore::set_hinted(SlotRef at, NextUse next_use, UserNumber user) {
  SlotRecord& slot = record(at);
  slot.hinted = next_use;
  const bool counts = user > kNoToken && expected_within_ms(next_use) > 0;
  pool(at.tier()).set_expected(at.slot(), counts ? user : UserNumber{0});
  const Entry& entry = index_[slot.owner];
  const bool lowers = next_use == NextUse::never || next_use == NextUse::later;
  if (entry.parent == kNoEntry) return;
  Entry& parent = index_[entry.parent];
  if (parent.kv_group_bits == entry.kv_group_bits) parent.ends_hinted = lowers ? 1 : 0;
}

bool BlockStore::hint(SlotRef at, const UseHint& use_hint) {
  if (!believes(at, use_hint)) return false;
  set_hinted(at, use_hint.next_use, use_hint.user);
  return true;
}

bool BlockStore::hint_now(SlotRef at, const UseHint& use_hint, RequestNumber hint) {
  if (!believes(at, use_hint)) return false;
  SlotRecord& slot = record(at);
  // A repeated hint changes nothing, unless a use is expected soon: then its time restarts.
  if (slot.hinted == use_hint.next_use && expected_within_ms(slot.hinted) == 0) return true;
  const bool listed = slot.place == EvictionPlace::listed;
  if (listed) pool(at.tier()).unlist(at.slot());
  set_hinted(at, use_hint.next_use, use_hint.user);
  if (uses_ && !follows_full_block(kv_group(at))) uses_->rehinted(history(at), hint);
  if (listed) {
    slot.last_use = next_stamp();
    list_last(at);
  } else if (slot.place == EvictionPlace::parked && uses_) {
    uses_->listed(deciding_history(pool(at.tier()), at.slot()), slot.hinted);
  }
  return true;
}

std::optional<SlotRef> BlockStore::follow(Trail trail) const {
  if (trail.entry >= index_.end() || !index_[trail.entry].present()) return std::nullopt;
  if (this->trail(trail.entry).tag != trail.tag) return std::nullopt;
  return highest_copy(index_[trail.entry]);
}

void BlockStore::age(SlotRef at, std::int64_t unix_ms) {
  SlotPool& slots = pool(at.tier());
  if (slots[at.slot()].place == EvictionPlace::none) return;
  slots.unlist(at.slot());
  slots.list_first(at.slot(), UseStamp::at(std::max<std::int64_t>(unix_ms, 0)));
}

void BlockStore::lent(EntryNumber entry) {
  for (const Tier tier : kTiers) {
    SlotPool& slots = pool(tier);
    SlotNumber slot = index_[entry].slots[index_of(tier)];
    if (slot == kNoSlot) continue;
    const auto tenths = slots.age_in_tenths(slot, last_stamp_);
    if (!tenths || *tenths < kInUse || *tenths >= kGoesSoon) continue;
    // A child that was last used with the block stands right before it. Left there, it would keep
    // the block here as long as before.
    for (std::size_t i = 0; i < kMaxLentTail && slot != kNoSlot; ++i) {
      const SlotNumber before = slots.before(slot);
      const bool goes_on =
          before != kNoSlot && index_[slots[before].owner].parent == slots[slot].owner;
      age({tier, slot}, unix_ms_);
      slot = goes_on ? before : kNoSlot;
    }
  }
}

bool BlockStore::is_last_copy(const Entry& entry, Tier tier) const {
  for (Tier other : kTiers) {
    if (other != tier && entry.slots[index_of(other)] != kNoSlot) return false;
  }
  return true;
}

bool BlockStore::blocked(EntryNumber number, Tier tier) const {
  const Entry& entry = index_[number];
  if (entry.children == 0) return false;
  if (details(number).children_in_tier[index_of(tier)] > 0) return true;
  const bool offloads = options_.offload_on_evict && next_lower(tier).has_value();
  return is_last_copy(entry, tier) && !offloads && holds_children(number);
}

// Whether it has present children other than protected ones.
bool BlockStore::holds_children(EntryNumber number) const {
  const std::uint32_t children = index_[number].children;
  if (children == 0) return false;
  for (const std::uint32_t in_tier : details(number).children_in_tier) {
    if (in_tier > 0) return true;
  }
  // All of them are protected or leaving.
  if (children > kMaxProtectedChildren) return true;
  for (EntryNumber child = details(number).first_child; child != kNoEntry;
       child = details(child).next_sibling) {
    if (!is_protected(index_[child])) return true;
  }
  return false;
}

bool BlockStore::is_protected(const Entry& entry) const {
  for (Tier tier : kTiers) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (slot != kNoSlot && pool(tier)[slot].is_protected) return true;
  }
  return false;
}

void BlockStore::protect(SlotRef at) {
  end_leaving(at);
  stay(at);
  pool(at.tier()).protect(at.slot());
  const EntryNumber parent = index_[record(at).owner].parent;
  if (parent == kNoEntry) return;
  --details(parent).children_in_tier[index_of(at.tier())];
  free_or_list(parent);
}

void BlockStore::unprotect(SlotRef at) {
  const SlotRecord& slot = record(at);
  if (!slot.is_protected) return;
  pool(at.tier()).unprotect(at.slot());
  const EntryNumber parent = index_[slot.owner].parent;
  if (parent != kNoEntry) ++details(parent).children_in_tier[index_of(at.tier())];
  free_or_list(slot.owner);
}

void BlockStore::raise_priority(SlotRef at, std::uint8_t priority, UserNumber user) {
  SlotPool& slots = pool(at.tier());
  if (slots[at.slot()].priority >= priority) return;
  if (priority > kOrdinaryPriority) slots.set_raised(at.slot(), user);
  const bool listed = record(at).place == EvictionPlace::listed;
  if (listed) slots.unlist(at.slot());
  record(at).priority = priority;
  if (listed) {
    record(at).last_use = next_stamp();
    list_last(at);
  }
  if (at.tier() == Tier::disk) note_disk_slot(at.slot());
}

std::uint8_t BlockStore::own_priority(SlotRef at) const {
  const SlotPool& slots = pool(at.tier());
  const std::uint8_t priority = slots[at.slot()].priority;
  return slots.asked().user_of(at.slot(), UserUnits::raised) != 0
             ? std::min(priority, kOrdinaryPriority)
             : priority;
}

void BlockStore::extend_ttl(EntryNumber number, TimePoint expires_at) {
  if (!index_[number].has_ttl || this->expires_at(number) >= expires_at) return;
  expiries_.erase({this->expires_at(number), number});
  index_.rare(number).expires_at = expires_at;
  expiries_.emplace(expires_at, number);
  const SlotNumber on_disk = index_[number].slots[index_of(Tier::disk)];
  if (on_disk != kNoSlot) note_disk_slot(on_disk);
}

bool BlockStore::wants_offload(SlotRef at) const {
  const auto lower = next_lower(at.tier());
  if (!options_.offload_on_evict || !lower) return false;
  if (has_lower_copy(index_[record(at).owner], at.tier())) return false;
  // A cut-off block takes only free slots of the lower tier.
  return !record(at).cut_off || pool(*lower).free_count() > leaving_units(at.tier());
}

bool BlockStore::holds_a_chain(SlotRef at) const {
  const Entry& entry = index_[record(at).owner];
  return is_last_copy(entry, at.tier()) && holds_children(record(at).owner);
}

std::optional<BlockStore::Victim> BlockStore::next_victim(Tier tier) {
  SlotPool& slots = pool(tier);
  for (SlotNumber slot; (slot = slots.next_to_go(unix_ms_)) != kNoSlot;) {
    const bool may_go = slots[slot].pins == 0 && !slots[slot].is_protected;
    if (may_go && !blocked(slots[slot].owner, tier)) {
      const SlotRef at(tier, slot);
      const bool offload = wants_offload(at);
      const bool goes_remote =
          goes_remote_ && !offload && is_last_copy(index_[slots[slot].owner], tier);
      return Victim{.at = at, .offload = offload, .goes_remote = goes_remote};
    }
    slots.park(slot);
  }
  return std::nullopt;
}

std::uint32_t BlockStore::cut_chains(Tier tier, std::uint32_t count) {
  const SlotPool& slots = pool(tier);
  std::vector<SlotNumber> tails;
  for (SlotNumber slot = 0; slot < slots.end(); ++slot) {
    const SlotRecord& record = slots[slot];
    if (record.place == EvictionPlace::parked && record.pins == 0 && !record.is_protected &&
        details(record.owner).children_in_tier[index_of(tier)] == 0) {
      tails.push_back(slot);
    }
  }
  count = static_cast<std::uint32_t>(std::min<std::size_t>(tails.size(), count));
  std::ranges::partial_sort(tails, tails.begin() + count, {}, [&](SlotNumber slot) {
    const SlotRecord& record = slots[slot];
    return std::tuple(!record.cut_off, record.priority, record.last_use);
  });
  tails.resize(count);
  for (const SlotNumber slot : tails) drop({tier, slot}, EvictionReason::capacity);
  return count;
}

void BlockStore::begin_leaving(SlotRef at) {
  CAIRN_ASSERT(!record(at).is_protected, "a pinned block would be evicted");
  pin(at);
  record(at).leaving = true;
  leaving_[index_of(at.tier())] += units_in(at);
  const EntryNumber parent = index_[record(at).owner].parent;
  if (parent == kNoEntry) return;
  --details(parent).children_in_tier[index_of(at.tier())];
  free_or_list(parent);
}

void BlockStore::end_leaving(SlotRef at) {
  SlotRecord& slot = record(at);
  if (!slot.leaving) return;  // dropped meanwhile
  slot.leaving = false;
  leaving_[index_of(at.tier())] -= units_in(at);
  const EntryNumber parent = index_[slot.owner].parent;
  if (parent != kNoEntry) ++details(parent).children_in_tier[index_of(at.tier())];
}

}  // namespace cairn
