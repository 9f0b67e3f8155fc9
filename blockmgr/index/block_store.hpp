#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "blockmgr/disk/slot_journal.hpp"
#include "blockmgr/eviction/block_uses.hpp"
#include "blockmgr/index/event_ring.hpp"
#include "blockmgr/index/key_index.hpp"
#include "blockmgr/index/slot_pool.hpp"
#include "blockmgr/index/stats.hpp"
#include "transport/io/slot_checksums.hpp"

namespace cairn {

// A key's first copy.
struct NewBlock {
  KeyView key;
  std::optional<KeyView> parent = {};
  std::string metadata = {};
  std::optional<TimePoint> expires_at = {};
  std::shared_ptr<BlockQuota> quota = {};      // null: it counts nowhere
  std::uint32_t epoch = 1;                     // raised by each change of the metadata
  UserNumber user = kSeveralUsers;             // who stores it
  std::optional<std::uint64_t> key_hash = {};  // its plain_hash(), where that is known already
  EntryNumber parent_entry = kNoEntry;         // of `parent`, where that is known already
  std::optional<std::uint8_t> priority = {};   // nothing: the slot's
};

// A copy that an earlier run left on disk.
struct RestoredBlock {
  SlotNumber slot = 0;
  std::uint64_t generation = 0;
  UseStamp last_use = {};
  std::uint8_t priority = 0;
  NextUse told = NextUse::unknown;
  std::uint64_t history = 0;  // as JournalEntry has it
  NewBlock block;
};

// The metadata of a cache without its leases: which keys are present, in which slots, who comes
// next in eviction. Knows nothing of bytes, threads or waiting.
//
// A key is present while it has a copy. A key without a copy that is the parent of present ones is
// kept as a *ghost*: never found, but a block that comes (back) under it is linked to its children
// at once. A ghost needs a present child and a present key needs a slot, so there are at most twice
// as many entries as slots: 40 bytes of slot, 104 of entry and 22 of buckets a block,
// and 8 of history where the order of eviction learns.
//
// A block is *cut off* where its parent, or any key before that, is known and not here: no match
// from the beginning of its prefix reaches it. Those go before all others, whatever their priority,
// so what no match reaches never takes the place of what one finds. Where a key comes or goes, what
// follows it is told so in steps: settle_chains().
//
// A prefix goes from its tail. A copy is evicted only when no child has a copy in the same tier,
// and the last copy of a key that will not be offloaded only when no child is present at all. A
// copy that reaches the front of its list too early is parked, and goes back when the last child
// goes: each copy is passed over once, however long the chains are. So what is evicted is of the
// lowest priority among the copies that may go, and of those the least recently used, or the one
// that the order of eviction says.
//
// Not thread-safe.
class BlockStore {
 public:
  struct Options {
    std::array<std::uint32_t, kNumTiers> capacities{};  // 0: no such tier
    bool offload_on_evict = true;
    std::uint64_t hash_seed = 0;
    EventSink events = {};  // told of every copy that comes or goes
    EvictionKind eviction = EvictionKind::lru;
    std::uint64_t history_bytes = 64ull << 20;  // at most, of blocks that are gone
  };
  explicit BlockStore(const Options& options);

  // The time that goes into slots as their last use. May go back: uses stay in order.
  void set_time(std::int64_t unix_ms, TimePoint now = {}) {
    last_stamp_ = std::max(last_stamp_, UseStamp::at(unix_ms));
    unix_ms_ = unix_ms;
    now_ = now;
  }

  // From now on every change of a slot of the disk tier is noted. Borrows both.
  void note_changes(SlotJournal& journal, const SlotChecksums& slots) {
    journal_ = &journal;
    disk_slots_ = &slots;
  }
  // What the journal is to say of a slot; nothing of one that was never used.
  void describe_disk_slot(SlotNumber slot,
                          const std::function<void(const JournalEntry&)>& take) const;

