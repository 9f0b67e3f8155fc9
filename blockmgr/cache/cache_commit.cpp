// Cache: commits, which give the bytes in slots their keys.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "blockmgr/cache/block_pieces.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/commit_parts.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Blocks checked or published under one hold of the lock: some 100 to 300 ns each.
constexpr std::size_t kStepBlocks = 24;
// The index entry of a block is prefetched this many blocks before its publication.
constexpr std::size_t kLookAhead = 8;

Result<> check_block(const CacheCore& core, const CommitBlock& block) {
  const auto no_key = [](const BlockKey& key) { return key.view().size == 0; };
  if (no_key(block.key) || (block.parent && no_key(*block.parent))) {
    return Error{ErrorCode::out_of_range,
                 "a key of 0 bytes, not 1 to " + std::to_string(kMaxKeyBytes)};
  }
  if (block.shard) {
    CAIRN_TRY(core.check_kv_group(block.handle.kv_group));
    CAIRN_TRY(check_part(core.shape(block.handle.kv_group), *block.shard));
  }
  CAIRN_TRY(core.check_metadata(block.metadata.size()));
  if (block.ttl_ms && (*block.ttl_ms < 1 || *block.ttl_ms > kMaxTtlMs)) {
    return Error{ErrorCode::out_of_range, "ttl_ms is " + std::to_string(*block.ttl_ms) +
                                              ", not 1 to " + std::to_string(kMaxTtlMs)};
  }
  if (block.priority && *block.priority > kMaxPriority) {
    return Error{ErrorCode::out_of_range, "priority is " + std::to_string(*block.priority) +
                                              ", not 0 to " + std::to_string(kMaxPriority)};
  }
  return {};
}

Result<> check_request(const CacheCore& core, std::span<const CommitBlock> blocks) {
  if (blocks.size() > core.options().max_blocks_per_request) {
    return Error{ErrorCode::out_of_range,
                 std::to_string(blocks.size()) + " blocks, not up to " +
                     std::to_string(core.options().max_blocks_per_request)};
  }
  for (const CommitBlock& block : blocks) CAIRN_TRY(check_block(core, block));
  std::vector<std::pair<Tier, std::uint64_t>> slots;
  for (const CommitBlock& block : blocks) slots.emplace_back(block.handle.tier, block.handle.slot);
  std::ranges::sort(slots);
  if (const auto twice = std::ranges::adjacent_find(slots); twice != slots.end()) {
    return Error{ErrorCode::state_conflict,
                 "slot " + std::to_string(twice->second) + " is named twice"};
  }
  return {};
}

// Whether a process that maps the tier may have written the content of an uncommitted slot.
bool may_be_in_place(CacheLock& locked, SlotRef at) {
  if (!locked->mapped[index_of(at.tier())]) return false;
  const PieceProgress* const progress = locked->writes.find(at);
  return progress == nullptr || !progress->any_written();
}

Error torn_piece(const LayoutConfig& shape, SlotRef at, std::uint32_t piece) {
  const std::uint64_t outers = shape.outer_dim;
  return {ErrorCode::state_conflict,
          "slot " + std::to_string(at.slot()) + " of tier " + std::string(to_string(at.tier())) +
              ": a write of layer " + std::to_string(piece / outers) + ", outer " +
              std::to_string(piece % outers) +
              " ended before its last byte, and what was there is partly overwritten: write it "
              "again"};
}

// The unwritten parts of the blocks.
struct Gaps {
  struct Kind {
    Tier tier = Tier::device;
    KvGroupNumber kv_group = 0;
    auto operator<=>(const Kind&) const = default;
  };
  std::map<Kind, std::vector<SlotRef>> blocks;  // entirely unwritten
  struct Piece {
    SlotRef at;
    KvGroupNumber kv_group = 0;
    std::uint32_t number = 0;
  };
  std::vector<Piece> pieces;  // of partly written blocks, in tiers that the CPU reaches
  // Written blocks of the disk tier, without a header.
  std::map<KvGroupNumber, std::vector<SlotRef>> unnamed;

  bool any_job() const { return !unnamed.empty() || !blocks.empty(); }
};

