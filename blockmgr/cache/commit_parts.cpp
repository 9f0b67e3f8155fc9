// Commits of parts of blocks (head shards): docs/design/head-shards.md.
#include "blockmgr/cache/commit_parts.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "base/assert.hpp"
#include "blockmgr/cache/block_pieces.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

using Keeper = PartialBlocks::Keeper;

// Blocks checked or joined under one hold of the lock: some 300 ns each.
constexpr std::size_t kStepBlocks = 24;

ShardSelector unit(const LayoutConfig& shape, std::uint32_t number) {
  return {.shard = number, .shards = static_cast<std::uint32_t>(shape.shards)};
}

PieceProgress::Range unit_range(const LayoutConfig& shape, std::uint32_t number) {
  return piece_range(shape, unit(shape, number));
}

std::vector<std::byte> bytes_of(std::span<const iovec> ranges) {
  std::vector<std::byte> bytes;
  for (const iovec& range : ranges) {
    const auto* const data = static_cast<const std::byte*>(range.iov_base);
    bytes.insert(bytes.end(), data, data + range.iov_len);
  }
  return bytes;
}

Error not_written(SlotRef at, ShardSelector part) {
  return {ErrorCode::state_conflict,
          "slot " + std::to_string(at.slot()) + " of tier " + std::string(to_string(at.tier())) +
              ": shard " + std::to_string(part.shard) + " of " + std::to_string(part.shards) +
              " was not written, or not all of it; a part must be written before its commit"};
}

// One request. Its slots that hold parts first go to keepers, whose leases the server holds. Then
// each part joins the block of its key: the first one's slot becomes that block, and the bytes of
// later ones in slots of their own are copied to it. A block that has all parts is committed.
class PartCommit : public std::enable_shared_from_this<PartCommit> {
 public:
  PartCommit(std::shared_ptr<CacheCore> core, Done<std::vector<CommitStatus>> done,
             CommitTerms terms)
      : core_(std::move(core)), terms_(std::move(terms)), done_(std::move(done)) {}

  void start(const LeaseId& lease, std::vector<CommitBlock> blocks);
  void start(std::vector<StoredPart> parts);

 private:
  struct Item {
    std::size_t index = 0;  // in statuses_
    CommitBlock block;
    std::vector<std::uint32_t> units;  // parts of the layout that the slot holds
    std::shared_ptr<Keeper> keeper;    // of the slot
    bool contributed = false;

    SlotRef at() const { return {block.handle.tier, block.handle.slot}; }
  };
  // A copy of some parts from an item's slot to its key's block.
  struct Merge {
    std::size_t item = 0;
    SlotRef to;
    std::vector<std::uint32_t> units;
  };
  struct Kind {
    Tier from = Tier::device;
    Tier to = Tier::device;
    KvGroupNumber kv_group = 0;
    std::uint32_t unit = 0;
    auto operator<=>(const Kind&) const = default;
  };
  struct Copy {
    BlockLayout source;
    BlockLayout destination;
    std::vector<BlockPair> pairs;
  };
  struct Whole {
    std::shared_ptr<Keeper> keeper;
    std::size_t item = 0;
    SlotRef at;
  };

  Result<> check_all(CacheLock& locked, std::span<CommitBlock> blocks);
  Result<> check(CacheLock& locked, LeaseNumber lease, CommitBlock& block);
  Result<> mark_written(CacheLock& locked);
  Result<> take_over(CacheLock& locked);
  void commit_whole();
  void join();
  Result<> join_all(CacheLock& locked);
  Result<> join_one(CacheLock& locked, std::size_t number);
  bool joined_directly(CacheLock& locked, Item& item, PartialBlocks::Partial& partial);
  void plan_merge(CacheLock& locked, std::size_t number, const PartialBlocks::Partial& partial);
  void copy();
  void copy_ended(const JobOutcome& outcome);
  void copied();
  void copy_next_by_hand();
  void loaded_by_hand(std::size_t item, std::span<const iovec> bytes);
  void write_by_hand(std::size_t item, std::shared_ptr<std::vector<std::byte>> block);
  void go_on();
  void complete();
  void completed(const std::vector<Whole>& blocks, Result<std::vector<CommitStatus>> statuses);
  void settle(CacheLock& locked, Item& item, PartialBlocks::Partial& partial);
  void enter(CacheLock& locked, const std::shared_ptr<Keeper>& keeper);
  void give_up(const Item& item) { surplus_[item.keeper].push_back(item.at()); }
  void fail(const Error& error);
  void end();
  const LayoutConfig& shape(const Item& item) const {
    return core_->shape(item.block.handle.kv_group);
  }

