#include "server/routes/write_batch.hpp"

#include <algorithm>
#include <utility>

#include "server/routes/common.hpp"

namespace cairn::routes {

WriteBatch::WriteBatch(std::shared_ptr<Cache> cache, Request request)
    : cache_(cache),
      tier_(request.tier),
      metadata_(std::move(request.metadata)),
      block_bytes_(request.block_bytes),
      pin_ms_(request.pin_ms),
      holder_(request.terms.holder),
      span_(std::move(request.span)),
      ingest_(std::move(cache), std::move(request.terms)) {
  span_.set("cairn.tier", to_string(tier_));
  span_.set("cairn.blocks", request.blocks.size());
  span_.set("cairn.bytes", request.blocks.size() * block_bytes_);
  ingest_.reserve(request.blocks.size());
  for (CommitBlock& block : request.blocks) ingest_.add(std::move(block));
}

Result<std::shared_ptr<WriteBatch>> WriteBatch::open(std::shared_ptr<Cache> cache,
                                                     Request request) {
  std::shared_ptr<WriteBatch> batch(new WriteBatch(std::move(cache), std::move(request)));
  CAIRN_TRY(batch->ingest_.hold_present());
  batch->absent_ = static_cast<std::size_t>(
      std::ranges::count(batch->items(), Ingest::State::absent, &Ingest::Item::state));
  batch->span_.set("cairn.stored_before", batch->items().size() - batch->absent_);
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
    if (!Ingest::is_there(items()[block].state)) {
      open_block_ = block;
      // The callback must not hold `this`, because the writer is a part of it.
      return ingest_.room(block, std::move(ready));
    }
    left_to_discard_ = block_bytes_;
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
    done_.emplace([span = std::move(span_), done = std::move(done)](Result<> stored) mutable {
      if (!stored) span.fail(stored.error().detail);
      span.end();
      done(std::move(stored));
    });
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
  // A pin begins before the blocks may be evicted.
  ingest_.commit(pin_ms_ ? Ingest::Then::hold : Ingest::Then::release,
                 [self = shared_from_this(), done = std::move(done)](Result<> committed) mutable {
                   if (committed) self->pin_blocks();
                   self->ingest_.release();
                   done(std::move(committed));
                 });
}

void WriteBatch::pin_blocks() {
  if (!pin_ms_) return;
  std::vector<BlockKey> keys;
  for (const Ingest::Item& item : items()) keys.push_back(item.block.key);
  pin_ = pin_for(*cache_, {.keys = keys, .ttl_ms = *pin_ms_, .holder = holder_});
}

}  // namespace cairn::routes
