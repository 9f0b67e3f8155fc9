// BlockStore: adds and removes keys and copies.
#include "blockmgr/index/block_store.hpp"

#include <algorithm>
#include <numeric>

#include "base/assert.hpp"

namespace cairn {
namespace {

// A parent that is stored below its own descendants could close a cycle, and no block of a cycle
// could ever be evicted. The search for a cycle stops after this many ancestors; then the block
// gets no parent.
constexpr std::uint32_t kMaxCycleSearch = 4096;
// Blocks updated at once when a key before them comes or goes: up to 200 ns each.
constexpr std::uint32_t kSettledAtOnce = 32;

KeyIndex::Options index_options(const BlockStore::Options& options) {
  std::uint32_t slots = 0;
  for (std::uint32_t capacity : options.capacities) slots += capacity;
  CAIRN_ASSERT(slots <= kMaxSlots, "entries would not fit their numbers");
  return {.max_entries = 2 * slots, .hash_seed = options.hash_seed};
}

}  // namespace

BlockStore::BlockStore(const Options& options)
    : options_(options),
      uses_(make_uses(options)),
      pools_{SlotPool(options.capacities[0], policy(), options.sizes[0]),
             SlotPool(options.capacities[1], policy(), options.sizes[1]),
             SlotPool(options.capacities[2], policy(), options.sizes[2], options.disk_slots)},
      index_(index_options(options)),
      events_(options.events) {}

std::uint64_t BlockStore::plain_hash_of(EntryNumber number) const {
  const Entry& entry = index_[number];
  if (entry.key_size > Entry::kHeadBytes) return plain_hash(index_.key(number));
  return plain_hash(KeyView{entry.key_head.data(), entry.key_size, entry.kv_group()});
}

std::unique_ptr<BlockUses> BlockStore::make_uses(const Options& options) {
  if (options.eviction == EvictionKind::lru) return nullptr;
  std::uint32_t slots = 0;
  for (const std::uint32_t capacity : options.capacities) slots += capacity;
  return std::make_unique<BlockUses>(BlockUses::Options{
      .eviction = options.eviction,
      .capacity_blocks = options.policy_blocks != 0 ? options.policy_blocks : slots,
      .ghost_bytes = options.history_bytes});
}

BlockStore::NewOrder::NewOrder(const Options& options,
                               const std::array<std::uint32_t, kNumTiers>& ends)
    : eviction_(options.eviction), uses_(make_uses(options)) {
  for (const std::uint32_t end : ends) {
    rooms_.push_back(SlotPool::room_for(uses_ ? &uses_->policy() : nullptr, end));
  }
}

void BlockStore::set_eviction(NewOrder& order) {
  for (std::size_t i = 0; i < kNumTiers; ++i) pools_[i].set_policy(order.rooms_[i]);
  std::swap(uses_, order.uses_);
  std::swap(options_.eviction, order.eviction_);
}

std::int64_t BlockStore::evictions() const {
  std::uint64_t sum = 0;
  for (const auto& tier : evictions_) sum = std::accumulate(tier.begin(), tier.end(), sum);
  return static_cast<std::int64_t>(sum);
}

void BlockStore::resize(Tier tier, std::uint32_t capacity) {
  std::uint32_t slots = 0;
  for (Tier each : kTiers) {
    slots += each == tier ? std::max(capacity, pool(each).end()) : pool(each).end();
  }
  CAIRN_ASSERT(slots <= kMaxSlots, "entries would not fit their numbers");
  index_.grow(2 * slots);
  pool(tier).set_limit(capacity);
  freed_ = true;  // waiters may get slots now
}

void BlockStore::set_offload_on_evict(bool offload_on_evict) {
  options_.offload_on_evict = offload_on_evict;
  for (Tier tier : kTiers) {
    // Lists parked copies that may be evicted now. Begins with the most recently used, so that each
    // passes few listed ones.
    std::vector<SlotNumber> parked;
    for (SlotNumber slot = 0; slot < pool(tier).end(); ++slot) {
      const SlotRecord& record = pool(tier)[slot];
      if (record.place == EvictionPlace::parked && !blocked(record.owner, tier)) {
        parked.push_back(slot);
      }
    }
    std::ranges::sort(parked, std::ranges::greater{},
                      [&](SlotNumber slot) { return pool(tier)[slot].last_use; });
    for (const SlotNumber slot : parked) pool(tier).list_by_use(slot);
  }
}

std::optional<Tier> BlockStore::next_lower(Tier tier) const {
  for (std::size_t i = index_of(tier) + 1; i < kNumTiers; ++i) {
    if (options_.capacities[i] > 0) return kTiers[i];
  }
  return std::nullopt;
}

EntryNumber BlockStore::find(KeyView key, TimePoint now) {
  const EntryNumber number = index_.find(key);
  if (number == kNoEntry || !index_[number].present()) return kNoEntry;
  if (expired(number, now)) {
    drop_all(number, EvictionReason::expired);
    return kNoEntry;
  }
  return number;
}

bool BlockStore::leased(const Entry& entry) const {
  for (Tier tier : kTiers) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (slot != kNoSlot && pool(tier)[slot].leases > 0) return true;
  }
  return false;
}