void fill_piece(const CacheCore& core, Gaps::Piece piece) {
  const BlockLayout& layout = core.layout(piece.at.tier(), piece.kv_group);
  const Geometry& geometry = layout.geometry();
  const std::uint64_t outers = layout.config().outer_dim;
  std::memset(layout.address(geometry.locate({.block = piece.at.slot(),
                                              .layer = piece.number / outers,
                                              .outer = piece.number % outers})),
              0, geometry.piece_bytes());
}

// One commit. It works in steps and releases the lock between them. It checks and marks all blocks
// before it publishes any; fills the unwritten parts; then publishes the keys in order. If the
// lease ends meanwhile, the commit still completes.
//
// A commit with refuse_duplicate takes its keys first; so does a commit that fills in a cache with
// a disk tier. Other commits of such a key wait for its end. So a header on disk never names a key
// whose block was not kept.
class Commit : public std::enable_shared_from_this<Commit> {
 public:
  struct Request {
    std::shared_ptr<CacheCore> core;
    LeaseId lease;
    std::vector<CommitBlock> blocks;
    CommitTerms terms = {};
  };
  Commit(Request request, Done<std::vector<CommitStatus>> done)
      : core_(std::move(request.core)),
        lease_(request.lease),
        blocks_(std::move(request.blocks)),
        terms_(std::move(request.terms)),
        done_(std::move(done)) {
    hashes_.reserve(blocks_.size());
    for (const CommitBlock& block : blocks_) hashes_.push_back(plain_hash(block.key));
  }

  void run();

 private:
  enum class Outcome : std::uint8_t {
    ended,
    waits,  // for another commit, whose end resumes this one
  };

  Result<> check_all(CacheLock& locked);
  Result<> check(CacheLock& locked, LeaseNumber lease, const CommitBlock& block);
  void mark(CacheLock& locked);
  void unmark(CacheLock& locked);
  Result<Outcome> take_keys(CacheLock& locked);
  void make_header(CacheLock& locked, std::size_t block);
  void give_up_keys(CacheLock& locked);
  void wait_for(CacheLock& locked, const BlockKey& key);
  std::vector<SlotHeader> headers_of(std::span<const SlotRef> slots) const;
  void fill();
  void write_headers(KvGroupNumber kv_group, std::span<const SlotRef> slots);
  void fill_slots(TransferJob job, std::span<const SlotRef> slots);
  void fill_ended(const JobOutcome& outcome);
  bool needs_name(CacheLock& locked, std::size_t block) const;
  bool write_headers_again(CacheLock& locked);
  void publish(CacheLock& locked);
  bool follows_last(std::size_t block) const;
  void publish_block(CacheLock& locked, std::size_t block);
  void end(CacheLock& locked);
  void apply_hint(CacheLock& locked);
  void hint_reuse();
  void let_go_of_duplicates(CacheLock& locked);
  void fail(CacheLock& locked, Error error);

  const std::shared_ptr<CacheCore> core_;
  const LeaseId lease_;
  std::vector<CommitBlock> blocks_;
  const CommitTerms terms_;
  Done<std::vector<CommitStatus>> done_;
  std::vector<std::uint64_t> hashes_;  // of the blocks' keys
  std::shared_ptr<BlockQuota> quota_;
  LeaseHolder holder_;
  UserNumber user_ = kSeveralUsers;
  std::vector<SlotRef> slots_;  // of the blocks
  std::size_t marked_ = 0;      // of slots_: pinned and marked as committing
  Gaps gaps_;
  std::vector<SlotHeader> headers_;     // of the blocks; empty if none is written
  std::vector<BlockKey> taken_;         // keys that others wait for
  std::uint32_t fills_ = 0;             // jobs in progress
  std::optional<Error> error_;          // the first failure
  std::vector<CommitStatus> statuses_;  // of the published blocks
  EntryNumber last_entry_ = kNoEntry;   // of the previous block; valid for one hold of the lock
  std::vector<SlotRef> committed_;
  std::vector<SlotRef> given_up_;  // duplicates
  std::vector<BlockStore::Trail> session_blocks_;
};

