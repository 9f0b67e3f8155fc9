#include "blockmgr/cache/ingest.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.hpp"
#include "blockmgr/cache/block_pieces.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/commit_parts.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Slots under one hold of the lock: some 300 ns each to check and pin, or to mark as written.
constexpr std::size_t kSlotsAtOnce = 48;

}  // namespace

void Ingest::fail(std::size_t item, Error error) {
  items_[item].error = std::move(error);
  if (!writers_.empty()) writers_[item].reset();
}

void Ingest::fail_all(const Error& error) {
  for (Item& item : items_) {
    if (item.state != State::present) item.error = error;
  }
}

const Error* Ingest::first_error() const {
  const auto failed = std::ranges::find_if(items_, [](const Item& item) { return !!item.error; });
  return failed == items_.end() ? nullptr : &*failed->error;
}

Result<> Ingest::hold_present() {
  std::vector<KeyView> keys;
  keys.reserve(items_.size());
  for (const Item& item : items_) keys.push_back(item.block.key);
  auto held = cache_->hold(keys, {.lease_ms = core_->options().max_lease_ms,
                                  .holder = terms_.holder,
                                  .hint = terms_.hint,
                                  .pins = terms_.pins});
  if (!held) return std::move(held).error();
  if (held->lease) present_ = HeldLease(cache_, *held->lease);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (!held->blocks[i]) continue;
    if (item.block.refuse_duplicate) return key_exists(item.block.key);
    item.state = State::present;
    item.block.handle = *held->blocks[i];
  }
  return {};
}

Result<> Ingest::check_present() {
  if (!present_) return {};
  auto alive = cache_->renew(present_.id(), core_->options().max_lease_ms);
  if (!alive) return std::move(alive).error();
  return {};
}

void Ingest::hold_duplicates() {
  std::vector<std::size_t> duplicates;
  std::vector<KeyView> keys;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].state != State::duplicate) continue;
    duplicates.push_back(i);
    keys.push_back(items_[i].block.key);
  }
  if (keys.empty()) return;
  std::optional<LeaseId> lease;
  if (present_) lease = present_.id();
  const auto held = cache_->hold(keys, {.lease_ms = core_->options().max_lease_ms, .lease = lease});
  if (held && held->lease && !present_) present_ = HeldLease(cache_, *held->lease);
  for (std::size_t i = 0; i < duplicates.size(); ++i) {
    if (held && held->blocks[i]) continue;
    fail(duplicates[i],
         held ? Error{ErrorCode::unknown_key, "the key disappeared while it was being copied"}
              : held.error());
  }
}

// The parent of the first block, and each parent of the others that is not the block before it. The
// block before is absent too, or held.
std::vector<std::optional<BlockKey>> Ingest::followed() const {
  std::vector<std::optional<BlockKey>> parents;
  for (const std::size_t i : absent_) {
    const auto& parent = items_[i].block.parent;
    const bool is_before = parent && i > 0 && *parent == items_[i - 1].block.key;
    if (parents.empty() || (parent && !is_before)) parents.push_back(parent);
  }
  return parents;
}

std::vector<std::uint32_t> Ingest::group_counts() const {
  std::vector<std::uint32_t> counts;
  if (core_->config.kv_groups.empty()) return counts;
  KvGroupNumber last = 0;
  for (const std::size_t i : absent_) {
    const KvGroupNumber group = items_[i].block.key.kv_group();
    CAIRN_ASSERT(group >= last, "a block would get the slot of another group");
    last = group;
    if (counts.size() <= group) counts.resize(group + std::size_t{1});
    ++counts[group];
  }
  return counts;
}

void Ingest::allocate(const Slots& slots, Done<> ended) {
  absent_.clear();
  if (terms_.shard) join_partials(slots);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].state == State::absent) absent_.push_back(i);
  }
  if (terms_.shard && absent_.empty()) {
    const auto kept = keep_partials(slots);
    return ended(kept);
  }
  const std::vector<std::optional<BlockKey>> parents = followed();
  cache_->allocate({.count = static_cast<std::uint32_t>(absent_.size()),
                    .group_counts = group_counts(),
                    .tier = slots.tier,
                    .lease_ms = core_->options().max_lease_ms,
                    .priority = slots.priority,
                    .may_evict = slots.room != Room::free_slots,
                    .takes_fewer = slots.room == Room::some,
                    .follows = parents,
                    .quota = terms_.quota,
                    .pins = terms_.pins,
                    .holder = terms_.holder},
                   [this, slots, ended = std::move(ended)](Result<Allocation> allocation) mutable {
                     auto taken = allocated(std::move(allocation));
                     if (taken && terms_.shard) {
                       taken = keep_partials(slots);
                     } else if (taken && slots.filled == Filled::by_copies) {
                       taken = pin_all();
                     }
                     if (!taken) fail_all(taken.error());
                     ended(std::move(taken));
                   });
}