  const std::shared_ptr<CacheCore> core_;
  const CommitTerms terms_;
  Done<std::vector<CommitStatus>> done_;
  std::optional<LeaseId> lease_;  // the request's; holds the blocks that it commits
  std::vector<CommitStatus> statuses_;
  std::vector<CommitBlock> whole_;  // of the request, not in parts
  std::vector<std::size_t> whole_indices_;
  std::vector<BlockKey> whole_keys_;  // in groups with shards
  std::vector<Item> items_;
  std::vector<std::size_t> todo_;     // items that have not joined yet
  std::vector<std::size_t> blocked_;  // others write the parts that they have
  std::vector<std::size_t> by_hand_;  // a disk takes part
  std::vector<Merge> merges_;
  std::map<Kind, Copy> copies_;
  std::size_t copying_ = 0;
  std::vector<Whole> complete_;
  std::size_t completing_ = 0;  // commits in progress
  std::vector<std::shared_ptr<Keeper>> entered_;
  std::map<std::shared_ptr<Keeper>, std::vector<SlotRef>> surplus_;
  std::optional<Error> error_;  // the first
  Mutex mutex_;                 // for what ends on several threads
};

void PartCommit::start(const LeaseId& lease, std::vector<CommitBlock> blocks) {
  lease_ = lease;
  statuses_.assign(blocks.size(), CommitStatus::duplicate);
  Result<> ready;
  {
    CacheLock locked(*core_, LockUse::commit);
    ready = check_all(locked, blocks);
    if (ready) ready = mark_written(locked);
    if (ready && !items_.empty()) ready = take_over(locked);
  }
  if (!ready) return fail(ready.error());
  if (!whole_.empty()) return commit_whole();
  join();
}

void PartCommit::start(std::vector<StoredPart> parts) {
  statuses_.assign(parts.size(), CommitStatus::duplicate);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const LayoutConfig& block = core_->shape(parts[i].block.handle.kv_group);
    auto units = cairn::units_of(block, *parts[i].block.shard);
    items_.push_back({.index = i,
                      .block = std::move(parts[i].block),
                      .units = std::move(units),
                      .keeper = std::move(parts[i].keeper)});
    todo_.push_back(i);
  }
  join();
}

// Checks all blocks before any is changed, and sorts them into whole ones and parts.
Result<> PartCommit::check_all(CacheLock& locked, std::span<CommitBlock> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i > 0 && i % kStepBlocks == 0) locked.yield();
    const auto lease = locked->leases.live(locked, *lease_);
    if (!lease) return lease.error();
    const std::size_t before = items_.size();
    CAIRN_TRY(check(locked, *lease, blocks[i]));
    if (items_.size() > before) {
      items_.back().index = i;
      todo_.push_back(before);
    } else {
      whole_indices_.push_back(i);
    }
  }
  return {};
}

