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
#include "transport/io/slot_contents.hpp"

namespace cairn {

// A key's first copy.
struct NewBlock {
  KeyView key;
  std::optional<KeyView> parent = {};
  std::string metadata = {};
  std::optional<TimePoint> expires_at = {};
  std::shared_ptr<BlockQuota> quota = {};      // null: not counted
  std::uint32_t epoch = 1;                     // raised by each change of the metadata
  UserNumber user = kSeveralUsers;             // the user that stores it
  std::optional<std::uint64_t> key_hash = {};  // plain_hash() of `key`, if known
  EntryNumber parent_entry = kNoEntry;         // entry of `parent`, if known
  std::optional<std::uint8_t> priority = {};   // nullopt: the slot's
};

// A copy that an earlier run left on disk.
struct RestoredBlock {
  SlotNumber slot = 0;
  std::uint64_t generation = 0;
  UseStamp last_use = {};
  std::uint8_t priority = 0;
  NextUse hinted = NextUse::unknown;
  std::uint64_t history = 0;  // see JournalPlace::history
  NewBlock block;
};

// The metadata of a cache without its leases: which keys are present, in which slots, and the
// eviction order. It knows nothing of bytes, threads or waiting.
//
// A key is present while it has a copy. An absent key that is the parent of present keys is kept as
// a *ghost*. Lookups never find it, but a block stored under it is linked to its children at once.
// A ghost needs a present child and a present key needs a slot, so there are at most twice as many
// entries as slots. A block takes 40 bytes of slot, 104 of entries and 22 of buckets, and 8 of
// history if the eviction order learns.
//
// A block is *cut off* if its parent, or any key before that, is known but not present: no match
// from the start of its prefix reaches it. Cut-off blocks are evicted before all others, whatever
// their priority, so they never take the place of blocks that a match can find. When a key comes or
// goes, the blocks after it are updated in steps: settle_chains().
//
// Eviction takes a prefix from its tail. A copy is evicted only if no child has a copy in the same
// tier. The last copy of a key that will not be offloaded is evicted only if no child is present at
// all. A copy that reaches the front of its list too early is parked, and listed again when its
// last child goes. So each copy is skipped once, however long the chains are. The victim has the
// lowest priority among the copies that may be evicted. Among equals it is the least recently used
// one, or the one that the eviction order chooses.
//
// Not thread-safe.
class BlockStore {
 public:
  struct Options {
    std::array<std::uint32_t, kNumTiers> capacities{};  // units; 0: no such tier
    std::array<SlotSizes, kNumTiers> sizes{};
    bool offload_on_evict = true;
    std::uint64_t hash_seed = 0;
    EventSink events = {};  // gets an event for each copy added or removed
    EvictionKind eviction = EvictionKind::lru;
    // The size that the eviction order expects, in keys of prompts. 0: the slots of all tiers.
    std::uint32_t policy_blocks = 0;
    std::uint64_t history_bytes = 64ull << 20;  // limit for the history of evicted blocks
    // By KV group: what a block's parent is. Empty: one group, chained.
    enum class Parent : std::uint8_t {
      chained,  // the block before it in its prefix, of the same group
      // The block of `full_group` with the same key: no match ends there without it. The eviction
      // order learns from the full blocks only, and decides about both.
      full_block,
      none,
    };
    std::vector<Parent> parents = {};
    KvGroupNumber full_group = 0;
    std::vector<std::uint64_t> block_bytes = {};  // by KV group
    const SlotContents* disk_slots = nullptr;     // null without a disk tier; borrowed
  };
  explicit BlockStore(const Options& options);

  // Sets the time of the uses that follow. It may go back: uses stay in order.
  void set_time(std::int64_t unix_ms, TimePoint now = {}) {
    last_stamp_ = std::max(last_stamp_, UseStamp::at(unix_ms));
    unix_ms_ = unix_ms;
    now_ = now;
  }