bool BlockStore::contains(KeyView key, TimePoint now) const {
  const EntryNumber number = index_.find(key);
  return number != kNoEntry && index_[number].present() && !expired(number, now);
}

void BlockStore::prefetch(std::span<const KeyView> keys) const {
  KeyIndex::Scan scan(index_, keys);
  while (!scan.next().empty()) continue;
}

void BlockStore::prefetch_new(KeyView key, std::uint64_t plain_hash) const {
  index_.prefetch(key);
  if (uses_) uses_->prefetch(plain_hash);
}

std::span<const SlotRef> BlockStore::PrefixScan::next() {
  if (ended_) return {};
  auto& found = found_[calls_++ % found_.size()];
  std::size_t count = 0;
  for (const EntryNumber number : entries_.next()) {
    if (number == kNoEntry || !store_.index_[number].present()) break;
    if (store_.overdue(number, now_)) {
      if (!store_.leased(store_.index_[number])) {
        store_.drop_all(number, EvictionReason::expired);
      }
      break;
    }
    found[count] = store_.highest_copy(store_.index_[number]);
    store_.pool(found[count].tier()).prefetch(found[count].slot());
    ++count;
  }
  ended_ = count < KeyIndex::kBatch;
  return std::span(found).first(count);
}

SlotRef BlockStore::highest_copy(const Entry& entry) const {
  for (Tier tier : kTiers) {
    if (const SlotNumber slot = entry.slots[index_of(tier)]; slot != kNoSlot) return {tier, slot};
  }
  CAIRN_ASSERT(false, "a key without a copy was taken for present");
}

const BlockHistory* BlockStore::known_of(const Entry& entry) const {
  for (Tier tier : kTiers) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (slot != kNoSlot) return &pool(tier).history(slot);
  }
  return nullptr;
}

bool BlockStore::has_lower_copy(const Entry& entry, Tier tier) const {
  for (std::size_t i = index_of(tier) + 1; i < kNumTiers; ++i) {
    if (entry.slots[i] != kNoSlot) return true;
  }
  return false;
}

SlotRef BlockStore::take(Tier tier, NewSlot slot) {
  const SlotRef at(tier, pool(tier).take(slot.kv_group));
  record(at).priority = slot.priority;
  record(at).last_use = next_stamp();
  return at;
}

// In a cache of several KV groups, replaces the parent that the client gave where another block
// decides whether a match reaches this one.
void BlockStore::set_parent(NewBlock& block) const {
  if (options_.parents.empty()) return;
  switch (options_.parents[block.key.kv_group]) {
    case Options::Parent::chained:
      return;
    case Options::Parent::full_block:
      block.parent = block.key.in(options_.full_group);
      break;
    case Options::Parent::none:
      block.parent.reset();
      break;
  }
  block.parent_entry = kNoEntry;
}

