#include "blockmgr/cache/cache_copy.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/hex.hpp"
#include "blockmgr/cache/cache_core.hpp"
#include "blockmgr/cache/intake.hpp"

namespace cairn {
namespace {

// As of movements inside a cache: large enough that its start costs nothing, small enough that
// another's work gets its turn.
constexpr std::uint64_t kJobBytes = 64ull << 20;
// Sources under one hold of the lock: up to 500 ns each to find and pin, or to let go.
constexpr std::size_t kSourcesAtOnce = 24;

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

// One such copy, held by what it waits for. The sources are pinned from the start to the end; the
// destinations are an intake.
class CacheCopy : public std::enable_shared_from_this<CacheCopy> {
 public:
  explicit CacheCopy(CacheCopyRequest request)
      : request_(std::move(request)),
        from_(request_.from->core_),
        into_(request_.into->core_),
        intake_(request_.into, into_) {}
  ~CacheCopy() { let_go(); }

  static Result<> check(const CacheCopyRequest& request);
  static Result<TransferId> start(CacheCopyRequest request);

 private:
  Result<> hold_present();
  Result<> pin_sources();
  std::vector<BlockKey> hold_first(const std::vector<BlockKey>& keys);
  void bring_up(std::vector<BlockKey> keys);
  void brought_up(const std::vector<BlockKey>& keys, const TransferStatus& status);
  void not_brought_up(const std::vector<BlockKey>& keys, const Error& error);
  void allocate();
  void submit();
  void job_ended(std::span<const std::size_t> items, const JobOutcome& outcome);
  void drop_if_unreadable(SlotRef source, const Error& error);
  void committed();
  void let_go();
  void part_ended();
  void finish();
  TransferTable& transfers() { return into_->services->transfers; }

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
  Intake intake_;
  std::vector<SlotRef> sources_;  // of the intake's items; pinned
  LeaseQuotaShare pins_;
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
  auto pins = LeaseQuotaShare::take(request.pins, request.keys.size());
  if (!pins) return std::move(pins).error();
  auto copy = std::make_shared<CacheCopy>(std::move(request));
  copy->pins_ = std::move(*pins);
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
  std::unordered_set<std::string_view> seen;
  for (std::size_t i = 0; i < request_.keys.size(); ++i) {
    if (i > 0 && i % kSourcesAtOnce == 0) section.give_way();
    const BlockKey& key = request_.keys[i];
    const EntryNumber at = section->store.find(key, section.now());
    if (at == kNoEntry) {
      return Error{ErrorCode::unknown_key,
                   "key " + to_hex(key.view().bytes()) + " is not in cache " + from_->config.name};
    }
    if (!seen.insert(key.view().as_text()).second) continue;
    if (const auto& block = present_.blocks[i]) {
      if (block->tier != request_.to) elsewhere_.push_back(key);
      continue;
    }
    const Entry& entry = section->store.entry(at);
    CommitBlock block{.handle = {}, .key = key};
    if (entry.parent != kNoEntry) block.parent = section->store.key(entry.parent);
    block.metadata = section->store.metadata(at);
    sources_.push_back(*source_of_copy(entry, request_.to));
    section->store.pin(sources_.back());
    intake_.add(std::move(block));
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
  if (sources_.empty()) return part_ended();
  intake_.allocate({.tier = request_.to, .quota = request_.quota},
                   [self = shared_from_this()](bool granted) {
                     if (!granted) return self->part_ended();
                     self->submit();
                   });
}

void CacheCopy::submit() {
  // A job reads from one tier.
  std::map<Tier, std::vector<std::size_t>> by_tier;
  for (std::size_t i = 0; i < intake_.granted(); ++i) by_tier[sources_[i].tier()].push_back(i);
  const std::size_t most = std::max<std::size_t>(1, kJobBytes / from_->block_bytes);
  for (const auto& [tier, all] : by_tier) {
    for (std::size_t first = 0; first < all.size(); first += most) {
      const auto part = std::span(all).subspan(first, std::min(most, all.size() - first));
      TransferJob job;
      job.source = &from_->layout(tier);
      job.destination = &into_->layout(request_.to);
      job.priority = request_.priority;
      for (std::size_t i : part) {
        job.pairs.push_back({sources_[i].slot(), intake_.items()[i].slot().slot()});
      }
      // By the source's cache: its slots on disk are read with their checksums.
      from_->submit(std::move(job),
                    [self = shared_from_this(), items = std::vector(part.begin(), part.end())](
                        const JobOutcome& outcome) { self->job_ended(items, outcome); },
                    {});
    }
  }
}

void CacheCopy::job_ended(std::span<const std::size_t> items, const JobOutcome& outcome) {
  if (outcome.state == JobState::cancelled) {
    for (std::size_t i : items) {
      intake_.fail(i, {ErrorCode::cancelled, "the server is shutting down"});
    }
  }
  for (const BlockFailure& failure : outcome.failures) {
    intake_.fail(items[failure.index], failure.error);
    drop_if_unreadable(sources_[items[failure.index]], failure.error);
  }
  if (intake_.copied(items)) intake_.commit([self = shared_from_this()] { self->committed(); });
}

void CacheCopy::drop_if_unreadable(SlotRef source, const Error& error) {
  Section section(*from_, LockUse::transfer);
  // It is pinned, so nobody else's bytes can be there.
  const std::uint64_t generation = section->store.record(source).generation;
  section->moves.drop_unreadable(section, source, generation, error);
}

void CacheCopy::committed() {
  std::vector<BlockKey> there_first;
  for (const Intake::Item& item : intake_.items()) {
    if (item.duplicate) there_first.push_back(item.block.key);
  }
  bring_up(hold_first(there_first));
}

void CacheCopy::let_go() {
  {
    Section section(*from_, LockUse::transfer);
    // The prefix's last block first: so it is evicted first.
    for (std::size_t gone = 1; !sources_.empty(); ++gone) {
      section->store.unpin(sources_.back());
      sources_.pop_back();
      if (gone % kSourcesAtOnce == 0) section.give_way();
    }
  }
  intake_.release();
  if (present_.lease) static_cast<void>(request_.into->release(*present_.lease, {}));
  present_.lease.reset();
}

void CacheCopy::part_ended() {
  if (--parts_ == 0) finish();
}

// Who is told of the end finds nothing held for it.
void CacheCopy::finish() {
  let_go();
  pins_.give_back_all();
  TransferTable::Arrived arrived{.blocks = request_.keys.size()};
  std::vector<TransferStatus::Failure> failures;
  {
    MutexLock lock(mutex_);
    arrived.bytes = brought_bytes_;
    arrived.blocks -= not_brought_blocks_;
    failures = std::move(not_brought_);
  }
  for (const Intake::Item& item : intake_.items()) {
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
