#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "blockmgr/cache/block_pieces.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

const Error kWriterGone{ErrorCode::cancelled, "the writer has gone"};
const Error kLeaseEnded{ErrorCode::lease_expired, "the lease ended while the block was written"};

// Shared by the writer and the work it has begun. The last of them releases the claim, the pin and
// the staging.
//
// A tier that the CPU cannot reach takes only whole blocks. To write a piece, this stages a copy of
// the block's current content, puts the piece into it and stores the whole block. Such writes to
// one block take turns.
struct Write : std::enable_shared_from_this<Write> {
  Write(std::shared_ptr<CacheCore> c, const BlockHandle& block, std::optional<PieceSelector> p)
      : core(std::move(c)),
        at(block.tier, block.slot),
        kv_group(block.kv_group),
        piece(p),
        range(piece_range(core->shape(kv_group), p)),
        in_place(is_host_memory(layout().storage_kind())) {}
  ~Write();

  void room(Done<std::span<const iovec>> ready);
  void stage(Done<std::span<const iovec>> ready);
  void staged(Done<std::span<const iovec>> ready);
  void finish(Done<> done);
  Result<> end(PieceProgress::End how);
  bool let_go(CacheLock& locked, PieceProgress& progress);
  const BlockLayout& layout() const { return core->layout(at.tier(), kv_group); }

  const std::shared_ptr<CacheCore> core;
  const SlotRef at;
  const KvGroupNumber kv_group;
  const std::optional<PieceSelector> piece;
  const PieceProgress::Range range;
  const bool in_place;
  bool filled_in_place = false;  // through BlockWriter::in_place()
  std::optional<CanonicalStaging::Block> staging;
  std::vector<iovec> bytes;
  bool has_turn = false;  // guarded by the cache's lock
  bool claimed = true;    // likewise; ending the claim releases the pin
  // The caller has memory in the slot itself, so bytes may have changed.
  std::atomic<bool> touched{false};
  std::atomic<bool> abandoned{false};
};

Write::~Write() {
  if (!claimed) return;  // no other owner is left that could change it
  CacheLock locked(*core, LockUse::write);
  claimed = false;
  PieceProgress& progress = *locked->writes.find(at);
  progress.end(range, touched ? PieceProgress::End::torn : PieceProgress::End::untouched);
  let_go(locked, progress);
}

void Write::room(Done<std::span<const iovec>> ready) {
  if (in_place) {
    if (bytes.empty()) bytes = bytes_in_place(layout(), at.slot(), piece);
    touched = true;
    return ready(std::span<const iovec>(bytes));
  }
  if (staging) return ready(std::span<const iovec>(bytes));
  if (!piece) return stage(std::move(ready));

  CacheLock locked(*core, LockUse::write);
  UniqueFunction<void()> turn = [self = shared_from_this(), ready = std::move(ready)]() mutable {
    {
      CacheLock mine(*self->core, LockUse::write);
      self->has_turn = true;
    }
    if (self->abandoned) return ready(kWriterGone);
    self->stage(std::move(ready));
  };
  if (locked->writes.find(at)->take_turn(turn)) locked.after(std::move(turn));
}

void Write::stage(Done<std::span<const iovec>> ready) {
  core->staging.acquire(kv_group, [self = shared_from_this(), ready = std::move(ready)](
                                      Result<CanonicalStaging::Block> block) mutable {
    if (!block) return ready(std::move(block).error());
    if (self->abandoned) return ready(kWriterGone);
    self->staging.emplace(std::move(*block));
    self->staged(std::move(ready));
  });
}

// If only a piece will be written, fills the rest of the staged block.
void Write::staged(Done<std::span<const iovec>> ready) {
  bytes = {bytes_in_canonical(staging->data(), core->shape(kv_group), piece)};
  if (!piece) return ready(std::span<const iovec>(bytes));
  bool begun = false;
  {
    CacheLock locked(*core, LockUse::write);
    begun = locked->writes.find(at)->any_written();
  }
  if (!begun) {
    std::memset(staging->data(), 0, block_bytes(core->shape(kv_group)));
    return ready(std::span<const iovec>(bytes));
  }
  TransferJob job;
  job.source = &layout();
  job.destination = &staging->layout();
  job.pairs = {{at.slot(), 0}};
  core->submit(std::move(job),
               [self = shared_from_this(), ready = std::move(ready)](JobOutcome outcome) mutable {
                 if (self->abandoned || outcome.state == JobState::cancelled)
                   return ready(kWriterGone);
                 if (!outcome.failures.empty()) return ready(outcome.failures.front().error);
                 ready(std::span<const iovec>(self->bytes));
               },
               {});
}