  // The tier's slots are those below `capacity` from now on. New ones are free at once, free ones
  // beyond it are gone, those beyond it in use go with their use. Under the lock it takes some 20
  // ms for a million more slots. Throws std::bad_alloc, and nothing has changed.
  void resize(Tier tier, std::uint32_t capacity);
  void set_offload_on_evict(bool offload_on_evict);
  // The last copies of blocks that make room depart from now on: they are left pinned to somebody
  // who wants them first.
  void set_departs(bool departs) { departs_ = departs; }
  // Another order of eviction. What was learnt is forgotten, and the copies that are there go
  // first, in the order of their last use. All that takes long is done outside the lock: making the
  // order (std::bad_alloc), and freeing what it replaced, which it has after set_eviction().
  // REQUIRES: each tier's slots are numbered below `ends` by then.
  class NewOrder {
   public:
    NewOrder(const Options& options, const std::array<std::uint32_t, kNumTiers>& ends);

   private:
    friend class BlockStore;
    EvictionKind eviction_;
    std::unique_ptr<BlockUses> uses_;
    std::vector<SlotPool::PolicyRoom> rooms_;
  };
  void set_eviction(NewOrder& order);
  // True: LRU says which goes next, while the order that is set goes on learning.
  void follow_lru(bool follows_lru) {
    if (std::exchange(follows_lru_, follows_lru) == follows_lru) return;
    for (SlotPool& slots : pools_) slots.follow_lru(follows_lru);
  }

  // What the order of eviction has learnt, for the next run: see EvictionPolicy.
  std::vector<std::byte> learnt() { return uses_ ? uses_->learnt() : std::vector<std::byte>(); }
  bool take_learnt(std::span<const std::byte> learnt) {
    return uses_ && uses_->take_learnt(learnt);
  }

  SlotPool& pool(Tier tier) { return pools_[index_of(tier)]; }
  const SlotPool& pool(Tier tier) const { return pools_[index_of(tier)]; }
  SlotRecord& record(SlotRef at) { return pool(at.tier())[at.slot()]; }
  const SlotRecord& record(SlotRef at) const { return pool(at.tier())[at.slot()]; }
  Entry& entry(EntryNumber number) { return index_[number]; }
  const Entry& entry(EntryNumber number) const { return index_[number]; }
  EntryDetails& details(EntryNumber number) { return index_.details(number); }
  const EntryDetails& details(EntryNumber number) const { return index_.details(number); }
  // Empty: it has none.
  std::string_view metadata(EntryNumber number) const {
    const auto& rare = index_.details(number).rare;
    return rare ? std::string_view(rare->metadata) : std::string_view();
  }
  // REQUIRES: it has a time to live.
  TimePoint expires_at(EntryNumber number) const { return index_.details(number).rare->expires_at; }
  std::uint32_t epoch(EntryNumber number) const {
    const auto& rare = index_.details(number).rare;
    return rare ? rare->epoch : 1;
  }
  void raise_epoch(EntryNumber number) { ++index_.rare(number).epoch; }
  BlockKey key(EntryNumber number) const { return index_.key(number); }
  BlockHandle handle(SlotRef at) const { return {at.tier(), at.slot(), record(at).generation}; }
  std::optional<Tier> next_lower(Tier tier) const;

  // The entry of a present key that has not expired, else kNoEntry. An expired one goes now, unless
  // it is leased: then it stays until its last lease ends, and is only no part of a prefix any
  // more.
  EntryNumber find(KeyView key, TimePoint now);
  bool contains(KeyView key, TimePoint now) const;
  class PrefixScan;
  // Brings what is known of these keys near, for a look-up of each that follows.
  void prefetch(std::span<const KeyView> keys) const;
  // The same for one that is mostly not there, and to be stored soon.
  void prefetch_new(KeyView key, std::uint64_t plain_hash) const;
  SlotRef highest_copy(const Entry& entry) const;  // REQUIRES: present
  bool has_lower_copy(const Entry& entry, Tier tier) const;

