#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/assert.hpp"
#include "base/huge_pages.hpp"
#include "blockmgr/eviction/linked_blocks.hpp"
#include "blockmgr/eviction/policy.hpp"
#include "blockmgr/index/free_bitmap.hpp"
#include "blockmgr/index/page_room.hpp"
#include "blockmgr/index/slab_map.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/user_units.hpp"
#include "memory/alloc/statistics.hpp"

namespace cairn {

inline constexpr std::uint8_t kMaxPriority = 100;
inline constexpr std::uint8_t kOrdinaryPriority = 50;  // of a write that names none

// Time of a use: Unix milliseconds for people, and a count in the low bits, so that all stamps
// differ and the eviction order is exact. 44 bits of milliseconds last for five centuries.
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
  allocated,  // being filled; freed at the last unpin
  committed,  // the owner's bytes
};

// An unpinned committed slot's place in the eviction order.
enum class EvictionPlace : std::uint8_t {
  none,    // pinned, or not committed
  listed,  // in a list of its priority or the cut-off list, least recently used first
  parked,  // reached the list's front while a child held it; listed again when the child goes
};

struct SlotRecord {
  static constexpr std::uint64_t kMaxGeneration = (std::uint64_t{1} << 60) - 1;

  std::uint64_t generation : 60 = 1;  // of this life; if free: of the next
  std::uint64_t kv_group : 4 = 0;     // of its block
  UseStamp last_use = {};
  std::uint32_t owner = 0;   // committed: the entry; allocated: the lease, or kNoOwner
  std::uint32_t pins = 0;    // by leases, reads, writes and transfers
  std::uint32_t leases = 0;  // the pins by leases
  SlotNumber previous = kNoSlot;
  SlotNumber next = kNoSlot;
  SlotLife life : 2 = SlotLife::free;
  EvictionPlace place : 2 = EvictionPlace::none;
  NextUse hinted : 3 = NextUse::unknown;  // hint of the last user of the owner's highest copy
  bool prefetched : 1 = false;            // came before its request, which has not come yet
  std::uint8_t priority = 0;
  std::uint8_t list = 0;                // number within its priority, while listed
  bool gone : 1 = false;                // has no owner; freed at the last unpin
  bool leaving : 1 = false;             // being offloaded, then dropped
  bool drop_when_unpinned : 1 = false;  // moved away during a read
  bool used_again : 1 = false;          // matched or read since it was committed
  bool committing : 1 = false;          // a commit is filling the unwritten part
  // `gone`, but leases pin it: slot `next` has the bytes now, with one lease pin for all these
  // leases.
  bool has_successor : 1 = false;
  bool cut_off : 1 = false;  // as its owner; evicted before all others
  // A client's pin keeps it in the tier: see Pins. It has a place in the order of eviction, and is
  // skipped there. Unlike a slot that `pins` hold, it may be dropped on request, and be moved.
  bool is_protected : 1 = false;
};
static_assert(sizeof(SlotRecord) == 40, "a block's metadata is bounded: see BlockStore");
static_assert(kMaxKvGroups <= 1 << 4);
inline constexpr std::uint32_t kNoOwner = ~std::uint32_t{0};

// The slots of a tier: which are free, their pins, and the eviction order. BlockStore handles the
// keys and chains. After a tier shrank, slots beyond its limit may still be in use. They are not
// reused, and disappear when they become free.
//
// If blocks have several sizes, capacities and what is free are counted in units, and a block may
// find no slot although enough units are free: see SlotSizes and SlabMap. If blocks take fewer
// pages than their slots have, capacity and what is free are counted in whole slots, of which more
// may be in use: see PageRoom. Not thread-safe.
class SlotPool {
 public:
  // `policy` chooses the next list; null: LRU. `contents`: of slots in files, whose pages count if
  // these are sparse; else null. Both are borrowed.
  SlotPool(std::uint32_t slots, const EvictionPolicy* policy, const SlotSizes& sizes = {},
           const SlotContents* contents = nullptr);

