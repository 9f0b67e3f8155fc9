#include "server/routes/write_batch.hpp"

#include <algorithm>
#include <utility>

namespace cairn::routes {

WriteBatch::WriteBatch(std::shared_ptr<Cache> cache, Request request)
    : cache_(cache),
      tier_(request.tier),
      metadata_(std::move(request.metadata)),
      ingest_(std::move(cache), std::move(request.terms)) {
  ingest_.reserve(request.blocks.size());
  for (CommitBlock& block : request.blocks) ingest_.add(std::move(block));
}

Result<std::shared_ptr<WriteBatch>> WriteBatch::open(std::shared_ptr<Cache> cache,
                                                     Request request) {
  std::shared_ptr<WriteBatch> batch(new WriteBatch(std::move(cache), std::move(request)));
  CAIRN_TRY(batch->ingest_.hold_present());
  batch->absent_ = static_cast<std::size_t>(
      std::ranges::count(batch->items(), Ingest::State::absent, &Ingest::Item::state));
  return batch;
}

void WriteBatch::next(UniqueFunction<void(http::Upload::Room)> ready) {
  if (next_block_ > 0 || left_to_discard_ > 0 || absent_ == 0) return give_room(std::move(ready));
  ingest_.allocate({.tier = tier_},
                   [self = shared_from_this(), ready = std::move(ready)](Result<> granted) mutable {
                     if (!granted) return ready(std::move(granted).error());
                     self->give_room(std::move(ready));
                   });
}

void WriteBatch::give_room(UniqueFunction<void(http::Upload::Room)> ready) {
  if (left_to_discard_ == 0) {
    end_block();
    const std::size_t block = next_block_++;
    if (items()[block].state != Ingest::State::present) {
      open_block_ = block;
      // The callback must not hold `this`, because the writer is a part of it.
      return ingest_.room(block, std::move(ready));
    }
    left_to_discard_ = cache_->block_bytes(items()[block].block.key.kv_group());
  }
  const auto room = discard_.room(left_to_discard_);
  left_to_discard_ -= room.front().iov_len;
  ready(room);
}

void WriteBatch::end_block() {
  const auto block = std::exchange(open_block_, std::nullopt);
  if (!block) return;
  {
    MutexLock lock(mutex_);
    ++unfinished_;
  }
  ingest_.finish(*block, [self = shared_from_this()](const Result<>&) {
    {
      MutexLock lock(self->mutex_);
      --self->unfinished_;
    }
    self->end_if_filled();
  });
}

void WriteBatch::finish(Done<> done) {
  {
    MutexLock lock(mutex_);
    ++unfinished_;  // for this call, so that the commit waits until the last block has ended
    done_.emplace(std::move(done));
  }
  end_block();
  {
    MutexLock lock(mutex_);
    --unfinished_;
  }
  end_if_filled();
}

void WriteBatch::end_if_filled() {
  std::optional<Done<>> done;
  {
    MutexLock lock(mutex_);
    if (!done_ || unfinished_ > 0) return;
    done = std::exchange(done_, std::nullopt);
  }
  if (const Error* const error = ingest_.first_error()) {
    ingest_.release();
    return (*done)(*error);
  }
  commit(std::move(*done));
}

void WriteBatch::commit(Done<> done) {
  if (auto held = ingest_.check_present(); !held) {
    ingest_.release();
    return done(std::move(held));
  }
  for (const std::size_t item : ingest_.granted()) ingest_.block(item).metadata = metadata_;
  ingest_.commit(Ingest::Then::release,
                 [self = shared_from_this(), done = std::move(done)](Result<> committed) mutable {
                   self->ingest_.release();
                   done(std::move(committed));
                 });
}

}  // namespace cairn::routes