// Adds the block to the items, or to the whole ones.
Result<> PartCommit::check(CacheLock& locked, LeaseNumber lease, CommitBlock& block) {
  CAIRN_TRY(core_->check_kv_group(block.handle.kv_group));
  const LayoutConfig& blocks = core_->shape(block.handle.kv_group);
  const bool is_sharded = blocks.shards > 0;
  if (block.shard) CAIRN_TRY(check_part(blocks, *block.shard));
  const auto at = locked->leases.uncommitted(locked, lease, block.handle);
  if (!at) return at.error();
  const PieceProgress* const progress = locked->writes.find(*at);
  Item item{.index = 0, .block = block, .units = {}, .keeper = nullptr};
  if (block.shard && block.shard->shards > 1) {
    item.units = cairn::units_of(blocks, *block.shard);
  } else if (is_sharded && progress != nullptr && !block.shard) {
    for (std::uint32_t number = 0; number < blocks.shards; ++number) {
      if (progress->any_written(unit_range(blocks, number))) {
        item.units.push_back(number);
      }
    }
  }
  if (item.units.empty() || item.units.size() == blocks.shards) {
    if (is_sharded) whole_keys_.push_back(block.key);
    whole_.push_back(std::move(block));
    return {};
  }
  if (block.key.kv_group() != block.handle.kv_group) {
    return Error{ErrorCode::state_conflict, "a block and its key are of different KV groups"};
  }
  if (block.refuse_duplicate && locked->store.find(block.key, locked.now()) != kNoEntry) {
    return key_exists(block.key);
  }
  if (progress != nullptr && progress->busy()) {
    return Error{ErrorCode::state_conflict,
                 "slot " + std::to_string(at->slot()) + " is being written"};
  }
  const bool untouched =
      progress == nullptr || std::ranges::none_of(item.units, [&](std::uint32_t number) {
        return progress->any_written(unit_range(blocks, number));
      });
  if (untouched && locked->mapped[index_of(at->tier())]) {
    if (terms_.in_place == InPlaceWrites::forbidden) {
      return Error{ErrorCode::forbidden,
                   "shard " + std::to_string(item.units.front()) + " of slot " +
                       std::to_string(at->slot()) + " of tier " +
                       std::string(to_string(at->tier())) +
                       " was not written over HTTP, and other processes map that tier: only a "
                       "client that may map it may commit its content"};
    }
    items_.push_back(std::move(item));
    return {};
  }
  for (const std::uint32_t number : item.units) {
    const ShardSelector part = unit(blocks, number);
    if (progress == nullptr || !progress->is_written(piece_range(blocks, part))) {
      return not_written(*at, part);
    }
  }
  items_.push_back(std::move(item));
  return {};
}

// From here on exactly the parts that the request names count as written: also those that were
// written in place, and no others that the slot has.
Result<> PartCommit::mark_written(CacheLock& locked) {
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (i > 0 && i % kStepBlocks == 0) {
      locked.yield();
      CAIRN_TRY(locked.check_usable());
    }
    const Item& item = items_[i];
    const auto lease = locked->leases.live(locked, *lease_);
    if (!lease) return lease.error();
    CAIRN_TRY(locked->leases.uncommitted(locked, *lease, item.block.handle));
    const LayoutConfig& blocks = shape(item);
    locked->writes.erase_unless_busy(item.at());
    PieceProgress& progress =
        locked->writes.begin(item.at(), piece_range(blocks, std::nullopt).count);
    for (const std::uint32_t number : item.units) {
      progress.set_written(unit_range(blocks, number));
    }
  }
  return {};
}

// Moves the slots to a keeper, so that the end of the client's lease does not free them.
Result<> PartCommit::take_over(CacheLock& locked) {
  CAIRN_TRY(locked->leases.check_room());
  const auto lease = locked->leases.live(locked, *lease_);
  if (!lease) return lease.error();
  const Lease& from = locked->leases[*lease];
  const LeaseNumber number = locked->leases.open({.expires_at = Leases::kNotYet,
                                                  .holder = from.holder,
                                                  .quota = from.quota,
                                                  .pins = from.pins});
  auto keeper = std::make_shared<Keeper>(Keeper{.lease = locked->leases[number].id});
  enter(locked, keeper);
  std::vector<SlotRef> slots;
  for (Item& item : items_) {
    item.keeper = keeper;
    slots.push_back(item.at());
  }
  return locked->leases.part_with(locked, {.from = *lease_, .to = keeper->lease}, slots);
}

void PartCommit::enter(CacheLock& locked, const std::shared_ptr<Keeper>& keeper) {
  if (std::ranges::find(entered_, keeper) != entered_.end()) return;
  PartialBlocks::enter(locked, *keeper);
  entered_.push_back(keeper);
}

void PartCommit::commit_whole() {
  CommitTerms terms = terms_;
  terms.release = terms_.release && items_.empty();
  commit_blocks(
      core_, *lease_, std::move(whole_),
      [self = shared_from_this()](Result<std::vector<CommitStatus>> statuses) {
        if (!statuses) return self->fail(statuses.error());
        for (std::size_t i = 0; i < statuses->size(); ++i) {
          self->statuses_[self->whole_indices_[i]] = (*statuses)[i];
        }
        self->join();
      },
      std::move(terms));
}

