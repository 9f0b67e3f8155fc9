#include "blockmgr/cache/cache_copy.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/hex.hpp"
#include "blockmgr/cache/block_pieces.hpp"
#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// As of movements inside a cache: large enough that its start costs nothing, small enough that
// another's work gets its turn.
constexpr std::uint64_t kJobBytes = 64ull << 20;

}  // namespace

std::optional<SlotRef> source_of_copy(const Entry& entry, Tier to) {
  const Tier first = to == Tier::device ? Tier::device : Tier::pinned;
  const Tier second = to == Tier::device ? Tier::pinned : Tier::device;
  for (Tier tier : {first, second, Tier::disk}) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (slot != kNoSlot) return SlotRef(tier, slot);
  }
  return std::nullopt;
}

// One such copy, held by what it waits for. The sources are pinned from the start to the end, the
// destinations by the lease under which they were allocated, and once more while bytes are on their
// way: a lease that ends early frees no slot that is still being written.
class CacheCopy : public std::enable_shared_from_this<CacheCopy> {
 public:
  explicit CacheCopy(CacheCopyRequest request)
      : request_(std::move(request)), from_(request_.from->core_), into_(request_.into->core_) {}
  ~CacheCopy() { let_go(); }

  static Result<> check(const CacheCopyRequest& request);
  static Result<TransferId> start(CacheCopyRequest request);

 private:
  struct Item {
    SlotRef source;
    CommitBlock block;
    std::optional<Error> error = {};
    bool duplicate = false;  // somebody else's block was there first
  };

  Result<> hold_present();
  Result<> pin_sources();
  std::vector<BlockKey> hold_first(const std::vector<BlockKey>& keys);
  void bring_up(std::vector<BlockKey> keys);
  void brought_up(const std::vector<BlockKey>& keys, const TransferStatus& status);
  void not_brought_up(const std::vector<BlockKey>& keys, const Error& error);
  void allocate();
  Result<> pin_destinations(std::size_t jobs);
  void allocated(Result<Allocation> allocation);
  void submit();
  void job_ended(std::span<const std::size_t> items, const JobOutcome& outcome);
  void commit();
  void committed(Result<std::vector<CommitStatus>> statuses);
  void fail_all(const Error& error);
  void let_go();
  void part_ended();
  void finish();
  TransferTable& transfers() { return into_->services->transfers; }
  SlotRef destination(const Item& item) const {
    return {item.block.handle.tier, static_cast<SlotNumber>(item.block.handle.slot)};
  }

  const CacheCopyRequest request_;
  const std::shared_ptr<CacheCore> from_;
  const std::shared_ptr<CacheCore> into_;
  TransferId id_{};
  // What the other cache has of the keys, held to the end.
  Cache::Held present_;
  std::vector<BlockKey> elsewhere_;  // present in another tier than the one asked for
  std::atomic<int> parts_ = 2;       // what brings those, and the copies
  Mutex mutex_;
  std::uint64_t brought_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t not_brought_blocks_ CAIRN_GUARDED_BY(mutex_) = 0;  // named or not
  std::vector<TransferStatus::Failure> not_brought_ CAIRN_GUARDED_BY(mutex_);
  std::vector<Item> items_;
  std::size_t pinned_ = 0;  // how many of them, from the first on
  std::optional<LeaseId> lease_;
  std::vector<std::size_t> commits_;  // of items_
  std::size_t jobs_ = 0;              // under way; guarded by into_'s lock
};

Result<> CacheCopy::check(const CacheCopyRequest& request) {
  const CacheCore& from = *request.from->core_;
  const CacheCore& into = *request.into->core_;
  CAIRN_TRY(into.check_tier(request.to));
  if (&from == &into) {
    return Error{ErrorCode::impossible, "a cache's blocks are copied from another cache, and '" +
                                            from.config.name + "' is the same"};
  }
  if (!same_shape(from.config.shape, into.config.shape)) {
    return Error{ErrorCode::impossible, "the blocks of cache '" + from.config.name +
                                            "' have another shape than those of '" +
                                            into.config.name + "'"};
  }
  if (request.to == Tier::disk) {
    return Error{ErrorCode::impossible,
                 "blocks of another cache go to device or pinned; from there a movement inside the "
                 "cache brings them to disk"};
  }
  if (request.keys.size() > into.options().max_blocks_per_request) {
    return Error{ErrorCode::out_of_range,
                 std::to_string(request.keys.size()) + " keys, not up to " +
                     std::to_string(into.options().max_blocks_per_request)};
  }
  return {};
}

Result<TransferId> CacheCopy::start(CacheCopyRequest request) {
  CAIRN_TRY(check(request));
  auto copy = std::make_shared<CacheCopy>(std::move(request));
  CAIRN_TRY(copy->hold_present());
  CAIRN_TRY(copy->pin_sources());
  auto id = copy->transfers().open(copy->into_, copy->request_.keys.size());
  if (!id) return id;
  copy->id_ = *id;
  copy->transfers().begin(*id);
  copy->bring_up(copy->elsewhere_);
  copy->allocate();
  return id;
}