  // Notes every later change of a disk slot in the journal. Borrows it.
  void note_changes(SlotJournal& journal) { journal_ = &journal; }
  // Calls `take` with the slot's journal entry, unless the slot was never used.
  void describe_disk_slot(SlotNumber slot,
                          const std::function<void(const JournalEntry&)>& take) const;

  // Changes a tier's capacity. New slots are free at once. Slots beyond the capacity disappear:
  // free ones at once, used ones when they are freed. Takes about 20 ms under the lock per million
  // new slots. If it throws std::bad_alloc, nothing has changed.
  void resize(Tier tier, std::uint32_t capacity);
  void set_offload_on_evict(bool offload_on_evict);
  // If true, next_victim() marks last copies as to_remote: they stay pinned for a taker that wants
  // them before they are dropped.
  void set_goes_remote(bool goes_remote) { goes_remote_ = goes_remote; }
  // A new eviction order. The old one's learnt state is lost. Copies already listed are evicted
  // first, in the order of last use. The slow parts run outside the lock: the constructor makes the
  // order (std::bad_alloc), and the destructor frees what set_eviction() replaced. REQUIRES: at
  // set_eviction(), each tier's slots are numbered below `ends`.
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
  // True: evicts by LRU, while the configured order continues to learn.
  void follow_lru(bool follows_lru) {
    if (std::exchange(follows_lru_, follows_lru) == follows_lru) return;
    for (SlotPool& slots : pools_) slots.follow_lru(follows_lru);
  }

  // The learnt state of the eviction order, for the next run: see EvictionPolicy.
  std::vector<std::byte> learnt() { return uses_ ? uses_->learnt() : std::vector<std::byte>(); }
  bool take_learnt(std::span<const std::byte> learnt) {
    return uses_ && uses_->take_learnt(learnt);
  }

  const SlotSizes& sizes(Tier tier) const { return options_.sizes[index_of(tier)]; }
  SlotPool& pool(Tier tier) { return pools_[index_of(tier)]; }
  const SlotPool& pool(Tier tier) const { return pools_[index_of(tier)]; }
  SlotRecord& record(SlotRef at) { return pool(at.tier())[at.slot()]; }
  const SlotRecord& record(SlotRef at) const { return pool(at.tier())[at.slot()]; }
  Entry& entry(EntryNumber number) { return index_[number]; }
  const Entry& entry(EntryNumber number) const { return index_[number]; }
  EntryDetails& details(EntryNumber number) { return index_.details(number); }
  const EntryDetails& details(EntryNumber number) const { return index_.details(number); }
  // Empty if it has none.
  std::string_view metadata(EntryNumber number) const {
    const auto& rare = index_.details(number).rare;
    return rare ? std::string_view(rare->metadata) : std::string_view();
  }
  // REQUIRES: it has a TTL.
  TimePoint expires_at(EntryNumber number) const { return index_.details(number).rare->expires_at; }
  std::uint32_t epoch(EntryNumber number) const {
    const auto& rare = index_.details(number).rare;
    return rare ? rare->epoch : 1;
  }
  void raise_epoch(EntryNumber number) { ++index_.rare(number).epoch; }
  BlockKey key(EntryNumber number) const { return index_.key(number); }
  // The key before it in its prefix, if known.
  std::optional<BlockKey> key_before(EntryNumber number) const;
  // Copies of that group's blocks in the tier.
  std::uint32_t blocks_of(Tier tier, KvGroupNumber group) const {
    return group_blocks_[index_of(tier)][group];
  }
  std::uint32_t units_in(SlotRef at) const { return pool(at.tier()).units_in(at.slot()); }
  KvGroupNumber kv_group(SlotRef at) const { return pool(at.tier()).kv_group(at.slot()); }
  BlockHandle handle(SlotRef at) const {
    return {at.tier(), at.slot(), record(at).generation, kv_group(at)};
  }
  std::optional<Tier> next_lower(Tier tier) const;