Result<> Ingest::adopt(std::span<const SlotRef> slots) {
  CAIRN_ASSERT(slots.size() == items_.size(), "each item gets a slot");
  CacheLock locked(*core_, LockUse::allocate);
  if (auto usable = locked.check_usable(); !usable) {
    for (const SlotRef at : slots) locked->store.unpin(at);
    return usable;
  }
  CAIRN_TRY(locked->leases.check_room());
  const auto lease_ms = std::chrono::milliseconds(core_->options().max_lease_ms);
  const LeaseNumber lease = locked->leases.open(
      {.expires_at = locked.now() + lease_ms, .holder = terms_.holder, .quota = terms_.quota});
  Allocation allocation{.lease = locked->leases[lease].id};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    locked->store.record(slots[i]).owner = lease;
    locked->store.lease_pinned(slots[i]);
    allocation.blocks.push_back(locked->store.handle(slots[i]));
    absent_.push_back(i);
  }
  locked->leases.add(lease, slots);
  return allocated(std::move(allocation));
}

Result<> Ingest::allocated(Result<Allocation> allocation) {
  if (!allocation) return std::move(allocation).error();
  lease_ = HeldLease(cache_, allocation->lease);
  granted_ = allocation->blocks.size();
  for (std::size_t i = 0; i < granted_; ++i) {
    Item& item = items_[absent_[i]];
    item.block.handle = allocation->blocks[i];
    item.state = State::granted;
    item.error.reset();
  }
  for (std::size_t i = granted_; i < absent_.size(); ++i) {
    fail(absent_[i], {ErrorCode::no_capacity, "there is room for the " + std::to_string(granted_) +
                                                  " blocks before it only"});
  }
  return {};
}

// Adds a pin to the lease's, so that a lease that ends early frees no slot that is still being
// written. Slots that the lease has lost by now belong to others; pinned slots stay.
Result<> Ingest::pin_all() {
  CacheLock locked(*core_, LockUse::transfer);
  const auto pin = [&](const Item& item) -> Result<> {
    auto lease = locked->leases.live(locked, lease_.id());
    if (!lease) return std::move(lease).error();
    auto at = locked->leases.uncommitted(locked, *lease, item.block.handle);
    if (!at) return std::move(at).error();
    locked->store.pin(*at);
    return {};
  };
  for (std::size_t i = 0; i < granted_; ++i) {
    if (i > 0 && i % kSlotsAtOnce == 0) locked.yield();
    auto pinned = pin(items_[absent_[i]]);
    if (pinned) continue;
    while (i-- > 0) locked->store.unpin(items_[absent_[i]].slot());
    return pinned;
  }
  on_their_way_ = granted_;
  return {};
}

// Opens the blocks that others have begun for this part of them. Those that have the part need no
// bytes. The others, and those whose part is being written, get slots of their own.
void Ingest::join_partials(const Slots& slots) {
  keepers_.resize(items_.size());
  writers_.resize(items_.size());
  std::vector<std::size_t> begun;
  {
    CacheLock locked(*core_, LockUse::write);
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (i > 0 && i % kSlotsAtOnce == 0) locked.yield();
      Item& item = items_[i];
      if (item.state != State::absent || locked->dropped) continue;
      PartialBlocks::Partial* const partial = locked->partials.find(item.block.key);
      if (partial == nullptr) continue;
      const LayoutConfig& shape = core_->shape(item.block.key.kv_group());
      const PieceProgress* const progress = locked->writes.find(partial->at);
      if (partial->completing ||
          (progress != nullptr && progress->is_written(piece_range(shape, terms_.shard)))) {
        item.state = State::there;
        continue;
      }
      // The caller's copies go to one tier.
      if (slots.filled == Filled::by_copies && partial->at.tier() != slots.tier) continue;
      if (std::ranges::find(entered_, partial->keeper) == entered_.end()) {
        PartialBlocks::enter(locked, *partial->keeper);
        entered_.push_back(partial->keeper);
      }
      keepers_[i] = partial->keeper;
      item.block.handle = locked->store.handle(partial->at);
      begun.push_back(i);
    }
  }
  for (const std::size_t i : begun) {
    if (open(i)) {
      items_[i].state = State::granted;
    } else {
      keepers_[i].reset();
    }
  }
}