  // The number of units, including those in use beyond the limit.
  std::uint32_t capacity() const { return room_ ? room_->units() : limit_ + beyond_count_; }
  // The same without those.
  std::uint32_t size() const { return room_ ? room_->units() : limit_; }
  // Units of the slots in use. With short blocks they may be more than the capacity.
  std::uint32_t units_in_use() const { return limit_ + beyond_count_ - unused_units(); }
  // Units by which the pages of blocks exceed the capacity, after it became smaller.
  std::uint32_t excess_units() const { return room_ ? room_->excess_units() : 0; }
  // All slot numbers are below this, but not every such number is a slot.
  std::uint32_t end() const { return static_cast<std::uint32_t>(records_.size()); }
  bool exists(SlotNumber slot) const {
    return slot < limit_ || (slot < end() && records_[slot].life != SlotLife::free);
  }
  std::uint32_t limit() const { return limit_; }
  std::uint32_t beyond_count() const { return beyond_count_; }  // in use, at `limit` or above
  // If it throws std::bad_alloc, nothing has changed.
  void set_limit(std::uint32_t limit);
  std::uint32_t free_count() const {
    return room_ ? std::min(unused_units(), room_->free_units()) : unused_units();
  }
  // Units. Each release of the cache's lock asks for it, so the case of one group is inline.
  std::uint32_t evictable_count() const {
    constexpr auto kEvictable = static_cast<std::size_t>(SlotState::evictable);
    const bool is_simple = groups_ == 1 && !room_;
    return is_simple ? counts_[0][kEvictable] * units_of(0) : evictable_of_groups();
  }
  std::uint32_t leased_count() const;  // slots
  std::uint32_t leased_units() const;
  // Protected slots count as committed, not as evictable.
  std::uint32_t protected_count() const;  // slots
  std::uint32_t protected_units() const;
  std::uint32_t cut_off_count() const { return cut_off_.count; }  // of the listed slots
  std::uint32_t count(SlotState state) const;                     // slots; if free: units
  // Units of a block of that group.
  std::uint32_t units_of(KvGroupNumber group) const { return slabs_ ? slabs_->units_of(group) : 1; }
  std::uint32_t units_in(SlotNumber slot) const { return units_of(kv_group(slot)); }
  // How many blocks of the group find a free slot.
  std::uint32_t free_for(KvGroupNumber group) const {
    const std::uint32_t slots = slots_for(group);
    return room_ ? std::min(slots, room_->free_units() / units_of(group)) : slots;
  }
  // free_count() and free_for() without regard to pages: for blocks that had room here.
  std::uint32_t unused_units() const { return slabs_ ? slabs_->free_units() : free_.free_count(); }
  std::uint32_t slots_for(KvGroupNumber group) const {
    return slabs_ ? slabs_->free_for(group) : free_.free_count();
  }
  bool has_slabs() const { return slabs_ != nullptr; }
  std::uint32_t slab_units() const { return slabs_ ? slabs_->slab_units() : 1; }
  std::uint64_t slabs_moved() const { return slabs_ ? slabs_->slabs_moved() : 0; }
  SlotState state(SlotNumber slot) const { return state_of(records_[slot]); }
  std::uint64_t memory_bytes() const;
  void reset_peak() { max_used_ = capacity() - free_count(); }
  AllocatorStatistics statistics(std::uint64_t slot_bytes) const;

  // The KV group of the block in a slot that is in use.
  KvGroupNumber kv_group(SlotNumber slot) const {
    return static_cast<KvGroupNumber>(records_[slot].kv_group);
  }

  // Closes a slab whose blocks find room in others, so that blocks of `group` get its memory once
  // they moved there. Returns it with its slots in use; nullopt if there is none. REQUIRES:
  // has_slabs().
  struct Vacating {
    SlabNumber slab = 0;
    std::vector<SlotNumber> slots = {};
  };
  std::optional<Vacating> begin_vacating(KvGroupNumber group);
  // Some blocks may have stayed.
  void end_vacating(SlabNumber slab);

  SlotRecord& operator[](SlotNumber slot) { return records_[slot]; }
  const SlotRecord& operator[](SlotNumber slot) const { return records_[slot]; }
  // The history of the slot's owner. With several copies, the one of the highest copy counts.
  // REQUIRES: a policy.
  BlockHistory& history(SlotNumber slot) { return histories_[slot]; }
  const BlockHistory& history(SlotNumber slot) const { return histories_[slot]; }
  void prefetch(SlotNumber slot) const {
    __builtin_prefetch(&records_[slot], 1);
    if (policy_ != nullptr) __builtin_prefetch(&histories_[slot], 1);
  }
  // Prefetches the list neighbours, which unlinking writes to. REQUIRES: the record is in the CPU's
  // cache.
  void prefetch_neighbours(SlotNumber slot) const;