void PartCommit::join() {
  Result<> joined;
  {
    CacheLock locked(*core_, LockUse::commit);
    joined = join_all(locked);
  }
  // Even after an error: others may wait for parts that this has claimed.
  if (!joined && !error_) error_ = joined.error();
  copy();
}

Result<> PartCommit::join_all(CacheLock& locked) {
  const std::vector<std::size_t> todo = std::exchange(todo_, {});
  for (std::size_t i = 0; i < todo.size(); ++i) {
    if (i > 0 && i % kStepBlocks == 0) locked.yield();
    CAIRN_TRY(locked.check_usable());
    CAIRN_TRY(join_one(locked, todo[i]));
  }
  return {};
}

Result<> PartCommit::join_one(CacheLock& locked, std::size_t number) {
  Item& item = items_[number];
  const auto lease = locked->leases.find(item.keeper->lease);
  if (!lease) return Error{ErrorCode::lease_expired, "the block was dropped before its commit"};
  PartialBlocks::Partial* partial = locked->partials.find(item.block.key);
  const bool is_here = partial != nullptr && partial->at == item.at();
  if (is_here && partial->completing) {
    statuses_[item.index] = CommitStatus::pending;
    return {};
  }
  if (const auto at = locked->leases.uncommitted(locked, *lease, item.block.handle); !at) {
    // Another request has committed the block that this one has written a part of.
    const bool committed = locked->store.find(item.block.key, locked.now()) != kNoEntry;
    if (!committed) return at.error();
    statuses_[item.index] = CommitStatus::committed;
    return {};
  }
  if (locked->store.find(item.block.key, locked.now()) != kNoEntry) {
    if (item.block.refuse_duplicate) return key_exists(item.block.key);
    give_up(item);
    return {};
  }
  if (partial == nullptr) {
    locked->partials.add(item.block.key, {.at = item.at(), .keeper = item.keeper});
    partial = locked->partials.find(item.block.key);
  }
  if (partial->at == item.at()) {
    item.contributed = true;
    settle(locked, item, *partial);
    return {};
  }
  plan_merge(locked, number, *partial);
  return {};
}

// Sets the item's status, and notes a block that has all its parts.
void PartCommit::settle(CacheLock& locked, Item& item, PartialBlocks::Partial& partial) {
  const auto is_contributed = item.contributed ? CommitStatus::pending : CommitStatus::duplicate;
  statuses_[item.index] = is_contributed;
  if (partial.completing) return;
  const PieceProgress* const progress = locked->writes.find(partial.at);
  if (progress == nullptr || !progress->is_written(piece_range(shape(item), std::nullopt))) return;
  partial.completing = true;
  enter(locked, partial.keeper);
  const auto number = static_cast<std::size_t>(&item - items_.data());
  item.block.handle = locked->store.handle(partial.at);
  complete_.push_back({.keeper = partial.keeper, .item = number, .at = partial.at});
}

// Copies the parts that the key's block lacks. Waits for those that others write.
void PartCommit::plan_merge(CacheLock& locked, std::size_t number,
                            const PartialBlocks::Partial& partial) {
  Item& item = items_[number];
  const LayoutConfig& blocks = shape(item);
  PieceProgress& progress =
      locked->writes.begin(partial.at, piece_range(blocks, std::nullopt).count);
  std::vector<std::uint32_t> missing;
  for (const std::uint32_t part : item.units) {
    if (!progress.is_written(unit_range(blocks, part))) missing.push_back(part);
  }
  if (missing.empty()) {
    give_up(item);
    return;
  }
  const bool is_claimed = std::ranges::any_of(
      missing, [&](std::uint32_t part) { return progress.is_claimed(unit_range(blocks, part)); });
  enter(locked, partial.keeper);
  if (is_claimed) {
    blocked_.push_back(number);
    return;
  }
  if (item.at().tier() == Tier::disk || partial.at.tier() == Tier::disk) {
    by_hand_.push_back(number);
    return;
  }
  for (const std::uint32_t part : missing) {
    progress.claim(unit_range(blocks, part));
    const Kind kind{.from = item.at().tier(),
                    .to = partial.at.tier(),
                    .kv_group = item.block.handle.kv_group,
                    .unit = part};
    auto copy = copies_.find(kind);
    if (copy == copies_.end()) {
      const Geometry::Outers outers = outers_of(blocks, unit(blocks, part));
      copy = copies_
                 .emplace(kind,
                          Copy{.source = core_->layout(kind.from, kind.kv_group).outers(outers),
                               .destination = core_->layout(kind.to, kind.kv_group).outers(outers),
                               .pairs = {}})
                 .first;
    }
    copy->second.pairs.push_back({item.at().slot(), partial.at.slot()});
  }
  locked->store.pin(partial.at);
  locked->store.pin(item.at());
  merges_.push_back({.item = number, .to = partial.at, .units = std::move(missing)});
}