Result<> CacheCopy::hold_present() {
  const std::vector<KeyView> views(request_.keys.begin(), request_.keys.end());
  auto held = request_.into->hold(views, {.lease_ms = into_->options().max_lease_ms});
  if (!held) return std::move(held).error();
  present_ = std::move(*held);
  return {};
}

// All of them, or none. Keys that the destination has, and second mentions, are left out.
Result<> CacheCopy::pin_sources() {
  Section section(*from_, LockUse::transfer);
  CAIRN_TRY(section.check_usable());
  std::vector<EntryNumber> entries;
  for (const BlockKey& key : request_.keys) {
    entries.push_back(section->store.find(key, section.now()));
    if (entries.back() == kNoEntry) {
      return Error{ErrorCode::unknown_key,
                   "key " + to_hex(key.view().bytes()) + " is not in cache " + from_->config.name};
    }
  }
  std::unordered_set<EntryNumber> seen;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!seen.insert(entries[i]).second) continue;
    if (const auto& block = present_.blocks[i]) {
      if (block->tier != request_.to) elsewhere_.push_back(request_.keys[i]);
      continue;
    }
    const Entry& entry = section->store.entry(entries[i]);
    Item item{.source = *source_of_copy(entry, request_.to),
              .block = {.handle = {}, .key = request_.keys[i]}};
    if (entry.parent != kNoEntry) item.block.parent = section->store.key(entry.parent);
    if (entry.metadata) item.block.metadata = *entry.metadata;
    section->store.pin(item.source);
    items_.push_back(std::move(item));
    pinned_ = items_.size();
  }
  return {};
}

// Of blocks that were there first, those that still are, held to the end.
std::vector<BlockKey> CacheCopy::hold_first(const std::vector<BlockKey>& keys) {
  if (keys.empty()) return {};
  const std::vector<KeyView> views(keys.begin(), keys.end());
  const auto held = request_.into->hold(
      views, {.lease_ms = into_->options().max_lease_ms, .lease = present_.lease});
  if (held) present_.lease = held->lease;
  std::vector<BlockKey> there;
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (held && held->blocks[i]) {
      there.push_back(keys[i]);
      continue;
    }
    ++not_brought_blocks_;
    not_brought_.push_back(
        {keys[i], held ? Error{ErrorCode::unknown_key, "the key went while it was being copied"}
                       : held.error()});
  }
  return there;
}

// What the other cache has, by a movement inside it.
void CacheCopy::bring_up(std::vector<BlockKey> keys) {
  if (keys.empty()) return part_ended();
  auto id = request_.into->transfer({.keys = keys,
                                     .to = request_.to,
                                     .priority = request_.priority,
                                     .lease = present_.lease,
                                     .quota = request_.quota});
  if (!id) return not_brought_up(keys, id.error());
  const auto ended = [self = shared_from_this(), keys](const TransferStatus& status) {
    self->brought_up(keys, status);
  };
  if (auto watched = transfers().watch(*id, ended); !watched) {
    not_brought_up(keys, watched.error());
  }
}

void CacheCopy::brought_up(const std::vector<BlockKey>& keys, const TransferStatus& status) {
  // It does not name those that were not begun.
  if (status.state == TransferState::cancelled) {
    return not_brought_up(keys, {ErrorCode::cancelled, "the movement was cancelled"});
  }
  {
    MutexLock lock(mutex_);
    brought_bytes_ += status.bytes;
    not_brought_blocks_ += keys.size() - std::min<std::uint64_t>(status.blocks_done, keys.size());
    not_brought_.insert(not_brought_.end(), status.failures.begin(), status.failures.end());
  }
  part_ended();
}

void CacheCopy::not_brought_up(const std::vector<BlockKey>& keys, const Error& error) {
  {
    MutexLock lock(mutex_);
    not_brought_blocks_ += keys.size();
    for (const BlockKey& key : keys) not_brought_.push_back({key, error});
  }
  part_ended();
}

void CacheCopy::allocate() {
  if (items_.empty()) return part_ended();
  const AllocateRequest slots{.count = static_cast<std::uint32_t>(items_.size()),
                              .tier = request_.to,
                              .lease_ms = into_->options().max_lease_ms,
                              .quota = request_.quota};
  request_.into->allocate(slots, [self = shared_from_this()](Result<Allocation> allocation) {
    self->allocated(std::move(allocation));
  });
}

void CacheCopy::allocated(Result<Allocation> allocation) {
  if (!allocation) {
    fail_all(allocation.error());
    return part_ended();
  }
  lease_ = allocation->lease;
  for (std::size_t i = 0; i < items_.size(); ++i) items_[i].block.handle = allocation->blocks[i];
  submit();
}

// Under the lock that hands them over: what a lease lost meanwhile is somebody else's.
Result<> CacheCopy::pin_destinations(std::size_t jobs) {
  Section section(*into_, LockUse::transfer);
  auto lease = section->leases.live(section, *lease_);
  if (!lease) return std::move(lease).error();
  for (const Item& item : items_) {
    if (auto at = section->leases.uncommitted(section, *lease, item.block.handle); !at)
      return std::move(at).error();
  }
  for (const Item& item : items_) section->store.pin(destination(item));
  jobs_ = jobs;
  return {};
}

