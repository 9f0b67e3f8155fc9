#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/assert.hpp"
#include "base/huge_pages.hpp"
#include "blockmgr/eviction/linked_blocks.hpp"
#include "blockmgr/eviction/policy.hpp"
#include "blockmgr/index/free_bitmap.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "memory/alloc/statistics.hpp"

namespace cairn {

inline constexpr std::uint8_t kMaxPriority = 100;

// When something was used: Unix milliseconds for people, and below them a count, so that no two are
// equal and the order of eviction is exact. 44 bits of milliseconds last for five centuries.
struct UseStamp {
  static constexpr int kCountBits = 20;
  std::uint64_t value = 0;

  std::int64_t unix_ms() const { return static_cast<std::int64_t>(value >> kCountBits); }
  static constexpr UseStamp at(std::int64_t unix_ms) {
    return {static_cast<std::uint64_t>(unix_ms) << kCountBits};
  }
  friend auto operator<=>(const UseStamp&, const UseStamp&) = default;
};

enum class SlotLife : std::uint8_t {
  free,
  allocated,  // being filled; freed when its last pin goes
  committed,  // the owner's bytes
};

// Where an unpinned committed slot stands in the order of eviction.
enum class EvictionPlace : std::uint8_t {
  none,    // pinned, or not committed
  listed,  // in one of its priority's lists or among those cut off, least recently used first
  parked,  // reached the list's front while a child needed it; listed again when the child goes
};

struct SlotRecord {
  std::uint64_t generation = 1;  // of the present life, or of the next where free
  UseStamp last_use = {};
  std::uint32_t owner = 0;   // committed: the entry; allocated: the lease, or kNoOwner
  std::uint32_t pins = 0;    // leases, reads, writes and movements
  std::uint32_t leases = 0;  // of the pins
  SlotNumber previous = kNoSlot;
  SlotNumber next = kNoSlot;
  SlotLife life : 2 = SlotLife::free;
  EvictionPlace place : 2 = EvictionPlace::none;
  NextUse told : 3 = NextUse::unknown;  // by the last user of the owner's highest copy
  std::uint8_t priority = 0;
  std::uint8_t list = 0;                // of its priority, while it is listed
  bool gone : 1 = false;                // nobody's any more; freed when the last pin goes
  bool leaving : 1 = false;             // being offloaded, to be dropped after it
  bool drop_when_unpinned : 1 = false;  // moved away while somebody was reading
  bool used_again : 1 = false;          // matched or read since it was committed
  bool committing : 1 = false;          // a commit is filling in what was never written
  // Gone, but leases pin it: `next` has the bytes now, and a lease's pin for all of these.
  bool has_successor : 1 = false;
  bool cut_off : 1 = false;  // as its owner is: it goes before all that are not
};
static_assert(sizeof(SlotRecord) == 40, "a block's metadata is bounded: see BlockStore");
inline constexpr std::uint32_t kNoOwner = ~std::uint32_t{0};

// The slots of a tier: who is free, how often pinned, and in which order the evictable ones go.
// What a slot's end means for keys and chains is BlockStore's affair. A tier that shrank may still
// have slots beyond its limit: those are never handed out again, and go when they come free.
// Not thread-safe.
class SlotPool {
 public:
  // `policy` says which list is next; null: lru. Borrowed.
  SlotPool(std::uint32_t capacity, const EvictionPolicy* policy);

  // How many slots there are, those beyond the limit that are in use among them.
  std::uint32_t capacity() const { return limit_ + beyond_count_; }
  // Slots are numbered below this; not each number below it is that of a slot.
  std::uint32_t end() const { return static_cast<std::uint32_t>(records_.size()); }
  bool exists(SlotNumber slot) const {
    return slot < limit_ || (slot < end() && records_[slot].life != SlotLife::free);
  }
  std::uint32_t limit() const { return limit_; }
  std::uint32_t beyond_count() const { return beyond_count_; }  // in use, at `limit` or above
  // Throws std::bad_alloc, and nothing has changed.
  void set_limit(std::uint32_t limit);
  std::uint32_t free_count() const { return free_.free_count(); }
  std::uint32_t evictable_count() const { return count(SlotState::evictable); }
  std::uint32_t leased_count() const { return leased_count_; }
  std::uint32_t cut_off_count() const { return cut_off_.count; }  // of those that are listed
  std::uint32_t count(SlotState state) const { return counts_[static_cast<std::size_t>(state)]; }
  SlotState state(SlotNumber slot) const { return state_of(records_[slot]); }
  std::uint64_t memory_bytes() const;
  void reset_peak() { max_used_ = capacity() - free_count(); }
  AllocatorStatistics statistics(std::uint64_t slot_bytes) const;