  // A request for these keys begins: its number. found() is told of the blocks, the first of the
  // prefix first, then missed() of the first key that is not there; others may come between.
  RequestNumber begin_match(std::span<const KeyView> keys);
  void found(SlotRef at, RequestNumber request, bool is_hub) {
    if (uses_) uses_->found(history(at), request, is_hub);
  }
  void missed(KeyView first, RequestNumber request);
  // Somebody uses the block: what was told of it before is over.
  void used(SlotRef at, UserNumber user) {
    note_user(record(at).owner, user);
    if (record(at).told != NextUse::unknown) forget_told(at);
  }
  void note_user(EntryNumber number, UserNumber user) {
    Entry& entry = index_[number];
    if (entry.user != user) entry.user = kSeveralUsers;
  }
  bool is_hub(SlotRef at) const { return index_[record(at).owner].children >= kHubChildren; }
  // A further copy of a block was used for what the first was.
  void copy_history(SlotRef from, SlotRef to) {
    if (uses_) history(to) = history(from);
    record(to).told = record(from).told;
  }
  BlockHistory& history(SlotRef at) { return pool(at.tier()).history(at.slot()); }
  const BlockHistory& history(SlotRef at) const { return pool(at.tier()).history(at.slot()); }
  // What is known of the request that last used these, by the last of them: those before it may
  // be shared with a later request. See EvictionPolicy::ended().
  std::optional<std::uint32_t> end_request(std::span<const SlotRef> held, const RequestEnd& end);

  // Somebody says what he expects of blocks, of those of the end of a prefix first. That they are
  // used late or never counts only where nobody else needs them: no other user was seen, and no
  // block follows, or one of which the same was said.
  struct Telling {
    NextUse next_use = NextUse::unknown;
    UserNumber user = kSeveralUsers;
  };
  // Of a copy that a lease holds: what it says counts when the last pin goes. False where it does
  // not count.
  bool tell(SlotRef at, const Telling& telling);
  // The same of one that may lie in the order of eviction: it goes where that puts it now.
  // `hint` is begin_hint()'s.
  bool tell_now(SlotRef at, const Telling& telling, RequestNumber hint);
  RequestNumber begin_hint(NextUse next_use) {
    return uses_ ? uses_->begin_hint(next_use, unix_ms_) : 0;
  }
  // To find a key's highest copy again, as long as the key is present.
  struct Trail {
    EntryNumber entry = kNoEntry;
    std::uint32_t tag = 0;  // of the key: entries are used again
    friend bool operator==(const Trail&, const Trail&) = default;
  };
  Trail trail(EntryNumber number) const {
    return {number, static_cast<std::uint32_t>(plain_hash_of(number))};
  }
  std::optional<SlotRef> follow(Trail trail) const;

  // A free slot, allocated with one pin, which the caller gives back by unpin().
  // REQUIRES: one is free.
  SlotRef take(Tier tier, std::uint8_t priority);
  // Makes the allocated slot the copy of a key. A key that is present keeps the block it has; then
  // nothing changes. Looks the key up once.
  struct Committed {
    EntryNumber entry = kNoEntry;  // of the key
    bool is_new = false;
  };
  Committed commit(SlotRef at, NewBlock block);
  // Makes a free slot of the disk tier the copy of a key, unpinned. False, and nothing changes,
  // where the key is present or the slot is taken. REQUIRES: used later than all that are listed.
  bool restore(RestoredBlock restored);
  // All are restored: says which of them are cut off. Looks at every key.
  void end_restoring();
  // The life that a free slot will have next is that one at least.
  void raise_generation(SlotRef at, std::uint64_t generation);
  // Makes the allocated slot a further copy. REQUIRES: none in that tier.
  void add_copy(EntryNumber entry, SlotRef at);
  // A copy lies in another slot of its tier from now on, at the same place of the order of
  // eviction. Leases go on holding the slot that they name, and it holds the new one for them.
  // REQUIRES: `to` is allocated, with one pin; only leases and one more pin, in place, hold `from`.
  struct Relocation {
    SlotRef from;
    SlotRef to;
  };
  void relocate(const Relocation& move);
  // Slots that leases hold, and whose copy lies in another one now.
  std::uint32_t superseded_count(Tier tier) const { return superseded_[index_of(tier)]; }
  // The copy is no longer found. Its slot is free at once, or when its last pin goes.
  void drop(SlotRef at, EvictionReason reason);
  void drop_all(EntryNumber entry, EvictionReason reason);
  // Drops copies that stay only because what follows them lies in other tiers, in the order of
  // eviction, `count` at most: how many. Looks at every slot. REQUIRES: next_victim() has none.
  std::uint32_t cut_chains(Tier tier, std::uint32_t count);
  // Drops keys whose time is over, so many at most: false where more are left.
  bool expire(TimePoint now, std::uint32_t keys);
  // Tells so many blocks at most whether they are cut off, where what is before them has come or
  // gone: false where more are left. They stay in their places of the order of eviction until then.
  bool settle_chains(std::uint32_t blocks);