void PartCommit::copy() {
  if (merges_.empty()) return copy_next_by_hand();
  copying_ = copies_.size();
  // The last end may come while the loop runs, and clears the copies.
  std::vector<TransferJob> jobs;
  for (auto& [kind, copy] : copies_) {
    TransferJob& job = jobs.emplace_back();
    job.source = &copy.source;
    job.destination = &copy.destination;
    job.pairs = std::move(copy.pairs);
  }
  for (TransferJob& job : jobs) {
    core_->submit(
        std::move(job),
        [self = shared_from_this()](const JobOutcome& outcome) { self->copy_ended(outcome); }, {});
  }
}

void PartCommit::copy_ended(const JobOutcome& outcome) {
  {
    MutexLock lock(mutex_);
    if (outcome.state != JobState::done && !error_) error_ = error_of(outcome);
    if (--copying_ > 0) return;
  }
  copied();
}

void PartCommit::copied() {
  {
    CacheLock locked(*core_, LockUse::commit);
    const auto how = error_ ? PieceProgress::End::torn : PieceProgress::End::written;
    for (std::size_t i = 0; i < merges_.size(); ++i) {
      if (i > 0 && i % kStepBlocks == 0) locked.yield();
      const Merge& merge = merges_[i];
      Item& item = items_[merge.item];
      PieceProgress& progress = *locked->writes.find(merge.to);
      for (const std::uint32_t part : merge.units) {
        progress.end(unit_range(shape(item), part), how);
      }
      for (auto& waiting : progress.take_waiting()) locked.after(std::move(waiting));
      const bool gone = locked->store.record(merge.to).gone;
      if (gone) locked->writes.erase_unless_busy(merge.to);
      const SlotRef own = item.at();
      give_up(item);
      PartialBlocks::Partial* const partial = locked->partials.find(item.block.key);
      if (!error_ && !gone && partial != nullptr && partial->at == merge.to) {
        item.contributed = true;
        settle(locked, item, *partial);
      }
      locked->store.unpin(merge.to);
      locked->store.unpin(own);
    }
  }
  merges_.clear();
  copies_.clear();
  copy_next_by_hand();
}

// A disk writes whole blocks, and reads them. So the parts go through separate memory: staging that
// waits for more staging would stop all clients.
void PartCommit::copy_next_by_hand() {
  if (by_hand_.empty() || error_) return go_on();
  const std::size_t number = by_hand_.back();
  by_hand_.pop_back();
  const Item& item = items_[number];
  const KvGroupNumber group = item.block.handle.kv_group;
  const BlockLayout& layout = core_->layout(item.at().tier(), group);
  if (is_host_memory(layout.storage_kind())) {
    return loaded_by_hand(number, bytes_in_place(layout, item.at().slot(), std::nullopt));
  }
  core_->staging.acquire(group, [self = shared_from_this(), number, group,
                                 &layout](Result<CanonicalStaging::Block> staging) {
    if (!staging) {
      self->error_ = staging.error();
      return self->go_on();
    }
    auto block = std::make_shared<CanonicalStaging::Block>(std::move(*staging));
    TransferJob job;
    job.source = &layout;
    job.destination = &block->layout();
    job.pairs = {{self->items_[number].at().slot(), 0}};
    self->core_->submit(
        std::move(job),
        [self, number, group, block](const JobOutcome& outcome) {
          if (outcome.state != JobState::done) {
            self->error_ = error_of(outcome);
            return self->go_on();
          }
          self->loaded_by_hand(
              number, bytes_in_canonical(block->data(), self->core_->shape(group), std::nullopt));
        },
        {});
  });
}