BlockStore::Committed BlockStore::commit(SlotRef at, NewBlock block) {
  set_parent(block);
  EntryNumber number = index_.find_or_insert(block.key);
  if (index_[number].present() && expired(number, now_)) {
    drop_all(number, EvictionReason::expired);
    number = index_.find_or_insert(block.key);  // the entry may have gone with its last copy
  }
  if (index_[number].present()) return {.entry = number};
  record(at).gone = false;
  if (block.priority) record(at).priority = *block.priority;
  if (block.parent && !(*block.parent == block.key)) link_parent(number, block);
  Entry& entry = index_[number];
  if (block.expires_at) {
    index_.rare(number).expires_at = *block.expires_at;
    entry.has_ttl = true;
    expiries_.emplace(*block.expires_at, number);
  }
  if (block.epoch != 1) index_.rare(number).epoch = block.epoch;
  entry.user = block.user;
  met(block.user);
  if (!block.metadata.empty()) set_metadata(number, std::move(block.metadata));
  entry.cut_off = 0;
  if (entry.parent != kNoEntry) link_child(number);
  entry.quota = quotas_.open(block.quota);
  if (uses_ && !history(at).is_known() && !follows_full_block(entry.kv_group())) {
    uses_->stored(history(at),
                  {.key_hash = block.key_hash ? *block.key_hash : plain_hash(block.key),
                   .parent = entry.parent == kNoEntry ? nullptr : known_of(index_[entry.parent]),
                   .is_hub = entry.children >= kHubChildren,
                   .unix_ms = unix_ms_});
  }
  add_copy(number, at);
  if (entry.children > 0 && entry.cut_off == 0) settle_children(number);
  return {.entry = number, .is_new = true};
}

void BlockStore::link_child(EntryNumber number) {
  Entry& child = index_[number];
  Entry& parent = index_[child.parent];
  ++parent.children;
  child.cut_off = parent.cut_off;
  const EntryNumber next = std::exchange(details(child.parent).first_child, number);
  details(number).next_sibling = next;
  if (next != kNoEntry) details(next).previous_sibling = number;
}

void BlockStore::unlink_child(EntryNumber number) {
  const EntryNumber parent = index_[number].parent;
  --index_[parent].children;
  index_[parent].ends_hinted = 0;
  EntryDetails& child = details(number);
  if (next_unsettled_child_ == number) next_unsettled_child_ = child.next_sibling;
  (child.previous_sibling == kNoEntry ? details(parent).first_child
                                      : details(child.previous_sibling).next_sibling) =
      child.next_sibling;
  if (child.next_sibling != kNoEntry) {
    details(child.next_sibling).previous_sibling = child.previous_sibling;
  }
  child.previous_sibling = child.next_sibling = kNoEntry;
}

void BlockStore::settle_children(EntryNumber parent) {
  unsettled_.push_back(parent);
  settle_chains(kSettledAtOnce);
}

bool BlockStore::settle_chains(std::uint32_t blocks) {
  for (; !unsettled_.empty(); unsettled_.pop_front()) {
    const EntryNumber parent = unsettled_.front();
    if (!std::exchange(settling_, true)) next_unsettled_child_ = details(parent).first_child;
    while (next_unsettled_child_ != kNoEntry) {
      if (blocks == 0) return false;
      --blocks;
      const EntryNumber child = next_unsettled_child_;
      next_unsettled_child_ = details(child).next_sibling;
      if (index_[child].cut_off == index_[parent].cut_off) continue;
      set_cut_off(child, index_[parent].cut_off != 0);
      if (index_[child].children > 0) unsettled_.push_back(child);
    }
    settling_ = false;
  }
  return true;
}

// Listed copies count as used now, so that the lists stay in the order of last use.
void BlockStore::set_cut_off(EntryNumber number, bool is_cut_off) {
  Entry& entry = index_[number];
  entry.cut_off = is_cut_off ? 1 : 0;
  for (const Tier tier : kTiers) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (slot == kNoSlot) continue;
    SlotRecord& record = pool(tier)[slot];
    const bool has_place = record.place != EvictionPlace::none;
    if (has_place) pool(tier).unlist(slot);
    record.cut_off = is_cut_off;
    if (!has_place) continue;
    record.last_use = next_stamp();
    list_last({tier, slot});
  }
}

void BlockStore::end_restoring() {
  for (EntryNumber number = 0; number < index_.end(); ++number) {
    const Entry& entry = index_[number];
    if (!entry.present() && entry.children > 0) unsettled_.push_back(number);
  }
  while (!settle_chains(kSettledAtOnce)) continue;
}