// The new slots become their keys' partial blocks, and their lease the keeper of those.
Result<> Ingest::keep_partials(const Slots& slots) {
  std::vector<std::size_t> joined;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].state == State::granted && keepers_[i] != nullptr) joined.push_back(i);
  }
  if (granted_ > 0) {
    auto keeper =
        std::make_shared<PartialBlocks::Keeper>(PartialBlocks::Keeper{.lease = lease_.id()});
    CacheLock locked(*core_, LockUse::write);
    CAIRN_TRY(locked.check_usable());
    PartialBlocks::enter(locked, *keeper);
    entered_.push_back(keeper);
    lease_.keep();
    for (std::size_t i = 0; i < granted_; ++i) {
      if (i > 0 && i % kSlotsAtOnce == 0) {
        locked.yield();
        CAIRN_TRY(locked.check_usable());
      }
      const Item& item = items_[absent_[i]];
      keepers_[absent_[i]] = keeper;
      // Another request may have begun the block meanwhile. The commit then joins the two.
      if (locked->partials.find(item.block.key) != nullptr) continue;
      locked->partials.add(item.block.key, {.at = item.slot(), .keeper = keeper});
    }
  }
  absent_.insert(absent_.begin(), joined.begin(), joined.end());
  granted_ += joined.size();
  if (slots.filled == Filled::by_writes) return {};
  for (const std::size_t i : granted()) {
    if (!writers_[i]) CAIRN_TRY(open(i));
    static_cast<void>(writers_[i]->in_place());
  }
  return {};
}

// Frees the slots that are of no use: those without a whole piece that nobody writes to now, and
// those that did not become a partial block.
void Ingest::leave_partials() {
  if (entered_.empty()) return;
  CacheLock locked(*core_, LockUse::write);
  for (std::size_t i = 0; i < granted_; ++i) {
    if (i > 0 && i % kSlotsAtOnce == 0) locked.yield();
    const std::size_t number = absent_[i];
    const Item& item = items_[number];
    if (keepers_[number] == nullptr) continue;
    const SlotRef at = item.slot();
    const SlotRecord& slot = locked->store.record(at);
    if (slot.generation != item.block.handle.generation || slot.gone) continue;
    if (slot.life != SlotLife::allocated || slot.committing) continue;
    const PieceProgress* const progress = locked->writes.find(at);
    const PartialBlocks::Partial* const partial = locked->partials.find(item.block.key);
    const bool is_partial = partial != nullptr && partial->at == at;
    const bool is_used = progress != nullptr && (progress->busy() || progress->has_piece());
    if (is_partial && (is_used || partial->completing)) continue;
    static_cast<void>(
        locked->leases.part_with(locked, {.from = keepers_[number]->lease, .to = {}}, {&at, 1}));
  }
  for (const auto& keeper : entered_) PartialBlocks::leave(locked, *keeper);
  entered_.clear();
}

Result<> Ingest::open(std::size_t item) {
  const bool is_kept = !keepers_.empty() && keepers_[item] != nullptr;
  auto writer = cache_->write({.lease = is_kept ? keepers_[item]->lease : lease_.id(),
                               .block = items_[item].block.handle,
                               .part = terms_.shard});
  if (!writer) return std::move(writer).error();
  if (writers_.empty()) writers_.resize(items_.size());
  writers_[item].emplace(std::move(*writer));
  return {};
}

std::vector<iovec> Ingest::in_place(std::size_t item) { return writers_[item]->in_place(); }

void Ingest::room(std::size_t item, Done<std::span<const iovec>> ready) {
  if (writers_.empty() || !writers_[item]) {
    if (auto opened = open(item); !opened) return ready(std::move(opened).error());
  }
  writers_[item]->room(std::move(ready));
}