void Commit::run() {
  CacheLock locked(*core_, LockUse::commit);
  if (auto checked = check_all(locked); !checked) {
    return fail(locked, std::move(checked).error());
  }
  const bool fills = gaps_.any_job() || !gaps_.pieces.empty();
  const bool all_new = std::ranges::any_of(blocks_, &CommitBlock::refuse_duplicate);
  if (all_new || (fills && core_->slot_contents)) {
    auto taken = take_keys(locked);
    if (!taken) return fail(locked, std::move(taken).error());
    if (*taken == Outcome::waits) return;
  }
  if (!fills) return publish(locked);
  mark(locked);
  locked.after([self = shared_from_this()] { self->fill(); });
}

Result<> Commit::check_all(CacheLock& locked) {
  slots_.clear();
  gaps_ = {};
  while (true) {
    const auto lease = locked->leases.live(locked, lease_);
    if (!lease) return lease.error();
    quota_ = locked->leases[*lease].quota;
    holder_ = locked->leases[*lease].holder;
    user_ = locked->leases[*lease].user;
    const std::size_t end = std::min(blocks_.size(), slots_.size() + kStepBlocks);
    while (slots_.size() < end) CAIRN_TRY(check(locked, *lease, blocks_[slots_.size()]));
    if (end == blocks_.size()) return {};
    mark(locked);
    locked.yield();
  }
}

Result<> Commit::check(CacheLock& locked, LeaseNumber lease, const CommitBlock& block) {
  if (block.key.kv_group() != block.handle.kv_group) {
    return Error{ErrorCode::state_conflict, "a block and its key are of different KV groups"};
  }
  const auto at = locked->leases.uncommitted(locked, lease, block.handle);
  if (!at) return at.error();
  const PieceProgress* const progress = locked->writes.find(*at);
  if (progress != nullptr) {
    if (progress->busy()) {
      return Error{ErrorCode::state_conflict,
                   "slot " + std::to_string(at->slot()) + " is being written"};
    }
    if (const auto torn = progress->first_torn()) {
      return torn_piece(core_->shape(block.handle.kv_group), *at, *torn);
    }
  }
  const bool in_place = may_be_in_place(locked, *at);
  if (in_place && terms_.in_place == InPlaceWrites::forbidden) {
    return Error{ErrorCode::forbidden,
                 "slot " + std::to_string(at->slot()) + " of tier " +
                     std::string(to_string(at->tier())) +
                     " was not written over HTTP, and other processes map that tier: only a client "
                     "that may map it may commit its content"};
  }
  slots_.push_back(*at);
  if (in_place) return {};
  if (progress == nullptr || !progress->any_written()) {
    gaps_.blocks[{at->tier(), block.handle.kv_group}].push_back(*at);
    return {};
  }
  for (const std::uint32_t piece : progress->missing()) {
    gaps_.pieces.push_back({*at, block.handle.kv_group, piece});
  }
  if (at->tier() == Tier::disk) gaps_.unnamed[block.handle.kv_group].push_back(*at);
  return {};
}

// From here on only this commit changes the slots.
void Commit::mark(CacheLock& locked) {
  for (; marked_ < slots_.size(); ++marked_) {
    locked->store.pin(slots_[marked_]);
    locked->store.record(slots_[marked_]).committing = true;
  }
}

// Unpins from the last one on, so that the end of the prefix is evicted first if no lease holds it
// any more.
void Commit::unmark(CacheLock& locked) {
  for (std::size_t step = 0; marked_ > 0; ++step) {
    if (step == kStepBlocks) {
      locked.yield();
      step = 0;
    }
    const SlotRef at = slots_[--marked_];
    locked->store.record(at).committing = false;
    locked->store.unpin(at);
  }
}

// Takes the keys and prepares the headers, which are written after the bytes. A block whose key is
// already present, or comes earlier in this commit, gets a header without a key, because it will
// not be kept. Otherwise a restart that has lost the log could not tell which of two whole blocks
// was kept.
Result<Commit::Outcome> Commit::take_keys(CacheLock& locked) {
  if (core_->slot_contents) headers_.assign(blocks_.size(), {});
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (i > 0 && i % kStepBlocks == 0) {
      mark(locked);
      locked.yield();
      CAIRN_TRY(locked.check_usable());
    }
    const CommitBlock& block = blocks_[i];
    if (locked->store.find(block.key, locked.now()) != kNoEntry) {
      if (block.refuse_duplicate) return key_exists(block.key);
      continue;
    }
    switch (locked->writes.take_key(block.key, this)) {
      case BlockWrites::Taking::taken:
        taken_.push_back(block.key);
        if (slots_[i].tier() == Tier::disk) make_header(locked, i);
        break;
      case BlockWrites::Taking::before:
        if (block.refuse_duplicate) return key_exists(block.key);
        break;
      case BlockWrites::Taking::by_another:
        give_up_keys(locked);
        unmark(locked);
        wait_for(locked, block.key);
        return Outcome::waits;
    }
  }
  return Outcome::ended;
}