bool BlockStore::restore(RestoredBlock restored) {
  const SlotRef at(Tier::disk, restored.slot);
  SlotPool& slots = pool(Tier::disk);
  if (slots[restored.slot].life != SlotLife::free) return false;
  if (const EntryNumber known = index_.find(restored.block.key);
      known != kNoEntry && index_[known].present()) {
    return false;
  }
  if (!slots.take(restored.slot, restored.block.key.kv_group, restored.generation)) return false;
  record(at).priority = restored.priority;
  record(at).last_use = restored.last_use;
  if (uses_) uses_->restored(history(at), {.kept = restored.history, .hinted = restored.hinted});
  // Most parents were used after their children, so they are restored later: see end_restoring().
  index_[commit(at, std::move(restored.block)).entry].cut_off = 0;
  record(at).cut_off = false;
  set_hinted(at, restored.hinted);
  slots.unpin(restored.slot);
  list_last(at);
  last_stamp_ = std::max(last_stamp_, restored.last_use);
  return true;
}

void BlockStore::raise_generation(SlotRef at, std::uint64_t generation) {
  CAIRN_ASSERT(record(at).life == SlotLife::free, "a handle would become stale in use");
  if (record(at).generation < generation) {
    record(at).generation = generation & SlotRecord::kMaxGeneration;
  }
}

void BlockStore::link_parent(EntryNumber child, const NewBlock& block) {
  const EntryNumber parent =
      block.parent_entry != kNoEntry ? block.parent_entry : index_.find_or_insert(*block.parent);
  if (index_[parent].children == Entry::kMaxChildren) return;
  if (!index_[parent].present()) index_[parent].cut_off = 1;
  // Only a key that already has children can become its own ancestor.
  if (index_[child].children > 0 && would_close_a_cycle(child, parent)) return;
  index_[child].parent = parent;
}

bool BlockStore::would_close_a_cycle(EntryNumber child, EntryNumber parent) const {
  for (std::uint32_t steps = 0; steps < kMaxCycleSearch; ++steps) {
    if (parent == child) return true;
    if (parent == kNoEntry) return false;
    parent = index_[parent].parent;
  }
  return true;
}

void BlockStore::add_copy(EntryNumber number, SlotRef at) {
  Entry& entry = index_[number];
  CAIRN_ASSERT(entry.slots[index_of(at.tier())] == kNoSlot, "a copy would be lost");
  entry.slots[index_of(at.tier())] = at.slot();
  pool(at.tier()).set_committed(at.slot(), number);
  CAIRN_ASSERT(kv_group(at) == entry.kv_group(), "a block would lie in a slot of another size");
  record(at).cut_off = entry.cut_off != 0;
  ++group_blocks_[index_of(at.tier())][entry.kv_group_bits];
  quotas_.add(entry.quota, at.tier());
  if (entry.parent != kNoEntry) ++details(entry.parent).children_in_tier[index_of(at.tier())];
  publish(BlockEventKind::stored, at, number);
  free_or_list(number);
  if (at.tier() == Tier::disk) note_disk_slot(at.slot());
}

void BlockStore::describe_disk_slot(SlotNumber slot,
                                    const std::function<void(const JournalEntry&)>& take) const {
  const SlotRecord& record = pool(Tier::disk)[slot];
  JournalEntry note{.place = {.generation = record.generation, .slot = slot}};
  if (record.life != SlotLife::committed || record.gone) {
    // The last life that ended. The slot's header may know more about the current or next one.
    if (!record.gone) --note.place.generation;
    if (note.place.generation > 0) take(note);
    return;
  }
  const Entry& entry = index_[record.owner];
  const BlockKey key = index_.key(record.owner);
  BlockKey parent;
  // The parent of another group follows from the key: see set_parent().
  if (entry.parent != kNoEntry && index_[entry.parent].kv_group_bits == entry.kv_group_bits) {
    parent = index_.key(entry.parent);
  }
  note.place.stamp = record.last_use.value;
  note.place.encoded_bytes = options_.disk_slots->encoded_bytes(slot);
  const SlotRef highest = highest_copy(entry);
  note.place.hinted = static_cast<std::uint8_t>(this->record(highest).hinted);
  if (uses_) note.place.history = uses_->policy().kept(history(highest));
  note.block = {.key = key.view().as_text(),
                .parent = parent.view().as_text(),
                .metadata = metadata(record.owner),
                .data_bytes = options_.block_bytes.empty() ? options_.disk_slots->block_bytes()
                                                           : options_.block_bytes[entry.kv_group()],
                .data_checksum = options_.disk_slots->checksum(slot),
                .epoch = epoch(record.owner),
                .priority = record.priority,
                .kv_group = entry.kv_group()};
  if (entry.has_ttl) {
    note.block.expires_at_unix_ms =
        unix_ms_ +
        std::chrono::duration_cast<std::chrono::milliseconds>(expires_at(record.owner) - now_)
            .count();
  }
  take(note);
}