void PartCommit::loaded_by_hand(std::size_t item, std::span<const iovec> bytes) {
  write_by_hand(item, std::make_shared<std::vector<std::byte>>(bytes_of(bytes)));
}

// Writes the next part that the key's block lacks, then the others.
void PartCommit::write_by_hand(std::size_t number, std::shared_ptr<std::vector<std::byte>> block) {
  Item& item = items_[number];
  const LayoutConfig& blocks = shape(item);
  Cache::WriteTarget target;
  bool is_left = false;
  {
    CacheLock locked(*core_, LockUse::commit);
    PartialBlocks::Partial* const partial = locked->partials.find(item.block.key);
    if (partial == nullptr) {  // dropped meanwhile, or committed: look again
      todo_.push_back(number);
    } else {
      const PieceProgress& progress =
          locked->writes.begin(partial->at, piece_range(blocks, std::nullopt).count);
      const auto next = std::ranges::find_if(item.units, [&](std::uint32_t part) {
        return !progress.is_written(unit_range(blocks, part));
      });
      is_left = next != item.units.end();
      if (is_left) {
        target = {.lease = partial->keeper->lease,
                  .block = locked->store.handle(partial->at),
                  .part = unit(blocks, *next)};
      } else {
        give_up(item);
        settle(locked, item, *partial);
      }
    }
  }
  if (!is_left) return copy_next_by_hand();
  auto writer = Cache(core_).write(target);
  if (!writer) {  // another request writes it now
    blocked_.push_back(number);
    return copy_next_by_hand();
  }
  auto held = std::make_shared<BlockWriter>(std::move(*writer));
  held->room([self = shared_from_this(), number, block, held,
              part = *target.part.shard()](Result<std::span<const iovec>> room) mutable {
    if (!room) {
      self->error_ = room.error();
      return self->go_on();
    }
    const std::vector<std::byte> bytes =
        bytes_of(bytes_in_canonical(block->data(), self->shape(self->items_[number]), part));
    std::size_t at = 0;
    for (const iovec& piece : *room) {
      std::memcpy(piece.iov_base, bytes.data() + at, piece.iov_len);
      at += piece.iov_len;
    }
    held->finish([self, number, block, held](const Result<>& done) {
      if (!done) {
        self->error_ = done.error();
        return self->go_on();
      }
      self->items_[number].contributed = true;
      self->write_by_hand(number, block);
    });
  });
}

// Waits for what others write, then joins the rest; or completes the blocks.
void PartCommit::go_on() {
  if (error_) return complete();
  if (blocked_.empty() && todo_.empty()) return complete();
  bool waits = false;
  {
    CacheLock locked(*core_, LockUse::commit);
    if (!blocked_.empty() && todo_.empty()) {
      PartialBlocks::Partial* const partial =
          locked->partials.find(items_[blocked_.front()].block.key);
      PieceProgress* const progress =
          partial == nullptr ? nullptr : locked->writes.find(partial->at);
      waits = progress != nullptr && progress->busy();
      if (waits) progress->wait_for_end([self = shared_from_this()] { self->join(); });
    }
    todo_.insert(todo_.end(), blocked_.begin(), blocked_.end());
    blocked_.clear();
  }
  if (!waits) join();
}

// Commits the blocks that have all their parts, also after an error: nobody else will.
void PartCommit::complete() {
  std::map<std::shared_ptr<Keeper>, std::vector<Whole>> by_keeper;
  for (const Whole& block : complete_) by_keeper[block.keeper].push_back(block);
  complete_.clear();
  if (by_keeper.empty()) return end();
  completing_ = by_keeper.size();
  for (auto& [keeper, blocks] : by_keeper) {
    std::vector<CommitBlock> whole;
    for (const Whole& block : blocks) whole.push_back(items_[block.item].block);
    for (CommitBlock& block : whole) block.refuse_duplicate = false;
    commit_blocks(core_, keeper->lease, std::move(whole),
                  [self = shared_from_this(),
                   blocks = std::move(blocks)](Result<std::vector<CommitStatus>> statuses) {
                    self->completed(blocks, std::move(statuses));
                  },
                  {.hint = terms_.hint});
  }
}