  // Returns the entry of a present key, else kNoEntry. Drops an expired key, unless it is leased. A
  // leased one stays until its last lease ends: find() returns it, but PrefixScan stops before it.
  EntryNumber find(KeyView key, TimePoint now);
  bool contains(KeyView key, TimePoint now) const;
  class PrefixScan;
  // Prefetches the data of these keys for lookups that follow.
  void prefetch(std::span<const KeyView> keys) const;
  // Prefetches for a key that is probably absent and about to be stored.
  void prefetch_new(KeyView key, std::uint64_t plain_hash) const;
  SlotRef highest_copy(const Entry& entry) const;  // REQUIRES: present
  bool has_lower_copy(const Entry& entry, Tier tier) const;

  // Begins a request for these keys and returns its number. Then call found() for each block, in
  // the order of the prefix, and missed() for the first absent key. Other calls may come between.
  RequestNumber begin_match(std::span<const KeyView> keys);
  void found(SlotRef at, RequestNumber request, bool is_hub) {
    if (uses_ && !follows_full_block(kv_group(at))) uses_->found(history(at), request, is_hub);
  }
  void missed(KeyView first, RequestNumber request);
  // The group whose blocks the eviction order learns from.
  KvGroupNumber full_group() const { return options_.full_group; }
  // Notes a use of the block, which ends an earlier hint.
  void used(SlotRef at, UserNumber user) {
    note_user(record(at).owner, user);
    if (record(at).prefetched) end_prefetch(at, PrefetchResult::used);
    if (record(at).hinted != NextUse::unknown) forget_hint(at);
  }
  void note_user(EntryNumber number, UserNumber user) {
    Entry& entry = index_[number];
    if (entry.user != user) entry.user = kSeveralUsers;
    met(user);
  }
  // A user of the cache.
  void met(UserNumber user) {
    if (user == first_token_ || user <= kNoToken) return;
    several_tokens_ = first_token_ != 0;
    if (!several_tokens_) first_token_ = user;
  }
  bool is_hub(SlotRef at) const { return index_[record(at).owner].children >= kHubChildren; }
  // Call for a further copy of a block: it takes over the history of the first.
  void copy_history(SlotRef from, SlotRef to);
  BlockHistory& history(SlotRef at) { return pool(at.tier()).history(at.slot()); }
  const BlockHistory& history(SlotRef at) const { return pool(at.tier()).history(at.slot()); }
  // Reports the end of the request that last used these blocks: see EvictionPolicy::ended(). The
  // last block with a history identifies the request; a later request may share those before it.
  std::optional<std::uint32_t> end_request(std::span<const SlotRef> held, const RequestEnd& end);

  // A user's hint for blocks. Pass the end of a prefix first. `never` and `later` count only if
  // nobody else needs the block: it has had no other user, and it has no child, or a single one
  // with such a hint. `within` counts only in the user's share, if several tokens use the cache.
  struct UseHint {
    NextUse next_use = NextUse::unknown;
    UserNumber user = kSeveralUsers;
  };
  // Sets the hint of a leased copy, which takes effect at the last unpin. Returns false if the hint
  // does not count.
  bool hint(SlotRef at, const UseHint& use_hint);
  // Sets the hint of a copy that may be listed, and lists it again accordingly. `hint` comes from
  // begin_hint(). Returns false if the hint does not count.
  bool hint_now(SlotRef at, const UseHint& use_hint, RequestNumber hint);
  RequestNumber begin_hint(NextUse next_use) {
    return uses_ ? uses_->begin_hint(next_use, unix_ms_) : 0;
  }
  // Finds a key's highest copy again, while the key is present.
  struct Trail {
    EntryNumber entry = kNoEntry;
    std::uint32_t tag = 0;  // of the key, because entries are reused
    friend bool operator==(const Trail&, const Trail&) = default;
  };
  Trail trail(EntryNumber number) const {
    return {number, static_cast<std::uint32_t>(plain_hash_of(number))};
  }
  std::optional<SlotRef> follow(Trail trail) const;