  // Pins keep a slot's bytes as they are. A lease's pins are counted apart.
  void pin(SlotRef at);
  void pin_for_lease(SlotRef at);
  void lease_pinned(SlotRef at) {
    pool(at.tier()).add_lease(at.slot());
    ++lease_pins_;
  }
  // A slot as often as leases pin it.
  std::uint64_t lease_pins() const { return lease_pins_; }
  // The last pin of a committed copy makes it the most recently used of the evictable; of an
  // allocated or dropped one, free.
  void unpin(SlotRef at);
  // The same for a lease's pin: an uncommitted slot is nobody's after it.
  void unpin_for_lease(SlotRef at);
  // A pin that leaves the order of eviction as it is: for who copies the whole cache.
  // REQUIRES: committed.
  void pin_in_place(SlotRef at) { pool(at.tier()).pin_in_place(at.slot()); }
  void unpin_in_place(SlotRef at);
  // Refreshes the recency of an unpinned copy.
  void touch(SlotRef at);
  // Makes an unpinned copy the least recently used of its priority, last used then or earlier.
  void age(SlotRef at, std::int64_t unix_ms);
  // Another cache is about to have a copy of it. What is not in use here goes first from now on, so
  // that caches that share their blocks do not all keep the same.
  void lent(EntryNumber entry);

  struct Victim {
    SlotRef at;
    bool offload = false;  // it must be copied to the next lower tier before it is dropped
    bool departs = false;  // it is the last copy, and somebody wants it before it is dropped
  };
  // What goes next from a tier; nothing where nothing may. It stays listed until the caller drops
  // it or calls begin_leaving.
  std::optional<Victim> next_victim(Tier tier);
  bool wants_offload(SlotRef at) const;
  // True where dropping it would cut present children off.
  bool holds_a_chain(SlotRef at) const;
  // Pins a copy that is being offloaded: it can still be found, but no longer holds its parent.
  void begin_leaving(SlotRef at);
  // It stays after all (the pin remains).
  void end_leaving(SlotRef at);
  std::uint32_t leaving_count(Tier tier) const { return leaving_[index_of(tier)]; }

  // True where a slot came free since the last call.
  bool take_freed() { return std::exchange(freed_, false); }
  void say_freed() { freed_ = true; }  // as if: those who wait are to be looked at once more
  std::uint64_t evictions(Tier tier, EvictionReason reason) const {
    return evictions_[index_of(tier)][static_cast<std::size_t>(reason)];
  }
  std::int64_t evictions() const;  // of all tiers, for whatever reason
  // Histories of blocks that are gone.
  std::uint32_t ghost_histories() const { return uses_ ? uses_->ghost_count() : 0; }
  std::uint64_t history_bytes() const { return uses_ ? uses_->memory_bytes() : 0; }
  // Of the index, the slots' records, the histories and the metadata that clients attached.
  std::uint64_t memory_bytes() const;
  void set_metadata(EntryNumber entry, std::string json);
  // Tells that no key has a copy in the tier, or in any.
  void tell_cleared(std::optional<Tier> tier) const;
  // Of a cache that is gone, whose last copies nobody can find any more, and whose files may be
  // another's by the time these go.
  void stop_telling() {
    events_ = {};
    journal_ = nullptr;
  }
  // Under which entries count; 0: none does.
  QuotaNumber quota_number(const std::shared_ptr<BlockQuota>& quota) const {
    return quotas_.find(quota);
  }
  std::uint32_t entry_count() const { return index_.size(); }  // ghosts included
  // Entries are numbered below this; a key keeps its number as long as it is present.
  EntryNumber entry_end() const { return index_.end(); }