  SlotRecord& operator[](SlotNumber slot) { return records_[slot]; }
  const SlotRecord& operator[](SlotNumber slot) const { return records_[slot]; }
  // Of its owner; of the owner's highest copy, where it has more than one. REQUIRES: a policy.
  BlockHistory& history(SlotNumber slot) { return histories_[slot]; }
  const BlockHistory& history(SlotNumber slot) const { return histories_[slot]; }
  void prefetch(SlotNumber slot) const {
    __builtin_prefetch(&records_[slot], 1);
    if (policy_ != nullptr) __builtin_prefetch(&histories_[slot], 1);
  }
  // The neighbours in the list, which unlinking writes to. REQUIRES: the record is in the cache.
  void prefetch_neighbours(SlotNumber slot) const;

  // A free slot becomes allocated with one pin. REQUIRES: free_count() > 0.
  SlotNumber take();
  // The same with this very slot, whose life has that generation. REQUIRES: it is free.
  void take(SlotNumber slot, std::uint64_t generation);
  // The slot's life ends. REQUIRES: no pins.
  void give_back(SlotNumber slot);
  void set_committed(SlotNumber slot, std::uint32_t owner);  // REQUIRES: allocated

  void pin(SlotNumber slot);
  // A pin that is no use: the slot stays in its place, and who takes victims passes it over.
  void pin_in_place(SlotNumber slot);
  // True where it was the last pin.
  bool unpin(SlotNumber slot);
  void add_lease(SlotNumber slot);  // beside a pin
  void remove_lease(SlotNumber slot);

  void list_last(SlotNumber slot);  // REQUIRES: used later than all that are listed
  // Before all of its priority; its last use is at most `latest`, and earlier than theirs.
  void list_first(SlotNumber slot, UseStamp latest);
  // How long ago it was used, in tenths of the time since its list's first was. Nothing where it is
  // not listed.
  std::optional<std::uint64_t> age_in_tenths(SlotNumber slot, UseStamp now);
  // What goes right before it; kNoSlot where that is nothing, or it is not listed itself.
  SlotNumber before(SlotNumber slot) const;
  // Where its last use puts it. Short where few that are listed were used earlier.
  void list_by_use(SlotNumber slot);
  void unlist(SlotNumber slot);  // also where it is parked, or not listed
  // `to` has the place of `from`, which has none any more. REQUIRES: `to` is committed, and has
  // none.
  void hand_place_over(SlotNumber from, SlotNumber to);
  void park(SlotNumber slot);
  // Which list is next is asked again: time has passed, or something was learnt.
  void choose_again() { chosen_ = {}; }
  // Of those cut off, else of the lowest priority that has any; kNoSlot.
  SlotNumber next_to_go(std::int64_t unix_ms);
  // Another policy, in a time that does not depend on how many are listed: they stay where they
  // are, and with nothing known of them go before others, in the order of their last use. The room
  // is made elsewhere, for all slots below `end`, and has what it replaced afterwards. The first
  // throws std::bad_alloc, the second nothing. REQUIRES: `end` is end() at least.
  struct PolicyRoom;
  static PolicyRoom room_for(const EvictionPolicy* policy, std::uint32_t end);
  void set_policy(PolicyRoom& room);
  // True: what goes next is what was used least recently, as far as nothing else was told of it.
  // The policy goes on learning.
  void follow_lru(bool follows_lru);

 private:
  static SlotState state_of(const SlotRecord& record);
  std::uint32_t& counter(const SlotRecord& record) {
    return counts_[static_cast<std::size_t>(state_of(record))];
  }

  // As the list of a record: `cut_off_`, which is of no priority.
  static constexpr std::uint8_t kCutOffList = 255;
  static_assert(kNextUses + EvictionPolicy::kMaxLists < kCutOffList);