  // Allocates a free slot with one pin. REQUIRES: free_for(group) > 0.
  SlotNumber take(KvGroupNumber group = 0);
  // Allocates this slot, with this generation. Returns false, unchanged, if it cannot hold a block
  // of the group. REQUIRES: it is free.
  bool take(SlotNumber slot, KvGroupNumber group, std::uint64_t generation);
  // Frees the slot. REQUIRES: no pins.
  void give_back(SlotNumber slot);
  // Some free slot's pages must go back to the file system.
  bool wants_punch() const { return room_ && room_->wants_punch(); }
  // Allocates such a slot, with one pin, which the caller gives back after that; kNoSlot if there
  // is none.
  SlotNumber take_to_punch();
  void set_committed(SlotNumber slot, std::uint32_t owner);  // REQUIRES: allocated

  void pin(SlotNumber slot);
  // Pins without counting a use: the slot keeps its place, and eviction skips it.
  void pin_in_place(SlotNumber slot);
  // Returns true if it was the last pin.
  bool unpin(SlotNumber slot);
  void add_lease(SlotNumber slot);  // call in addition to a pin
  void remove_lease(SlotNumber slot);

  // A copy that the user's prefetch brought, and that still waits for its request.
  void set_prefetched(SlotNumber slot, UserNumber user);
  void end_prefetched(SlotNumber slot);
  // Units that the user's prefetches will bring.
  void expect_prefetched(UserNumber user, std::uint64_t units);
  void unexpect_prefetched(UserNumber user, std::uint64_t units);
  std::uint64_t prefetched_units() const { return prefetched_units_; }  // both
  struct Share {
    double share = 0;              // of the pool
    std::uint64_t used_units = 0;  // of it
  };
  // Units that a share still has. A small pool has room for one block, too.
  std::uint64_t left_of(const Share& share) const;
  // The user's retain raised the slot's priority above that of ordinary blocks.
  void set_raised(SlotNumber slot, UserNumber user);
  // The user expects a use of the slot soon; 0: nobody does, or nobody's share counts.
  void set_expected(SlotNumber slot, UserNumber user);
  void move_asked(SlotNumber from, SlotNumber to);  // of a block that moved within the tier
  // What users asked for without a use.
  const UserUnits& asked() const { return asked_; }
  void protect(SlotNumber slot);    // REQUIRES: committed, and not protected
  void unprotect(SlotNumber slot);  // REQUIRES: protected

  void list_last(SlotNumber slot);  // REQUIRES: used after all listed slots
  // Puts it first in its list. Its last use becomes at most `latest`, and earlier than that of all
  // others in the list.
  void list_first(SlotNumber slot, UseStamp latest);
  // The time since its last use, in tenths of the time since the list's first slot was used.
  // nullopt if not listed.
  std::optional<std::uint64_t> age_in_tenths(SlotNumber slot, UseStamp now);
  // The slot evicted right before it; kNoSlot if none, or if it is not listed.
  SlotNumber before(SlotNumber slot) const;
  // Lists it by its last use. Fast if few listed slots were used earlier.
  void list_by_use(SlotNumber slot);
  void unlist(SlotNumber slot);  // also if parked, or not listed
  // Gives the place of `from` to `to`. REQUIRES: `to` is committed and has no place.
  void hand_place_over(SlotNumber from, SlotNumber to);
  void park(SlotNumber slot);
  // Chooses the next list again: time has passed, or the policy has learnt something.
  void choose_again() { chosen_ = {}; }
  // Returns the next slot to evict: from the cut-off slots, else from the lowest priority that has
  // any. kNoSlot if none is listed.
  SlotNumber next_to_go(std::int64_t unix_ms);
  // Replaces the policy, in a time independent of the number of listed slots. Those keep their
  // places and lose their history: they go before others, in the order of last use. room_for()
  // makes the memory for all slots below `end`, and throws std::bad_alloc. set_policy() throws
  // nothing and leaves the replaced memory in `room`. REQUIRES: `end` is at least end().
  struct PolicyRoom;
  static PolicyRoom room_for(const EvictionPolicy* policy, std::uint32_t end);
  void set_policy(PolicyRoom& room);
  // True: evicts in LRU order, as far as no hint says otherwise. The policy continues to learn.
  void follow_lru(bool follows_lru);

 private:
  using Counts = std::array<std::uint32_t, kNumSlotStates>;

  static SlotState state_of(const SlotRecord& record);
  std::uint32_t& counter(const SlotRecord& record) {
    return counts_[record.kv_group][static_cast<std::size_t>(state_of(record))];
  }
  bool is_in_use(SlotNumber slot) const { return records_[slot].life != SlotLife::free; }