void Ingest::finish(std::size_t item, Done<> done) {
  writers_[item]->finish([this, item, done = std::move(done)](Result<> written) mutable {
    if (written) {
      items_[item].state = State::filled;
    } else {
      fail(item, written.error());
    }
    done(std::move(written));
  });
}

bool Ingest::copied(std::span<const std::size_t> items) {
  if (terms_.shard) {
    for (const std::size_t i : items) {
      if (!items_[i].error) finish(i, [](const Result<>&) {});
    }
    return true;
  }
  CacheLock locked(*core_, LockUse::transfer);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0 && i % kSlotsAtOnce == 0) locked.yield();
    Item& item = items_[items[i]];
    const SlotRef at = item.slot();
    if (locked->store.record(at).gone && !item.error) {
      item.error = Error{ErrorCode::lease_expired, "the lease ended during the copy"};
    }
    if (!item.error) {
      const auto all = piece_range(core_->shape(item.block.handle.kv_group), std::nullopt);
      locked->writes.begin(at, all.count).set_written(all);
      item.state = State::filled;
    }
    locked->store.unpin(at);
  }
  CAIRN_ASSERT(on_their_way_ >= items.size(), "a slot that was unpinned twice may be another's");
  on_their_way_ -= items.size();
  return on_their_way_ == 0;
}

void Ingest::commit(Then then, Done<> ended) {
  std::vector<std::size_t> whole;
  std::vector<CommitBlock> blocks;
  whole.reserve(granted_);
  blocks.reserve(granted_);
  for (const std::size_t i : granted()) {
    Item& item = items_[i];
    const bool is_whole = !item.error && item.state == State::filled;
    // Others may be waiting for its staging buffer.
    if (!writers_.empty() && (item.error || is_whole)) writers_[i].reset();
    if (!is_whole) continue;
    whole.push_back(i);
    blocks.push_back(std::move(item.block));  // its key and its handle stay usable
  }
  if (blocks.empty()) return ended({});
  if (terms_.shard) return commit_shards(std::move(whole), std::move(blocks), std::move(ended));
  const CommitTerms terms{.release = then == Then::release, .hint = terms_.hint};
  cache_->commit(
      lease_.id(), std::move(blocks),
      [this, then, whole = std::move(whole),
       ended = std::move(ended)](const Result<std::vector<CommitStatus>>& statuses) mutable {
        if (statuses && then == Then::release) lease_.keep();
        committed(whole, statuses);
        ended(statuses ? Result<>() : Result<>(statuses.error()));
      },
      terms);
}

void Ingest::commit_shards(std::vector<std::size_t> whole, std::vector<CommitBlock> blocks,
                           Done<> ended) {
  std::vector<StoredPart> parts;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].shard = terms_.shard;
    items_[whole[i]].block.shard = terms_.shard;
    parts.push_back({.block = std::move(blocks[i]), .keeper = keepers_[whole[i]]});
  }
  commit_stored_parts(
      core_, std::move(parts),
      [this, whole = std::move(whole),
       ended = std::move(ended)](const Result<std::vector<CommitStatus>>& statuses) mutable {
        committed(whole, statuses);
        ended(statuses ? Result<>() : Result<>(statuses.error()));
      },
      terms_.hint);
}

void Ingest::committed(std::span<const std::size_t> items,
                       const Result<std::vector<CommitStatus>>& statuses) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    Item& item = items_[items[i]];
    if (!statuses) {
      item.error = statuses.error();
    } else {
      item.state = (*statuses)[i] == CommitStatus::duplicate ? State::duplicate
                   : (*statuses)[i] == CommitStatus::pending ? State::pending
                                                             : State::committed;
    }
  }
}

// Releases the prefix's end first, so that it is evicted first.
void Ingest::release() {
  writers_.clear();
  leave_partials();
  lease_.release();
  present_.release();
}

void Ingest::release_as_used(std::span<const std::int64_t> unix_ms) {
  release();
  CacheLock locked(*core_, LockUse::upkeep);
  if (locked->dropped) return;
  for (std::size_t i = 0; i < unix_ms.size() && i < granted_; ++i) {
    const Item& item = items_[absent_[i]];
    const SlotRecord& slot = locked->store.record(item.slot());
    if (slot.generation != item.block.handle.generation || slot.pins > 0) continue;
    locked->store.age(item.slot(), unix_ms[i]);
  }
}

}  // namespace cairn