void PartCommit::completed(const std::vector<Whole>& blocks,
                           Result<std::vector<CommitStatus>> statuses) {
  {
    CacheLock locked(*core_, LockUse::commit);
    const LeaseId& keeper = blocks.front().keeper->lease;
    std::vector<SlotRef> kept;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (!statuses) {
        locked->partials.remove(blocks[i].at);
        kept.push_back(blocks[i].at);
      } else {
        statuses_[items_[blocks[i].item].index] = (*statuses)[i];
        if ((*statuses)[i] == CommitStatus::committed) kept.push_back(blocks[i].at);
      }
    }
    if (!kept.empty()) {
      Result<> passed = Error{ErrorCode::unknown_lease, ""};
      if (statuses && lease_ && !terms_.release) {
        passed = locked->leases.part_with(locked, {.from = keeper, .to = lease_}, kept);
      }
      if (!passed) {
        static_cast<void>(locked->leases.part_with(locked, {.from = keeper, .to = {}}, kept));
      }
    }
  }
  {
    MutexLock lock(mutex_);
    if (!statuses && !error_) error_ = statuses.error();
    if (--completing_ > 0) return;
  }
  end();
}

void PartCommit::fail(const Error& error) {
  error_ = error;
  end();
}

void PartCommit::end() {
  {
    CacheLock locked(*core_, LockUse::commit);
    for (const auto& [keeper, slots] : surplus_) {
      static_cast<void>(locked->leases.part_with(locked, {.from = keeper->lease, .to = {}}, slots));
    }
    // A whole block makes its parts superfluous.
    for (const BlockKey& key : whole_keys_) {
      PartialBlocks::Partial* const partial = locked->partials.find(key);
      if (partial == nullptr || partial->completing) continue;
      if (locked->store.find(key, locked.now()) == kNoEntry) continue;
      const SlotRef at = partial->at;
      const std::shared_ptr<Keeper> keeper = partial->keeper;
      enter(locked, keeper);
      locked->partials.remove(at);
      static_cast<void>(
          locked->leases.part_with(locked, {.from = keeper->lease, .to = {}}, {&at, 1}));
    }
    for (const auto& keeper : entered_) PartialBlocks::leave(locked, *keeper);
    if (terms_.release && lease_ && !error_) {
      if (const auto still = locked->leases.find(*lease_)) {
        locked->leases.end(locked, *still, false);
      }
    }
    locked->leases.finish_releases(locked);
  }
  if (error_) return done_(*error_);
  done_(std::move(statuses_));
}

}  // namespace

Error error_of(const JobOutcome& outcome) {
  if (!outcome.failures.empty()) return outcome.failures.front().error;
  return {ErrorCode::cancelled, "the server is shutting down"};
}

std::vector<std::uint32_t> Cache::pending_shards(KeyView key) const {
  std::vector<std::uint32_t> shards;
  CacheLock locked(*core_, LockUse::look);
  const PartialBlocks::Partial* const partial = locked->partials.find(BlockKey(key));
  const PieceProgress* const progress =
      partial == nullptr ? nullptr : locked->writes.find(partial->at);
  if (progress == nullptr) return shards;
  const LayoutConfig& shape = core_->shape(key.kv_group);
  for (std::uint32_t number = 0; number < shape.shards; ++number) {
    if (progress->is_written(unit_range(shape, number))) shards.push_back(number);
  }
  return shards;
}

std::vector<std::uint32_t> units_of(const LayoutConfig& shape, ShardSelector part) {
  const auto count = static_cast<std::uint32_t>(shape.shards / part.shards);
  std::vector<std::uint32_t> units;
  for (std::uint32_t i = 0; i < count; ++i) units.push_back(part.shard * count + i);
  return units;
}

void commit_with_parts(std::shared_ptr<CacheCore> core, const LeaseId& lease,
                       std::vector<CommitBlock> blocks, Done<std::vector<CommitStatus>> done,
                       CommitTerms terms) {
  std::make_shared<PartCommit>(std::move(core), std::move(done), std::move(terms))
      ->start(lease, std::move(blocks));
}

void commit_stored_parts(std::shared_ptr<CacheCore> core, std::vector<StoredPart> parts,
                         Done<std::vector<CommitStatus>> done, RequestHint hint) {
  std::make_shared<PartCommit>(std::move(core), std::move(done),
                               CommitTerms{.hint = std::move(hint)})
      ->start(std::move(parts));
}

}  // namespace cairn