  // SlotRecord::list for `cut_off_`, which has no priority.
  static constexpr std::uint8_t kCutOffList = 255;
  static_assert(kNextUses + EvictionPolicy::kMaxLists < kCutOffList);

  // The lists of a priority, each with a bit in `non_empty`. First come one list per NextUse, for
  // blocks without history, then the lists of the policy. Each is in the order of last use.
  struct Lists {
    std::vector<LinkedBlocks> by_number;
    std::uint64_t non_empty = 0;
  };
  using PriorityLists = std::array<Lists, kMaxPriority + 1>;

  std::uint32_t evictable_of_groups() const;
  void begin_life(SlotNumber slot, KvGroupNumber group);
  void insert_before(SlotNumber slot, SlotNumber next);  // kNoSlot: at the end
  void note_filled(const SlotRecord& record);            // its list is no longer empty
  static PriorityLists make_lists(const EvictionPolicy* policy);

  bool has_history(SlotNumber slot) const {
    return policy_ != nullptr && histories_[slot].is_known();
  }
  // Sets the list of the slot, and returns it.
  LinkedBlocks& list_for(SlotNumber slot);
  LinkedBlocks& list_of(SlotNumber slot) {
    const SlotRecord& record = records_[slot];
    if (record.list == kCutOffList) return cut_off_;
    return lists_[record.priority].by_number[record.list];
  }
  std::uint32_t choose_list(const Lists& lists, std::int64_t unix_ms) const;
  std::uint32_t expected_blocks(const Lists& lists) const;

  HugeVector<SlotRecord> records_;
  HugeVector<BlockHistory> histories_;  // by slot; empty without a policy
  FreeBitmap free_;                     // of slots of one size
  std::unique_ptr<SlabMap> slabs_;      // of several sizes; else null
  std::unique_ptr<PageRoom> room_;      // where pages count; else null
  // By KV group. Those of free slots stay 0.
  std::array<Counts, kMaxKvGroups> counts_{};
  std::array<std::uint32_t, kMaxKvGroups> leased_{};     // slots
  std::array<std::uint32_t, kMaxKvGroups> protected_{};  // slots
  std::size_t groups_ = 1;                               // all blocks were of groups below this
  std::uint32_t limit_ = 0;
  std::uint32_t beyond_count_ = 0;
  UserUnits asked_;
  std::uint64_t prefetched_units_ = 0;
  std::uint32_t max_used_ = 0;  // peak in use
  std::uint64_t frees_ = 0;
  const EvictionPolicy* policy_;
  bool follows_lru_ = false;
  std::array<std::uint64_t, 2> non_empty_lists_{};  // one bit per priority
  // Victims come from this list while the same request used its first slot. So the worths are
  // compared only once for the end of a prompt.
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
  PriorityLists lists;  // empty if the present lists suffice
};

// Inline, because every pin and unpin calls these.
inline void SlotPool::pin_in_place(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  if (record.pins++ > 0 || record.life != SlotLife::committed || record.is_protected) return;
  Counts& counts = counts_[record.kv_group];
  --counts[static_cast<std::size_t>(SlotState::evictable)];
  ++counts[static_cast<std::size_t>(SlotState::committed)];
}

inline bool SlotPool::unpin(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  CAIRN_ASSERT(record.pins > record.leases, "a pin given back twice frees somebody's block");
  if (--record.pins > 0) return false;
  if (record.life == SlotLife::committed && !record.is_protected) {
    Counts& counts = counts_[record.kv_group];
    --counts[static_cast<std::size_t>(SlotState::committed)];
    ++counts[static_cast<std::size_t>(SlotState::evictable)];
  }
  return true;
}

inline void SlotPool::add_lease(SlotNumber slot) {
  if (records_[slot].leases++ == 0) ++leased_[records_[slot].kv_group];
}

inline void SlotPool::remove_lease(SlotNumber slot) {
  CAIRN_ASSERT(records_[slot].leases > 0, "a lease given back twice frees somebody's block");
  if (--records_[slot].leases == 0) --leased_[records_[slot].kv_group];
}

inline LinkedBlocks& SlotPool::list_for(SlotNumber slot) {
  SlotRecord& record = records_[slot];
  if (record.cut_off) {
    record.list = kCutOffList;
    return cut_off_;
  }
  const std::uint32_t list = has_history(slot) ? kNextUses + histories_[slot].list
                                               : static_cast<std::uint32_t>(record.hinted);
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