void Write::finish(Done<> done) {
  using End = PieceProgress::End;
  if (in_place || filled_in_place) return done(end(End::written));
  TransferJob job;
  job.source = &staging->layout();
  job.destination = &layout();
  job.pairs = {{0, at.slot()}};
  core->submit(std::move(job),
               [self = shared_from_this(), done = std::move(done)](JobOutcome outcome) mutable {
                 const End how = outcome.state == JobState::done ? End::written
                                 : outcome.begun                 ? End::torn
                                                                 : End::untouched;
                 const Result<> ended = self->end(how);
                 // Do not keep the staging until the writer is destroyed: a request that writes
                 // many blocks keeps all its writers to its end, and would wait for staging that it
                 // holds itself.
                 self->bytes.clear();
                 self->staging.reset();
                 if (outcome.state == JobState::cancelled) return done(kWriterGone);
                 if (!outcome.failures.empty()) return done(outcome.failures.front().error);
                 done(ended);
               },
               {});
}

Result<> Write::end(PieceProgress::End how) {
  CacheLock locked(*core, LockUse::write);
  CAIRN_ASSERT(claimed, "a write was finished twice");
  claimed = false;
  PieceProgress& progress = *locked->writes.find(at);
  progress.end(range, how);
  if (!in_place) {
    // The whole staged block was stored, so the rest of it now has content too.
    const PieceProgress::Range all = piece_range(core->shape(kv_group), std::nullopt);
    if (how == PieceProgress::End::written) progress.set_written(all);
    if (how == PieceProgress::End::torn) progress.set_torn(all);
  }
  if (let_go(locked, progress)) return {};
  return kLeaseEnded;
}

// Ends the claim, before the caller learns that the write has ended. Returns true if the lease
// still holds the block.
bool Write::let_go(CacheLock& locked, PieceProgress& progress) {
  if (std::exchange(has_turn, false)) {
    if (auto next = progress.end_turn()) locked.after(std::move(next));
  }
  const bool gone = locked->store.record(at).gone;
  if (gone) locked->writes.erase_unless_busy(at);
  locked->store.unpin(at);
  return !gone;
}

}  // namespace

struct BlockWriter::Impl {
  std::shared_ptr<Write> write;
  ~Impl() {
    if (write) write->abandoned = true;
  }
};

BlockWriter::BlockWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BlockWriter::BlockWriter(BlockWriter&&) noexcept = default;
BlockWriter& BlockWriter::operator=(BlockWriter&&) noexcept = default;
BlockWriter::~BlockWriter() = default;

std::uint64_t BlockWriter::size_bytes() const {
  const LayoutConfig& shape = impl_->write->core->shape(impl_->write->kv_group);
  return impl_->write->piece ? piece_bytes(shape) : block_bytes(shape);
}

void BlockWriter::room(Done<std::span<const iovec>> ready) {
  const std::shared_ptr<Write> write = impl_->write;  // the writer may be destroyed by `ready`
  write->room(std::move(ready));
}

std::vector<iovec> BlockWriter::in_place() {
  Write& write = *impl_->write;
  write.filled_in_place = true;
  write.touched = true;
  return bytes_in_place(write.layout(), write.at.slot(), write.piece);
}

void BlockWriter::finish(Done<> done) {
  const std::shared_ptr<Write> write = impl_->write;
  write->finish(std::move(done));
}

Result<BlockWriter> Cache::write(const WriteTarget& target) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_kv_group(target.block.kv_group));
  const LayoutConfig& shape = core.shape(target.block.kv_group);
  CAIRN_TRY(check_piece(shape, target.piece));
  CacheLock locked(core, LockUse::write);
  auto lease = locked->leases.live(locked, target.lease);
  if (!lease) return std::move(lease).error();
  auto at = locked->leases.uncommitted(locked, *lease, target.block);
  if (!at) return std::move(at).error();
  const auto pieces = piece_range(shape, std::nullopt).count;
  PieceProgress& progress = locked->writes.begin(*at, pieces);
  if (!progress.claim(piece_range(shape, target.piece))) {
    return Error{ErrorCode::state_conflict,
                 "slot " + std::to_string(at->slot()) + " is being written by another request"};
  }
  locked->store.pin(*at);
  auto impl = std::make_unique<BlockWriter::Impl>();
  impl->write = std::make_shared<Write>(core_, target.block, target.piece);
  return BlockWriter(std::move(impl));
}

}  // namespace cairn