  // Allocates a free slot with one pin, which the caller releases with unpin(). REQUIRES: the group
  // has a free one.
  struct NewSlot {
    KvGroupNumber kv_group = 0;
    std::uint8_t priority = 0;
  };
  SlotRef take(Tier tier, NewSlot slot);
  // Makes the allocated slot the copy of a key. If the key is present, it keeps its block and
  // nothing changes. Looks the key up once.
  struct Committed {
    EntryNumber entry = kNoEntry;  // of the key
    bool is_new = false;
  };
  Committed commit(SlotRef at, NewBlock block);
  // Makes a free disk slot the copy of a key, unpinned. Returns false, unchanged, if the key is
  // present or the slot is taken. REQUIRES: used after all listed copies.
  bool restore(RestoredBlock restored);
  // Call after the last restore(): finds out which blocks are cut off. Looks at every key.
  void end_restoring();
  // Raises the generation of a free slot's next life to at least this.
  void raise_generation(SlotRef at, std::uint64_t generation);
  // Makes the allocated slot a further copy. REQUIRES: the key has none in that tier.
  void add_copy(EntryNumber entry, SlotRef at);
  // Moves a copy to another slot of its tier, with the same place in the eviction order. Leases
  // keep the old slot, which pins the new one for them. REQUIRES: `to` is allocated, with one pin;
  // `from` is pinned only by leases and one pin in place.
  struct Relocation {
    SlotRef from;
    SlotRef to;
  };
  void relocate(const Relocation& move);
  // Units of slots that leases hold although the copy moved to another slot.
  std::uint32_t superseded_units(Tier tier) const { return superseded_[index_of(tier)]; }
  // Lookups no longer find the copy. Frees its slot at once, or at the last unpin.
  void drop(SlotRef at, EvictionReason reason);
  void drop_all(EntryNumber entry, EvictionReason reason);
  // Drops at most `count` copies that stay only because their children are in other tiers, in the
  // order of eviction. Returns how many. Looks at every slot. REQUIRES: next_victim() returns
  // nullopt.
  std::uint32_t cut_chains(Tier tier, std::uint32_t count);
  // Drops at most `keys` expired keys. Returns false if more are left.
  bool expire(TimePoint now, std::uint32_t keys);
  // Updates, for at most `blocks` blocks, whether they are cut off after keys before them came or
  // went. Returns false if more are left, which keep their places in the eviction order until then.
  bool settle_chains(std::uint32_t blocks);

  // A pin keeps a slot's bytes unchanged. Lease pins are also counted separately.
  void pin(SlotRef at);
  void pin_for_lease(SlotRef at);
  void lease_pinned(SlotRef at) {
    pool(at.tier()).add_lease(at.slot());
    ++lease_pins_;
  }
  // Counts a slot once per lease pin.
  std::uint64_t lease_pins() const { return lease_pins_; }
  // The last unpin makes a committed copy the most recently used evictable one. It frees an
  // allocated slot, and that of a dropped copy.
  void unpin(SlotRef at);
  // The same for a lease's pin. An uncommitted slot then loses its owner.
  void unpin_for_lease(SlotRef at);
  // A pin that keeps the place in the eviction order, for copying a whole cache. REQUIRES:
  // committed.
  void pin_in_place(SlotRef at) { pool(at.tier()).pin_in_place(at.slot()); }
  void unpin_in_place(SlotRef at);
  // Refreshes the recency of an unpinned copy.
  void touch(SlotRef at);
  // Makes an unpinned copy the least recently used of its list, last used at `unix_ms` or earlier.
  void age(SlotRef at, std::int64_t unix_ms);
  // Call before another cache gets a copy. Unless in use here, the block is evicted early from now
  // on, so that caches that share blocks do not all keep the same ones.
  void lent(EntryNumber entry);

