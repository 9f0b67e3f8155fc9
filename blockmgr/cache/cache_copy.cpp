#include "blockmgr/cache/cache_copy.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/ingest.hpp"
#include "blockmgr/cache/outgoing.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/index/config_check.hpp"

namespace cairn {
namespace {

// As for transfers inside a cache: large enough that the start of a job costs nothing, small enough
// that other work gets its turn.
constexpr std::uint64_t kCopyJobBytes = 64ull << 20;

}  // namespace

// One copy, held by the work it waits for. It pins the sources from start to end; the Ingest holds
// the destinations.
class CacheCopy : public std::enable_shared_from_this<CacheCopy> {
 public:
  explicit CacheCopy(CacheCopyRequest request)
      : request_(std::move(request)),
        from_(request_.from->core()),
        into_(request_.into->core()),
        ingest_(request_.into, {.quota = request_.quota}),
        sources_(from_) {}

  static Result<> check(const CacheCopyRequest& request);
  static Result<TransferId> start(CacheCopyRequest request);

 private:
  void name_blocks();
  Result<> pin_sources();
  std::vector<BlockKey> elsewhere() const;
  void bring_up(std::vector<BlockKey> keys);
  void brought_up(const std::vector<BlockKey>& keys, const TransferStatus& status);
  void not_brought_up(const std::vector<BlockKey>& keys, const Error& error);
  void allocate();
  void submit();
  void job_ended(std::span<const std::size_t> part, const JobOutcome& outcome);
  void committed();
  void part_ended();
  void finish();
  TransferTable& transfers() { return into_->services->transfers; }