 private:
  bool overdue(EntryNumber entry, TimePoint now) const {
    return index_[entry].has_ttl && expires_at(entry) <= now;
  }
  bool leased(const Entry& entry) const;
  bool expired(EntryNumber entry, TimePoint now) const {
    return overdue(entry, now) && !leased(index_[entry]);
  }
  UseStamp next_stamp() { return {++last_stamp_.value}; }
  // Of the highest copy; null where there is none. REQUIRES: uses_.
  const BlockHistory* known_of(const Entry& entry) const;
  bool is_last_copy(const Entry& entry, Tier tier) const;
  bool blocked(EntryNumber entry, Tier tier) const;
  void link_parent(EntryNumber child, const NewBlock& block);
  bool would_close_a_cycle(EntryNumber child, EntryNumber parent) const;
  void link_child(EntryNumber child);
  void unlink_child(EntryNumber child);
  void tell_children(EntryNumber parent);
  void set_cut_off(EntryNumber entry, bool is_cut_off);
  void vanish(EntryNumber entry);
  // Frees a ghost without children; lists again what no longer has to wait.
  void free_or_list(EntryNumber entry);
  void free_slot(SlotRef at);
  void list_last(SlotRef at);
  void list_last(SlotPool& slots, SlotNumber slot);
  void hand_on(const Entry& entry, SlotRef from);
  void forget_told(SlotRef at);
  bool believes(SlotRef at, const Telling& telling) const;
  void set_told(SlotRef at, NextUse next_use);
  void end_lease_pin(SlotRef at);
  void note_disk_slot(SlotNumber slot) const;
  void tell(BlockEventKind kind, SlotRef at, EntryNumber entry) const;

  std::uint64_t plain_hash_of(EntryNumber number) const;
  static std::unique_ptr<BlockUses> make_uses(const Options& options);
  const EvictionPolicy* policy() const { return uses_ ? &uses_->policy() : nullptr; }

  Options options_;
  std::unique_ptr<BlockUses> uses_;  // null: lru, which needs no history
  std::array<SlotPool, kNumTiers> pools_;
  KeyIndex index_;
  QuotaTable quotas_;
  EventSink events_;
  std::set<std::pair<TimePoint, EntryNumber>> expiries_;
  // Entries whose children are still to be told whether they are cut off, and of the first of them
  // the next child. One that has gone meanwhile has none; its number may be another's, whose
  // children are told what they know.
  std::deque<EntryNumber> untold_;
  EntryNumber next_untold_child_ = kNoEntry;
  bool telling_ = false;  // the first's children, from there on
  bool departs_ = false;
  std::array<std::uint32_t, kNumTiers> leaving_{};
  std::array<std::uint32_t, kNumTiers> superseded_{};
  std::array<std::array<std::uint64_t, kNumEvictionReasons>, kNumTiers> evictions_{};
  std::uint64_t attached_bytes_ = 0;
  std::uint64_t lease_pins_ = 0;
  bool freed_ = false;
  bool follows_lru_ = false;
  UseStamp last_stamp_;
  std::int64_t unix_ms_ = 0;
  TimePoint now_{};
  SlotJournal* journal_ = nullptr;  // null without a disk tier
  const SlotChecksums* disk_slots_ = nullptr;
};

// The highest copies of the longest present prefix of a list of keys, a batch at a time. The slots'
// records of a batch are being fetched when it is answered: use it after asking for the next.
// REQUIRES: no key comes or goes meanwhile.
class BlockStore::PrefixScan {
 public:
  PrefixScan(BlockStore& store, std::span<const KeyView> keys, TimePoint now)
      : store_(store), now_(now), entries_(store.index_, keys) {}
  // Empty at the prefix's end. Valid until the next but one call.
  std::span<const SlotRef> next();

 private:
  BlockStore& store_;
  const TimePoint now_;
  KeyIndex::Scan entries_;
  bool ended_ = false;
  std::array<std::array<SlotRef, KeyIndex::kBatch>, 2> found_;
  std::size_t calls_ = 0;
};

}  // namespace cairn