void Commit::make_header(CacheLock& locked, std::size_t i) {
  const CommitBlock& block = blocks_[i];
  NewBlock fresh{.key = block.key, .metadata = block.metadata, .epoch = block.epoch};
  if (block.parent) fresh.parent = block.parent->view();
  if (block.ttl_ms) fresh.expires_at = locked.now() + std::chrono::milliseconds(*block.ttl_ms);
  headers_[i] = header_of(locked, slots_[i], fresh);
  if (block.priority) headers_[i].block.priority = *block.priority;
}

// Runs this commit again once another commit has given the key up. Do nothing after this call: the
// other thread may already run it.
void Commit::wait_for(CacheLock& locked, const BlockKey& key) {
  UniqueFunction<void()> again = [self = shared_from_this()] { self->run(); };
  if (!locked->writes.is_taken(key)) return locked.after(std::move(again));
  locked->writes.wait_for_key(key, std::move(again));
}

// Resumes the waiting commits, after this one's answer. Yields the lock.
void Commit::give_up_keys(CacheLock& locked) {
  std::size_t step = 0;
  for (const BlockKey& key : std::exchange(taken_, {})) {
    if (step++ % kStepBlocks == kStepBlocks - 1) locked.yield();
    for (auto& waiting : locked->writes.give_up_key(key)) locked.after(std::move(waiting));
  }
}

// Returns the headers of some of the slots, given in the order of slots_.
std::vector<SlotHeader> Commit::headers_of(std::span<const SlotRef> slots) const {
  std::vector<SlotHeader> headers;
  for (std::size_t i = 0; headers.size() < slots.size(); ++i) {
    if (slots_[i] == slots[headers.size()]) headers.push_back(headers_[i]);
  }
  return headers;
}

// Fills the gaps. Runs without the lock. The slots are marked and pinned.
void Commit::fill() {
  fills_ = 1;  // for the pieces; also keeps the jobs from ending the fill early
  fills_ += static_cast<std::uint32_t>(gaps_.blocks.size());
  fills_ += static_cast<std::uint32_t>(gaps_.unnamed.size());
  for (const Gaps::Piece piece : gaps_.pieces) fill_piece(*core_, piece);
  for (const auto& [group, slots] : gaps_.unnamed) write_headers(group, slots);
  for (const auto& [kind, slots] : gaps_.blocks) {
    const auto zeros = core_->staging.zeros(kind.kv_group);
    if (!zeros) {
      JobOutcome failed;
      failed.state = JobState::failed;
      failed.failures.push_back({0, zeros.error()});
      fill_ended(failed);
      continue;
    }
    TransferJob job;
    job.source = *zeros;
    job.destination = &core_->layout(kind.tier, kind.kv_group);
    for (const SlotRef at : slots) job.pairs.push_back({0, at.slot()});
    fill_slots(std::move(job), slots);
  }
  fill_ended({});
}

void Commit::write_headers(KvGroupNumber kv_group, std::span<const SlotRef> slots) {
  TransferJob job;
  job.source = job.destination = &core_->layout(Tier::disk, kv_group);
  job.operation = JobOperation::write_header;
  for (const SlotRef at : slots) job.pairs.push_back({at.slot(), at.slot()});
  fill_slots(std::move(job), slots);
}

void Commit::fill_slots(TransferJob job, std::span<const SlotRef> slots) {
  if (slots.front().tier() == Tier::disk) job.headers = headers_of(slots);
  core_->submit(
      std::move(job),
      [self = shared_from_this()](const JobOutcome& outcome) { self->fill_ended(outcome); }, {});
}