  // --- copies that clients' pins protect
  // Eviction skips the copy until unprotect(). It does not keep the block before it, as other
  // copies do: otherwise a pin of the last block of a prompt would keep all of it. A copy that is
  // leaving stays. REQUIRES: committed, and not protected.
  void protect(SlotRef at);
  void unprotect(SlotRef at);  // no effect if it is not protected
  // A copy that moved away during a read stays after it.
  void stay(SlotRef at) { record(at).drop_when_unpinned = false; }
  bool is_protected(const Entry& entry) const;
  // Keys whose protected copy was dropped since the last call. The caller may protect another copy.
  std::vector<Trail> take_unprotected() { return std::exchange(unprotected_, {}); }
  bool any_unprotected() const { return !unprotected_.empty(); }
  // Raises the priority of a copy for the user, whose share it takes if the priority is above that
  // of ordinary blocks. The copy then counts as used now.
  void raise_priority(SlotRef at, std::uint8_t priority, UserNumber user);
  // That of the copies of this copy in other tiers: raised copies have a share of one tier.
  std::uint8_t own_priority(SlotRef at) const;
  // One token may ask to keep or to bring this share of a tier without a use: prefetched blocks,
  // raised ones, and those with a hint that a use comes soon. They are guesses, and a token that
  // guesses everything must take little from the others: half of what its pins may take by default.
  // Where one token, or none, uses the cache, there is nobody to take from.
  static constexpr double kShareOfToken = 0.05;
  std::uint64_t asked_room(const SlotPool& slots, UserNumber user) const;  // units
  // Whether the user may ask for this slot.
  bool has_share(SlotRef at, UserNumber user) const;
  // No effect if it has no TTL, or one that ends later.
  void extend_ttl(EntryNumber entry, TimePoint expires_at);

  // --- copies that came before their request
  void set_prefetched(SlotRef at, UserNumber user) {
    pool(at.tier()).set_prefetched(at.slot(), user);
  }
  std::uint64_t prefetched(PrefetchResult result) const {
    return prefetched_[static_cast<std::size_t>(result)];
  }
  void count_prefetched(PrefetchResult result, std::uint64_t blocks) {
    prefetched_[static_cast<std::size_t>(result)] += blocks;
  }

  struct Victim {
    SlotRef at;
    bool offload = false;      // copy it to the next lower tier before dropping it
    bool goes_remote = false;  // it is the last copy; give it to the taker before dropping it
  };
  // Returns the next copy to evict from a tier; nullopt if none may be evicted. It stays listed
  // until the caller drops it or calls begin_leaving().
  std::optional<Victim> next_victim(Tier tier);
  bool wants_offload(SlotRef at) const;
  // Returns true if dropping it would cut off present children.
  bool holds_a_chain(SlotRef at) const;
  // Pins a copy that is being offloaded. Lookups still find it, but it no longer holds its parent.
  void begin_leaving(SlotRef at);
  // Call if the copy stays after all. Keeps the pin.
  void end_leaving(SlotRef at);
  std::uint32_t leaving_units(Tier tier) const { return leaving_[index_of(tier)]; }