void CacheCopy::submit() {
  // A job reads from one tier.
  std::map<Tier, std::vector<std::size_t>> by_tier;
  for (std::size_t i = 0; i < items_.size(); ++i) by_tier[items_[i].source.tier()].push_back(i);
  const std::size_t most = std::max<std::size_t>(1, kJobBytes / from_->block_bytes);
  std::vector<std::vector<std::size_t>> jobs;
  for (const auto& [tier, items] : by_tier) {
    for (std::size_t first = 0; first < items.size(); first += most) {
      const std::size_t end = std::min(items.size(), first + most);
      jobs.emplace_back(items.begin() + static_cast<std::ptrdiff_t>(first),
                        items.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  if (auto pinned = pin_destinations(jobs.size()); !pinned) {
    fail_all(pinned.error());
    return part_ended();
  }
  for (auto& items : jobs) {
    TransferJob job;
    job.source = &from_->layout(items_[items.front()].source.tier());
    job.destination = &into_->layout(request_.to);
    job.priority = request_.priority;
    for (std::size_t i : items) {
      job.pairs.push_back({items_[i].source.slot(), destination(items_[i]).slot()});
    }
    // By the source's cache: its slots on disk are read with their checksums.
    from_->submit(std::move(job),
                  [self = shared_from_this(), items = std::move(items)](JobOutcome outcome) {
                    self->job_ended(items, outcome);
                  },
                  {});
  }
}

void CacheCopy::job_ended(std::span<const std::size_t> items, const JobOutcome& outcome) {
  bool last = false;
  {
    Section section(*into_, LockUse::transfer);
    if (outcome.state == JobState::cancelled) {
      for (std::size_t i : items) {
        items_[i].error = Error{ErrorCode::cancelled, "the server is shutting down"};
      }
    }
    for (const BlockFailure& failure : outcome.failures) {
      items_[items[failure.index]].error = failure.error;
    }
    for (std::size_t i : items) {
      const SlotRef at = destination(items_[i]);
      const bool gone = section->store.record(at).gone;
      if (gone && !items_[i].error) {
        items_[i].error = Error{ErrorCode::lease_expired, "the lease ended during the copy"};
      }
      if (!items_[i].error) {
        const auto all = piece_range(into_->config.shape, std::nullopt);
        section->writes.begin(at, all.count).set_written(all);
      }
      section->store.unpin(at);
    }
    last = --jobs_ == 0;
  }
  if (last) commit();
}

void CacheCopy::commit() {
  std::vector<CommitBlock> blocks;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].error) continue;
    commits_.push_back(i);
    blocks.push_back(items_[i].block);
  }
  if (blocks.empty()) return part_ended();
  request_.into->commit(*lease_, std::move(blocks),
                        [self = shared_from_this()](Result<std::vector<CommitStatus>> statuses) {
                          self->committed(std::move(statuses));
                        });
}

void CacheCopy::committed(Result<std::vector<CommitStatus>> statuses) {
  std::vector<BlockKey> there_first;
  for (std::size_t i = 0; i < commits_.size(); ++i) {
    Item& item = items_[commits_[i]];
    if (!statuses) {
      item.error = statuses.error();
    } else if ((*statuses)[i] == CommitStatus::duplicate) {
      item.duplicate = true;
      there_first.push_back(item.block.key);
    }
  }
  bring_up(hold_first(there_first));
}

void CacheCopy::fail_all(const Error& error) {
  for (Item& item : items_) item.error = error;
}

void CacheCopy::let_go() {
  {
    Section section(*from_, LockUse::transfer);
    // The prefix's last block first: so it is evicted first.
    for (; pinned_ > 0; --pinned_) section->store.unpin(items_[pinned_ - 1].source);
  }
  for (std::optional<LeaseId>* lease : {&lease_, &present_.lease}) {
    if (*lease) static_cast<void>(request_.into->release(**lease, {}));
    lease->reset();
  }
}

void CacheCopy::part_ended() {
  if (--parts_ == 0) finish();
}

// Who is told of the end finds nothing held for it.
void CacheCopy::finish() {
  let_go();
  TransferTable::Arrived arrived{.blocks = request_.keys.size()};
  std::vector<TransferStatus::Failure> failures;
  {
    MutexLock lock(mutex_);
    arrived.bytes = brought_bytes_;
    arrived.blocks -= not_brought_blocks_;
    failures = std::move(not_brought_);
  }
  for (const Item& item : items_) {
    if (item.error) {
      failures.push_back({item.block.key, *item.error});
      --arrived.blocks;
    } else if (!item.duplicate) {
      arrived.bytes += into_->block_bytes;
    }
  }
  const auto state = failures.empty() ? TransferState::done : TransferState::failed;
  for (auto& failure : failures) transfers().add(id_, std::move(failure));
  transfers().add(id_, arrived);
  transfers().end(id_, state);
}

Result<TransferId> copy_between_caches(CacheCopyRequest request) {
  return CacheCopy::start(std::move(request));
}

}  // namespace cairn