void Commit::fill_ended(const JobOutcome& outcome) {
  core_->options().failpoint("commit.header_written");
  CacheLock locked(*core_, LockUse::commit);
  if (outcome.state != JobState::done && !error_) error_ = error_of(outcome);
  if (--fills_ > 0) return;
  // Once a block is published, the commit cannot fail: a block whose second header could not be
  // written stays without it.
  if (error_ && statuses_.empty()) return fail(locked, *error_);
  publish(locked);
}

// Whether the key was present when the header was written, and is not now.
bool Commit::needs_name(CacheLock& locked, std::size_t i) const {
  return !headers_.empty() && slots_[i].tier() == Tier::disk && headers_[i].block.key.empty() &&
         !locked->store.contains(blocks_[i].key, locked.now());
}

// Writes headers for the blocks of needs_name(). They will be kept, and a restart that has lost the
// index knows them only by their headers. If another commit has taken the key, both headers name
// it; the later whole one counts. Returns false if there is no such block.
bool Commit::write_headers_again(CacheLock& locked) {
  mark(locked);
  std::map<KvGroupNumber, std::vector<SlotRef>> named;
  for (std::size_t i = statuses_.size(); i < headers_.size(); ++i) {
    if (i > 0 && i % kStepBlocks == 0) locked.yield();
    if (!needs_name(locked, i)) continue;
    const auto taking = locked->writes.take_key(blocks_[i].key, this);
    // The commit has the key twice and will publish the first.
    if (taking == BlockWrites::Taking::before && statuses_.empty()) continue;
    if (taking == BlockWrites::Taking::taken) taken_.push_back(blocks_[i].key);
    make_header(locked, i);
    named[blocks_[i].handle.kv_group].push_back(slots_[i]);
  }
  if (named.empty()) return false;
  fills_ = static_cast<std::uint32_t>(named.size());
  locked.after([self = shared_from_this(), named = std::move(named)] {
    for (const auto& [group, slots] : named) self->write_headers(group, slots);
  });
  return true;
}

void Commit::publish(CacheLock& locked) {
  // Before any block is published, a failure still refuses the commit.
  if (statuses_.empty() && !headers_.empty() && write_headers_again(locked)) return;
  const auto fetch = [&](std::size_t i) {
    if (i < blocks_.size()) locked->store.prefetch_new(blocks_[i].key, hashes_[i]);
  };
  for (std::size_t i = 0; i < kLookAhead; ++i) fetch(statuses_.size() + i);
  last_entry_ = kNoEntry;
  for (std::size_t i = statuses_.size(); i < blocks_.size(); ++i) {
    if (i > 0 && i % kStepBlocks == 0) {
      mark(locked);
      locked.yield();
      last_entry_ = kNoEntry;
    }
    if (auto usable = locked.check_usable(); !usable) return fail(locked, usable.error());
    fetch(i + kLookAhead);
    if (taken_.empty() && locked->writes.is_taken(blocks_[i].key)) {
      locked->writes.wait_for_key(blocks_[i].key, [self = shared_from_this()] {
        CacheLock own(*self->core_, LockUse::commit);
        self->publish(own);
      });
      return mark(locked);
    }
    if (needs_name(locked, i) && write_headers_again(locked)) return;
    publish_block(locked, i);
  }
  core_->options().failpoint("commit.noted");
  end(locked);
}

// Whether the block's parent is the block before it, whose entry is known. So a prefix looks each
// key up once.
bool Commit::follows_last(std::size_t i) const {
  return last_entry_ != kNoEntry && *blocks_[i].parent == blocks_[i - 1].key;
}