void BlockStore::note_disk_slot(SlotNumber slot) const {
  if (journal_ == nullptr) return;
  describe_disk_slot(slot, [this](const JournalEntry& entry) { journal_->note(entry); });
}

std::optional<BlockKey> BlockStore::key_before(EntryNumber number) const {
  const Entry& entry = index_[number];
  if (entry.parent == kNoEntry) return std::nullopt;
  if (index_[entry.parent].kv_group_bits == entry.kv_group_bits) return index_.key(entry.parent);
  // The parent is the full block of the same key: see set_parent().
  const EntryNumber before = index_[entry.parent].parent;
  if (before == kNoEntry) return std::nullopt;
  return BlockKey(index_.key(before).view().in(entry.kv_group()));
}

void BlockStore::publish(BlockEventKind kind, SlotRef at, EntryNumber number) const {
  if (events_.ring == nullptr) return;
  BlockEvent event{.unix_ms = last_stamp_.unix_ms(),
                   .kind = kind,
                   .tier = event_tier(at.tier()),
                   .key = index_.key(number)};
  if (kind == BlockEventKind::stored) {
    event.parent = key_before(number);
    event.has_metadata = !metadata(number).empty();
  }
  events_.append(std::move(event));
}

void BlockStore::publish_cleared(std::optional<Tier> tier) const {
  BlockEvent event{.unix_ms = last_stamp_.unix_ms(), .kind = BlockEventKind::cleared};
  if (tier) event.tier = event_tier(*tier);
  events_.append(std::move(event));
}

void BlockStore::relocate(const Relocation& move) {
  SlotPool& slots = pool(move.from.tier());
  SlotRecord& old = record(move.from);
  SlotRecord& fresh = record(move.to);
  CAIRN_ASSERT(
      old.life == SlotLife::committed && !old.gone && !old.leaving && old.pins == old.leases + 1,
      "a transfer would lose its source");
  const EntryNumber number = old.owner;
  slots.set_committed(move.to.slot(), number);
  index_[number].slots[index_of(move.to.tier())] = move.to.slot();
  fresh.priority = old.priority;
  fresh.last_use = old.last_use;
  fresh.used_again = old.used_again;
  fresh.cut_off = old.cut_off;
  if (uses_) history(move.to) = history(move.from);
  fresh.hinted = old.hinted;
  slots.hand_place_over(move.from.slot(), move.to.slot());
  if (old.is_protected) {
    slots.unprotect(move.from.slot());
    slots.protect(move.to.slot());
  }
  slots.move_asked(move.from.slot(), move.to.slot());
  if (move.to.tier() == Tier::disk) note_disk_slot(move.to.slot());
  old.owner = kNoOwner;
  old.gone = true;
  if (old.leases > 0) {
    slots.pin_in_place(move.to.slot());
    slots.add_lease(move.to.slot());
    old.has_successor = true;
    old.next = move.to.slot();
    superseded_[index_of(move.from.tier())] += units_in(move.from);
  }
  if (move.from.tier() == Tier::disk) note_disk_slot(move.from.slot());
}

void BlockStore::drop(SlotRef at, EvictionReason reason) {
  SlotRecord& slot = record(at);
  CAIRN_ASSERT(slot.life == SlotLife::committed && !slot.gone, "dropped twice");
  const std::size_t tier = index_of(at.tier());
  const EntryNumber number = slot.owner;
  Entry& entry = index_[number];
  const EntryNumber parent = entry.parent;
  entry.slots[tier] = kNoSlot;
  --group_blocks_[tier][entry.kv_group_bits];
  quotas_.remove(entry.quota, at.tier());
  if (slot.prefetched) end_prefetch(at, PrefetchResult::wasted);
  if (slot.is_protected) {
    pool(at.tier()).unprotect(at.slot());
    unprotected_.push_back(trail(number));
  } else if (slot.leaving) {
    slot.leaving = false;
    leaving_[tier] -= units_in(at);
  } else if (parent != kNoEntry) {
    --details(parent).children_in_tier[tier];
  }
  ++evictions_[tier][static_cast<std::size_t>(reason)];
  publish(BlockEventKind::removed, at, number);
  if (entry.present()) hand_on(entry, at);
  if (!entry.present()) {
    if (uses_ && !follows_full_block(entry.kv_group())) {
      uses_->gone(history(at), plain_hash_of(number));
    }
    vanish(number);
  } else if (entry.has_ttl) {
    expiries_.emplace(expires_at(number),
                      number);  // this copy's lease may have kept it
  }
  if (parent != kNoEntry) free_or_list(parent);
  slot.owner = kNoOwner;
  slot.gone = true;
  pool(at.tier()).unlist(at.slot());  // one pinned in place may still be listed
  if (at.tier() == Tier::disk) note_disk_slot(at.slot());
  if (slot.pins == 0) free_slot(at);
}