  const CacheCopyRequest request_;
  const std::shared_ptr<CacheCore> from_;
  const std::shared_ptr<CacheCore> into_;
  TransferId id_{};
  std::atomic<int> parts_ = 2;  // transfers inside the destination, and the copies
  Mutex mutex_;
  std::uint64_t brought_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t not_brought_blocks_ CAIRN_GUARDED_BY(mutex_) = 0;  // also unnamed ones
  std::vector<TransferStatus::Failure> not_brought_ CAIRN_GUARDED_BY(mutex_);
  Ingest ingest_;     // has each key once
  Outgoing sources_;  // for the ingest's absent items
  LeaseQuotaShare pins_;
};

Result<> CacheCopy::check(const CacheCopyRequest& request) {
  const CacheCore& from = *request.from->core();
  const CacheCore& into = *request.into->core();
  CAIRN_TRY(into.check_tier(request.to));
  if (&from == &into) {
    return Error{ErrorCode::impossible,
                 "the source and the destination are the same cache: '" + from.config.name + "'"};
  }
  if (!same_shapes(from.config, into.config)) {
    return Error{ErrorCode::impossible, "the blocks of cache '" + from.config.name +
                                            "' have another shape than those of '" +
                                            into.config.name + "'"};
  }
  if (request.to == Tier::disk) {
    return Error{
        ErrorCode::impossible,
        "blocks cannot be copied to the disk tier of another cache; copy them to device or "
        "pinned, then move them to disk"};
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
  copy->name_blocks();
  CAIRN_TRY(copy->ingest_.hold_present());
  CAIRN_TRY(copy->pin_sources());
  auto id = copy->into_->open_transfer(copy->request_.keys.size());
  if (!id) return id;
  copy->id_ = *id;
  copy->transfers().begin(*id);
  copy->bring_up(copy->elsewhere());
  copy->allocate();
  return id;
}

// Adds each key once, group by group.
void CacheCopy::name_blocks() {
  std::vector<BlockKey> keys = request_.keys;
  std::ranges::stable_sort(keys, {}, &BlockKey::kv_group);
  std::set<BlockKey> seen;
  for (const BlockKey& key : keys) {
    if (seen.insert(key).second) ingest_.add({.handle = {}, .key = key});
  }
}

// Pins the blocks that the destination lacks. Fails if any key is missing in the source.
Result<> CacheCopy::pin_sources() {
  std::vector<KeyView> keys;
  for (const Ingest::Item& item : ingest_.items()) keys.push_back(item.block.key);
  return sources_.pin(keys, request_.to, [this](const Outgoing::Source& source) {
    if (ingest_.items()[source.key].state == Ingest::State::present) return false;
    CommitBlock& block = ingest_.block(source.key);
    block.parent = source.parent;
    block.metadata = source.metadata;
    return true;
  });
}

// Returns the keys present in another tier of the destination.
std::vector<BlockKey> CacheCopy::elsewhere() const {
  std::vector<BlockKey> keys;
  for (const Ingest::Item& item : ingest_.items()) {
    const bool is_elsewhere = item.block.handle.tier != request_.to;
    if (item.state == Ingest::State::present && is_elsewhere) keys.push_back(item.block.key);
  }
  return keys;
}

// Copies blocks that the destination has in another tier to `to`, by a transfer inside it.
void CacheCopy::bring_up(std::vector<BlockKey> keys) {
  if (keys.empty()) return part_ended();
  std::optional<LeaseId> lease;
  if (ingest_.present()) lease = ingest_.present().id();
  auto id = request_.into->transfer({.keys = keys,
                                     .to = request_.to,
                                     .priority = request_.priority,
                                     .lease = lease,
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
  // A cancelled transfer does not name the blocks that it did not begin.
  if (status.state == TransferState::cancelled) {
    return not_brought_up(keys, {ErrorCode::cancelled, "the transfer was cancelled"});
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
  if (sources_.slots().empty()) return part_ended();
  ingest_.allocate(
      {.tier = request_.to, .room = Ingest::Room::some, .filled = Ingest::Filled::by_copies},
      [self = shared_from_this()](const Result<>& granted) {
        if (!granted) return self->part_ended();
        self->submit();
      });
}

void CacheCopy::submit() {
  // A job reads blocks of one KV group from one tier.
  std::map<std::pair<Tier, KvGroupNumber>, std::vector<std::size_t>> by_kind;  // of granted items
  const std::span<const std::size_t> granted = ingest_.granted();
  for (std::size_t i = 0; i < granted.size(); ++i) {
    const BlockHandle& block = ingest_.items()[granted[i]].block.handle;
    by_kind[{sources_.slots()[i].tier(), block.kv_group}].push_back(i);
  }
  const std::size_t most = std::max<std::size_t>(1, kCopyJobBytes / from_->block_bytes);
  for (const auto& [kind, all] : by_kind) {
    for (std::size_t first = 0; first < all.size(); first += most) {
      const auto part = std::span(all).subspan(first, std::min(most, all.size() - first));
      TransferJob job;
      job.source = &from_->layout(kind.first, kind.second);
      job.destination = &into_->layout(request_.to, kind.second);
      job.priority = request_.priority;
      for (const std::size_t i : part) {
        job.pairs.push_back(
            {sources_.slots()[i].slot(), ingest_.items()[granted[i]].slot().slot()});
      }
      // Submitted through the source cache, so that its disk slots are read with their checksums.
      from_->submit(std::move(job),
                    [self = shared_from_this(), part = std::vector(part.begin(), part.end())](
                        const JobOutcome& outcome) { self->job_ended(part, outcome); },
                    {});
    }
  }
}

void CacheCopy::job_ended(std::span<const std::size_t> part, const JobOutcome& outcome) {
  std::vector<std::size_t> items;
  for (const std::size_t i : part) items.push_back(ingest_.granted()[i]);
  if (outcome.state == JobState::cancelled) {
    for (const std::size_t i : items) {
      ingest_.fail(i, {ErrorCode::cancelled, "the server is shutting down"});
    }
  }
  for (const BlockFailure& failure : outcome.failures) {
    ingest_.fail(items[failure.index], failure.error);
    sources_.failed(part[failure.index], failure.error);
  }
  if (!ingest_.copied(items)) return;
  ingest_.commit(Ingest::Then::hold,
                 [self = shared_from_this()](const Result<>&) { self->committed(); });
}

// Blocks that others stored first may be in another tier.
void CacheCopy::committed() {
  ingest_.hold_duplicates();
  std::vector<BlockKey> there_first;
  for (const Ingest::Item& item : ingest_.items()) {
    if (item.state == Ingest::State::duplicate && !item.error) {
      there_first.push_back(item.block.key);
    }
  }
  bring_up(std::move(there_first));
}

void CacheCopy::part_ended() {
  if (--parts_ == 0) finish();
}

// Releases everything before it reports the end.
void CacheCopy::finish() {
  sources_.let_go();
  ingest_.release();
  pins_.give_back_all();
  TransferTable::Arrived arrived{.blocks = request_.keys.size()};
  std::vector<TransferStatus::Failure> failures;
  {
    MutexLock lock(mutex_);
    arrived.bytes = brought_bytes_;
    arrived.blocks -= not_brought_blocks_;
    failures = std::move(not_brought_);
  }
  for (const Ingest::Item& item : ingest_.items()) {
    if (item.error) {
      failures.push_back({item.block.key, *item.error});
      --arrived.blocks;
    } else if (item.state == Ingest::State::committed) {
      arrived.bytes += block_bytes(into_->shape(item.block.handle.kv_group));
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