  // Returns true if a slot was freed since the last call.
  bool take_freed() { return std::exchange(freed_, false); }
  void say_freed() { freed_ = true; }  // so that waiters are served again
  std::uint64_t evictions(Tier tier, EvictionReason reason) const {
    return evictions_[index_of(tier)][static_cast<std::size_t>(reason)];
  }
  std::int64_t evictions() const;  // for all tiers and reasons
  // The number of histories of evicted blocks.
  std::uint32_t ghost_histories() const { return uses_ ? uses_->ghost_count() : 0; }
  std::uint64_t history_bytes() const { return uses_ ? uses_->memory_bytes() : 0; }
  // Includes the index, the slot records, the histories and the attached metadata.
  std::uint64_t memory_bytes() const;
  void set_metadata(EntryNumber entry, std::string json);
  // Appends a `cleared` event for the tier; nullopt: for the cache.
  void publish_cleared(std::optional<Tier> tier) const;
  // Call when the cache is dropped: no more events and journal entries. Nobody can find its last
  // copies, and its files may belong to another cache when these are freed.
  void stop_events() {
    events_ = {};
    journal_ = nullptr;
  }
  // The number under which the quota counts entries; 0: it counts none.
  QuotaNumber quota_number(const std::shared_ptr<BlockQuota>& quota) const {
    return quotas_.find(quota);
  }
  std::uint32_t entry_count() const { return index_.size(); }  // includes ghosts
  // All entry numbers are below this. A key keeps its number while present.
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
  // The history of the highest copy; null if there is none. REQUIRES: uses_.
  const BlockHistory* known_of(const Entry& entry) const;
  bool follows_full_block(KvGroupNumber group) const {
    return !options_.parents.empty() && options_.parents[group] == Options::Parent::full_block;
  }
  // The history that decides in which list the slot's block waits. REQUIRES: uses_.
  BlockHistory& deciding_history(SlotPool& slots, SlotNumber slot);
  std::uint32_t following_blocks(EntryNumber number) const;
  bool is_last_copy(const Entry& entry, Tier tier) const;
  bool blocked(EntryNumber entry, Tier tier) const;
  bool holds_children(EntryNumber entry) const;
  void end_prefetch(SlotRef at, PrefetchResult result) {
    pool(at.tier()).end_prefetched(at.slot());
    count_prefetched(result, 1);
  }
  void set_parent(NewBlock& block) const;
  void link_parent(EntryNumber child, const NewBlock& block);
  bool would_close_a_cycle(EntryNumber child, EntryNumber parent) const;
  void link_child(EntryNumber child);
  void unlink_child(EntryNumber child);
  void settle_children(EntryNumber parent);
  void set_cut_off(EntryNumber entry, bool is_cut_off);
  void vanish(EntryNumber entry);
  // Frees a ghost without children. Lists parked copies that no child holds any more.
  void free_or_list(EntryNumber entry);
  void free_slot(SlotRef at);
  void list_last(SlotRef at);
  void list_last(SlotPool& slots, SlotNumber slot);
  void hand_on(const Entry& entry, SlotRef from);
  void forget_hint(SlotRef at);
  bool believes(SlotRef at, const UseHint& use_hint) const;
  // user: whose hint it is; 0: unknown.
  void set_hinted(SlotRef at, NextUse next_use, UserNumber user = 0);
  void end_lease_pin(SlotRef at);
  bool goes_after_read(SlotRef at);
  void note_disk_slot(SlotNumber slot) const;
  void publish(BlockEventKind kind, SlotRef at, EntryNumber entry) const;

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
  // Entries whose children need an update of `cut_off`. next_unsettled_child_ is the next child of
  // the first one. An entry that vanished meanwhile has no children. If its number was reused, the
  // children of the new key are already up to date.
  std::deque<EntryNumber> unsettled_;
  EntryNumber next_unsettled_child_ = kNoEntry;
  bool settling_ = false;  // the first entry's children are being updated
  bool goes_remote_ = false;
  std::array<std::uint32_t, kNumTiers> leaving_{};
  std::array<std::array<std::uint32_t, kMaxKvGroups>, kNumTiers> group_blocks_{};
  std::array<std::uint32_t, kNumTiers> superseded_{};
  std::array<std::array<std::uint64_t, kNumEvictionReasons>, kNumTiers> evictions_{};
  std::vector<Trail> unprotected_;
  std::array<std::uint64_t, kNumPrefetchResults> prefetched_{};
  UserNumber first_token_ = 0;
  bool several_tokens_ = false;
  std::uint64_t attached_bytes_ = 0;
  std::uint64_t lease_pins_ = 0;
  bool freed_ = false;
  bool follows_lru_ = false;
  UseStamp last_stamp_;
  std::int64_t unix_ms_ = 0;
  TimePoint now_{};
  SlotJournal* journal_ = nullptr;  // null without a disk tier
};

// The highest copies of the longest present prefix of a list of keys, batch by batch. It prefetches
// the slot records of a batch while returning it: use a batch after asking for the next. REQUIRES:
// no key comes or goes meanwhile.
class BlockStore::PrefixScan {
 public:
  PrefixScan(BlockStore& store, std::span<const KeyView> keys, TimePoint now)
      : store_(store), now_(now), entries_(store.index_, keys) {}
  // Empty at the end of the prefix. Valid until the second call after this one.
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