void Commit::publish_block(CacheLock& locked, std::size_t i) {
  CommitBlock& block = blocks_[i];
  const SlotRef at = slots_[i];
  SlotRecord& slot = locked->store.record(at);
  locked->writes.erase(at);
  if (!locked->partials.empty()) locked->partials.remove(at);
  NewBlock fresh{.key = block.key,
                 .quota = quota_,
                 .epoch = block.epoch,
                 .user = user_,
                 .key_hash = hashes_[i],
                 .priority = block.priority};
  if (block.parent) fresh.parent = block.parent->view();
  if (block.parent && follows_last(i)) fresh.parent_entry = last_entry_;
  fresh.metadata = std::move(block.metadata);
  if (block.ttl_ms) fresh.expires_at = locked.now() + std::chrono::milliseconds(*block.ttl_ms);
  const auto [entry, is_new] = locked->store.commit(at, std::move(fresh));
  last_entry_ = entry;
  if (!is_new) {
    statuses_.push_back(CommitStatus::duplicate);
    locked->store.note_user(entry, user_);
    // Nobody else may use it until its lease releases it.
    slot.committing = slot.leases > 0;
    if (slot.committing) given_up_.push_back(at);
    return;
  }
  slot.committing = false;
  if (!terms_.hint.session.empty()) session_blocks_.push_back(locked->store.trail(entry));
  statuses_.push_back(CommitStatus::committed);
  committed_.push_back(at);
}

void Commit::end(CacheLock& locked) {
  locked->counts.commits += committed_.size();
  locked->counts.duplicates += statuses_.size() - committed_.size();
  apply_hint(locked);
  let_go_of_duplicates(locked);
  if (core_->settings->offload == OffloadMode::on_commit) {
    for (std::span<const SlotRef> left = committed_; !left.empty();) {
      const auto step = left.first(std::min(left.size(), kStepBlocks));
      locked->transfers.write_through(locked, step);
      left = left.subspan(step.size());
      if (!left.empty()) locked.yield();
    }
  }
  unmark(locked);
  if (terms_.release) {
    if (const auto still = locked->leases.find(lease_)) locked->leases.end(locked, *still, false);
  }
  locked.after([self = shared_from_this()] {
    self->hint_reuse();
    self->done_(std::move(self->statuses_));
  });
  give_up_keys(locked);
  locked->leases.finish_releases(locked);
}

void Commit::apply_hint(CacheLock& locked) {
  const auto& [reuse, session] = terms_.hint;
  locked->counts.count(reuse);
  if (const auto still = locked->leases.find(lease_); still && reuse) {
    locked->leases.hint(*still, reuse.next_use());
  }
  if (!session.empty()) {
    locked->sessions.add({holder_, session}, {session_blocks_, locked.unix_ms()});
  }
}

void Commit::hint_reuse() {
  std::size_t stored = 0;
  for (std::size_t i = 0; i < statuses_.size(); ++i) {
    if (statuses_[i] == CommitStatus::committed) hashes_[stored++] = hashes_[i];
  }
  core_->reuse.stored(std::span(hashes_).first(stored), lease_);
}

// Releases the slots of duplicates. If their lease has ended meanwhile, it has released them
// already.
void Commit::let_go_of_duplicates(CacheLock& locked) {
  if (given_up_.empty()) return;
  // A commit of one step did not mark the slots, so unmark() does not reset them.
  if (marked_ == 0) {
    for (const SlotRef at : given_up_) locked->store.record(at).committing = false;
  }
  if (terms_.release) return;  // the end of the lease releases them
  static_cast<void>(
      locked->leases.part_with(locked, {.from = lease_, .is_commits = true}, given_up_));
}

void Commit::fail(CacheLock& locked, Error error) {
  unmark(locked);
  locked.after([self = shared_from_this(), error = std::move(error)] { self->done_(error); });
  give_up_keys(locked);
}

}  // namespace

void commit_blocks(std::shared_ptr<CacheCore> core, const LeaseId& lease,
                   std::vector<CommitBlock> blocks, Done<std::vector<CommitStatus>> done,
                   CommitTerms terms) {
  std::make_shared<Commit>(Commit::Request{.core = std::move(core),
                                           .lease = lease,
                                           .blocks = std::move(blocks),
                                           .terms = std::move(terms)},
                           std::move(done))
      ->run();
}

void Cache::commit(const LeaseId& lease, std::vector<CommitBlock> blocks,
                   Done<std::vector<CommitStatus>> done, CommitTerms terms) {
  if (auto fine = check_request(*core_, blocks); !fine) return done(std::move(fine).error());
  const auto run = core_->has_shards ? commit_with_parts : commit_blocks;
  run(core_, lease, std::move(blocks), std::move(done), std::move(terms));
}

}  // namespace cairn