void BlockStore::vanish(EntryNumber number) {
  Entry& entry = index_[number];
  if (entry.has_ttl) {
    expiries_.erase({expires_at(number), number});
    entry.has_ttl = false;
  }
  if (const auto& rare = details(number).rare) rare->epoch = 1;
  set_metadata(number, {});
  details(number).checksum = 0;
  quotas_.close(std::exchange(entry.quota, QuotaNumber{0}));
  if (entry.parent != kNoEntry) unlink_child(number);
  // A ghost does not hold its own parent: otherwise ghosts would pile up behind a moving tail.
  entry.parent = kNoEntry;
  const bool cuts = entry.cut_off == 0 && entry.children > 0;
  entry.cut_off = 1;
  if (cuts) settle_children(number);
  free_or_list(number);
}

void BlockStore::free_or_list(EntryNumber number) {
  const Entry& entry = index_[number];
  if (!entry.present()) {
    if (entry.children == 0) index_.erase(number);
    return;
  }
  for (Tier tier : kTiers) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (slot == kNoSlot || pool(tier)[slot].place != EvictionPlace::parked) continue;
    if (pool(tier)[slot].is_protected) continue;  // unprotect() lists it
    if (!blocked(number, tier)) pool(tier).list_by_use(slot);
  }
}

void BlockStore::drop_all(EntryNumber number, EvictionReason reason) {
  const auto slots = index_[number].slots;  // the entry may go with its last copy
  for (Tier tier : kTiers) {
    if (slots[index_of(tier)] != kNoSlot) drop({tier, slots[index_of(tier)]}, reason);
  }
}

bool BlockStore::expire(TimePoint now, std::uint32_t keys) {
  for (; !expiries_.empty() && expiries_.begin()->first <= now; --keys) {
    if (keys == 0) return false;
    const EntryNumber number = expiries_.begin()->second;
    if (leased(index_[number])) {
      expiries_.erase(expiries_.begin());  // unpin_for_lease() drops it later
    } else {
      drop_all(number, EvictionReason::expired);
    }
  }
  return true;
}

void BlockStore::free_slot(SlotRef at) {
  // drop() has noted a dropped copy. The header of an uncommitted slot may already have a key.
  if (at.tier() == Tier::disk && record(at).life == SlotLife::allocated) {
    record(at).gone = true;
    note_disk_slot(at.slot());
  }
  pool(at.tier()).unlist(at.slot());
  const bool has_successor = record(at).has_successor;
  const std::uint32_t units = units_in(at);
  const SlotRef successor(at.tier(), record(at).next);
  // A dropped copy counts as committed until here.
  pool(at.tier()).give_back(at.slot());
  freed_ = true;
  if (!has_successor) return;
  superseded_[index_of(at.tier())] -= units;
  end_lease_pin(successor);
}

void BlockStore::set_metadata(EntryNumber number, std::string json) {
  const std::uint64_t before = metadata(number).size();
  if (!json.empty()) {
    json.shrink_to_fit();
    index_.rare(number).metadata = std::move(json);
  } else if (const auto& rare = details(number).rare) {
    rare->metadata = {};
    index_.drop_rare(number);
  }
  attached_bytes_ = attached_bytes_ - before + metadata(number).size();
  const SlotNumber on_disk = index_[number].slots[index_of(Tier::disk)];
  if (on_disk != kNoSlot) note_disk_slot(on_disk);
}

std::uint64_t BlockStore::memory_bytes() const {
  std::uint64_t bytes = index_.memory_bytes() + attached_bytes_;
  bytes += history_bytes();
  for (const SlotPool& slots : pools_) bytes += slots.memory_bytes();
  return bytes;
}

}  // namespace cairn