  // The lists of a priority, a bit of `non_empty` each: one for each NextUse, of blocks of which
  // nothing else is known, then those of the policy. Each is in the order of last use.
  struct Lists {
    std::vector<LinkedBlocks> by_number;
    std::uint64_t non_empty = 0;
  };
  using PriorityLists = std::array<Lists, kMaxPriority + 1>;

  void begin_life(SlotNumber slot);
  void insert_before(SlotNumber slot, SlotNumber next);  // kNoSlot: at the end
  void note_filled(const SlotRecord& record);            // its list is not empty any more
  static PriorityLists make_lists(const EvictionPolicy* policy);

  bool has_history(SlotNumber slot) const {
    return policy_ != nullptr && histories_[slot].is_known();
  }
  // Says into which list the slot goes, and which that is.
  LinkedBlocks& list_for(SlotNumber slot);
  LinkedBlocks& list_of(SlotNumber slot) {
    const SlotRecord& record = records_[slot];
    if (record.list == kCutOffList) return cut_off_;
    return lists_[record.priority].by_number[record.list];
  }
  std::uint32_t choose_list(const Lists& lists, std::int64_t unix_ms) const;
  std::uint32_t expected_blocks(const Lists& lists) const;

  HugeVector<SlotRecord> records_;
  HugeVector<BlockHistory> histories_;  // of the slots; empty without a policy
  FreeBitmap free_;
  std::array<std::uint32_t, kNumSlotStates> counts_{};
  std::uint32_t limit_ = 0;
  std::uint32_t beyond_count_ = 0;
  std::uint32_t leased_count_ = 0;
  std::uint32_t max_used_ = 0;  // at a time
  std::uint64_t frees_ = 0;
  const EvictionPolicy* policy_;
  bool follows_lru_ = false;
  std::array<std::uint64_t, 2> non_empty_lists_{};  // a bit a priority
  // What goes comes from this list as long as its first was used by the same request: which list
  // is worth least is asked once for the end of a prompt.
  struct Chosen {
    std::uint8_t priority = kMaxPriority + 1;  // none
    std::uint8_t list = 0;
    RequestNumber request = 0;
  } chosen_;
  PriorityLists lists_;
  LinkedBlocks cut_off_;
};

struct SlotPool::PolicyRoom {
  const EvictionPolicy* policy = nullptr;
  HugeVector<BlockHistory> histories;
  PriorityLists lists;  // none where those there are suffice
};

// What each pin and each end of one does: their callers have it inline.
inline void SlotPool::pin_in_place(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  if (record.pins++ > 0 || record.life != SlotLife::committed) return;
  --counts_[static_cast<std::size_t>(SlotState::evictable)];
  ++counts_[static_cast<std::size_t>(SlotState::committed)];
}

inline bool SlotPool::unpin(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  CAIRN_ASSERT(record.pins > record.leases, "a pin given back twice frees somebody's block");
  if (--record.pins > 0) return false;
  if (record.life == SlotLife::committed) {
    --counts_[static_cast<std::size_t>(SlotState::committed)];
    ++counts_[static_cast<std::size_t>(SlotState::evictable)];
  }
  return true;
}

inline void SlotPool::add_lease(SlotNumber slot) {
  if (records_[slot].leases++ == 0) ++leased_count_;
}

inline void SlotPool::remove_lease(SlotNumber slot) {
  CAIRN_ASSERT(records_[slot].leases > 0, "a lease given back twice frees somebody's block");
  if (--records_[slot].leases == 0) --leased_count_;
}

inline LinkedBlocks& SlotPool::list_for(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  if (record.cut_off) {
    record.list = kCutOffList;
    return cut_off_;
  }
  const std::uint32_t list = has_history(slot) ? kNextUses + histories_[slot].list
                                               : static_cast<std::uint32_t>(record.told);
  record.list = static_cast<std::uint8_t>(list);
  return lists_[record.priority].by_number[list];
}

inline void SlotPool::list_last(SlotNumber slot) {
  LinkedBlocks& list = list_for(slot);
  SlotRecord& record = records_[slot];
  record.place = EvictionPlace::listed;
  if (list.empty()) note_filled(record);
  list.append(records_, slot);
}

}  // namespace cairn
