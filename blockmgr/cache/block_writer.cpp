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
// A disk takes only whole blocks, and so does a device for a piece. Once all of the part is in
// staging, this then adds the rest of the block's current content and stores the whole block. Such
// writes to one block take turns, from there on: a slow client keeps no other waiting. A shard goes
// to a device by itself.
struct Write : std::enable_shared_from_this<Write> {
  Write(std::shared_ptr<CacheCore> c, const BlockHandle& block, const BlockPart& p)
      : core(std::move(c)),
        at(block.tier, block.slot),
        kv_group(block.kv_group),
        part(p),
        range(piece_range(core->shape(kv_group), p)),
        in_place(is_host_memory(layout().storage_kind())),
        whole_blocks(!in_place && !p.is_whole() &&
                     (at.tier() == Tier::disk || !p.shard().has_value())) {}
  ~Write();

  void room(Done<std::span<const iovec>> ready);
  void finish(Done<> done);
  void merge(bool begun, Done<> done);
  void store(Done<> done);
  Result<> end(PieceProgress::End how);
  bool let_go(CacheLock& locked, PieceProgress& progress);
  const BlockLayout& layout() const { return core->layout(at.tier(), kv_group); }

  const std::shared_ptr<CacheCore> core;
  const SlotRef at;
  const KvGroupNumber kv_group;
  const BlockPart part;
  const PieceProgress::Range range;
  const bool in_place;
  const bool whole_blocks;       // the part is stored with the rest of the block
  bool filled_in_place = false;  // through BlockWriter::in_place()
  std::optional<CanonicalStaging::Block> staging;
  std::vector<iovec> bytes;
  std::optional<BlockLayout> part_of_staging;  // of a shard that goes to a device
  std::optional<BlockLayout> part_of_tier;
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
    if (bytes.empty()) bytes = bytes_in_place(layout(), at.slot(), part);
    touched = true;
    return ready(std::span<const iovec>(bytes));
  }
  if (staging) return ready(std::span<const iovec>(bytes));
  core->staging.acquire(kv_group, [self = shared_from_this(), ready = std::move(ready)](
                                      Result<CanonicalStaging::Block> block) mutable {
    if (!block) return ready(std::move(block).error());
    if (self->abandoned) return ready(kWriterGone);
    self->staging.emplace(std::move(*block));
    self->bytes =
        bytes_in_canonical(self->staging->data(), self->core->shape(self->kv_group), self->part);
    ready(std::span<const iovec>(self->bytes));
  });
}

void Write::finish(Done<> done) {
  if (in_place || filled_in_place) return done(end(PieceProgress::End::written));
  if (!whole_blocks) return store(std::move(done));
  CacheLock locked(*core, LockUse::write);
  UniqueFunction<void()> turn = [self = shared_from_this(), done = std::move(done)]() mutable {
    bool begun = false;
    {
      CacheLock mine(*self->core, LockUse::write);
      self->has_turn = true;
      begun = mine->writes.find(self->at)->any_written();
    }
    self->merge(begun, std::move(done));
  };
  if (locked->writes.find(at)->take_turn(turn)) locked.after(std::move(turn));
}

// Fills the rest of the staged block: with what the slot holds, or with zeros. The part is kept
// aside meanwhile.
void Write::merge(bool begun, Done<> done) {
  auto kept = std::make_shared<std::vector<std::byte>>();
  kept->reserve(part_bytes(core->shape(kv_group), part));
  for (const iovec& piece : bytes) {
    const auto* const data = static_cast<const std::byte*>(piece.iov_base);
    kept->insert(kept->end(), data, data + piece.iov_len);
  }
  const auto put_back = [self = shared_from_this(), kept] {
    const std::byte* from = kept->data();
    for (const iovec& piece : self->bytes) {
      std::memcpy(piece.iov_base, from, piece.iov_len);
      from += piece.iov_len;
    }
  };
  if (!begun) {
    std::memset(staging->data(), 0, block_bytes(core->shape(kv_group)));
    put_back();
    return store(std::move(done));
  }
  TransferJob job;
  job.source = &layout();
  job.destination = &staging->layout();
  job.pairs = {{at.slot(), 0}};
  core->submit(std::move(job),
               [self = shared_from_this(), put_back,
                done = std::move(done)](const JobOutcome& outcome) mutable {
                 if (outcome.state == JobState::done) {
                   put_back();
                   return self->store(std::move(done));
                 }
                 static_cast<void>(self->end(PieceProgress::End::untouched));
                 done(outcome.failures.empty() ? kWriterGone : outcome.failures.front().error);
               },
               {});
}

// Stores the staged bytes: the whole block, or a shard by itself.
void Write::store(Done<> done) {
  using End = PieceProgress::End;
  TransferJob job;
  job.source = &staging->layout();
  job.destination = &layout();
  if (!part.is_whole() && !whole_blocks) {
    const Geometry::Outers outers = outers_of(core->shape(kv_group), part);
    job.source = &part_of_staging.emplace(staging->layout().outers(outers));
    job.destination = &part_of_tier.emplace(layout().outers(outers));
  }
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
                 self->part_of_staging.reset();
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
  if (whole_blocks) {
    // The whole staged block was stored, so the rest of it now has content too.
    const PieceProgress::Range all = piece_range(core->shape(kv_group), std::nullopt);
    if (how == PieceProgress::End::written) progress.set_filled(all);
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
  for (auto& waiting : progress.take_waiting()) locked.after(std::move(waiting));
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
  return part_bytes(impl_->write->core->shape(impl_->write->kv_group), impl_->write->part);
}

void BlockWriter::room(Done<std::span<const iovec>> ready) {
  const std::shared_ptr<Write> write = impl_->write;  // the writer may be destroyed by `ready`
  write->room(std::move(ready));
}

std::vector<iovec> BlockWriter::in_place() {
  Write& write = *impl_->write;
  write.filled_in_place = true;
  write.touched = true;
  return bytes_in_place(write.layout(), write.at.slot(), write.part);
}

void BlockWriter::finish(Done<> done) {
  const std::shared_ptr<Write> write = impl_->write;
  write->finish(std::move(done));
}

Result<BlockWriter> Cache::write(const WriteTarget& target) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_kv_group(target.block.kv_group));
  const LayoutConfig& shape = core.shape(target.block.kv_group);
  CAIRN_TRY(check_part(shape, target.part));
  CacheLock locked(core, LockUse::write);
  auto lease = locked->leases.live(locked, target.lease);
  if (!lease) return std::move(lease).error();
  auto at = locked->leases.uncommitted(locked, *lease, target.block);
  if (!at) return std::move(at).error();
  const auto pieces = piece_range(shape, std::nullopt).count;
  PieceProgress& progress = locked->writes.begin(*at, pieces);
  if (!progress.claim(piece_range(shape, target.part))) {
    return Error{ErrorCode::state_conflict,
                 "slot " + std::to_string(at->slot()) + " is being written by another request"};
  }
  locked->store.pin(*at);
  auto impl = std::make_unique<BlockWriter::Impl>();
  impl->write = std::make_shared<Write>(core_, target.block, target.part);
  return BlockWriter(std::move(impl));
}

}  // namespace cairn
