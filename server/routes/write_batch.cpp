#include "server/routes/write_batch.hpp"

#include <algorithm>

#include "server/codec/answers.hpp"

namespace cairn::routes {

Result<std::shared_ptr<WriteBatch>> WriteBatch::open(std::shared_ptr<Cache> cache,
                                                     WriteHeader header,
                                                     const AllocateRequest& terms) {
  std::shared_ptr<WriteBatch> batch(new WriteBatch(std::move(cache), std::move(header), terms));
  CAIRN_TRY(batch->hold_present());
  return batch;
}

Result<> WriteBatch::hold_present() {
  const std::vector<KeyView> views(header_.keys.begin(), header_.keys.end());
  auto held = cache_->hold(views, {.lease_ms = *terms_.lease_ms,
                                   .holder = terms_.holder,
                                   .hint = header_.hint,
                                   .pins = terms_.pins});
  if (!held) return std::move(held).error();
  if (held->lease) present_lease_ = HeldLease(cache_, *held->lease);
  for (const auto& block : held->blocks) is_present_.push_back(block.has_value());
  const auto present = std::ranges::find(is_present_, true);
  if (header_.each.refuse_duplicate && present != is_present_.end()) {
    return key_exists(header_.keys[static_cast<std::size_t>(present - is_present_.begin())]);
  }
  return {};
}

void WriteBatch::next(UniqueFunction<void(http::Upload::Room)> ready) {
  const bool is_first = next_block_ == 0;
  const bool any_absent = std::count(is_present_.begin(), is_present_.end(), false) > 0;
  if (is_first && any_absent && slots_.empty()) return allocate(std::move(ready));
  give_room(std::move(ready));
}

void WriteBatch::allocate(UniqueFunction<void(http::Upload::Room)> ready) {
  const auto absent = std::count(is_present_.begin(), is_present_.end(), false);
  AllocateRequest request = terms_;
  request.count = static_cast<std::uint32_t>(absent);
  request.tier = header_.tier.value_or(cache_->highest_tier());
  cache_->allocate(request, [self = shared_from_this(),
                             ready = std::move(ready)](Result<Allocation> allocation) mutable {
    if (!allocation) return ready(std::move(allocation).error());
    self->lease_ = HeldLease(self->cache_, allocation->lease);
    self->slots_ = std::move(allocation->blocks);
    self->give_room(std::move(ready));
  });
}

void WriteBatch::give_room(UniqueFunction<void(http::Upload::Room)> ready) {
  if (left_to_discard_ == 0) {
    end_block();
    if (!is_present_[next_block_++]) return open_block(std::move(ready));
    left_to_discard_ = cache_->block_bytes();
  }
  const auto room = discard_.room(left_to_discard_);
  left_to_discard_ -= room.front().iov_len;
  ready(room);
}

void WriteBatch::open_block(UniqueFunction<void(http::Upload::Room)> ready) {
  auto writer = cache_->write({.lease = lease_.id(), .block = slots_[writers_.size()]});
  if (!writer) return ready(std::move(writer).error());
  writers_.push_back(std::make_unique<BlockWriter>(std::move(*writer)));
  block_is_open_ = true;
  // The callback must not hold this: the writer is a part of it.
  writers_.back()->room(std::move(ready));
}

void WriteBatch::end_block() {
  if (!std::exchange(block_is_open_, false)) return;
  {
    MutexLock lock(mutex_);
    ++unfinished_;
  }
  writers_.back()->finish([self = shared_from_this()](Result<> written) {
    {
      MutexLock lock(self->mutex_);
      --self->unfinished_;
      if (!written && !self->failure_) self->failure_ = written.error();
    }
    self->answer_if_done();
  });
}

void WriteBatch::finish(Reply reply) {
  {
    MutexLock lock(mutex_);
    ++unfinished_;  // this call, so that nobody answers before it has ended the last block
    reply_.emplace(std::move(reply));
  }
  end_block();
  {
    MutexLock lock(mutex_);
    --unfinished_;
  }
  answer_if_done();
}

void WriteBatch::answer_if_done() {
  std::optional<Reply> reply;
  std::optional<Error> failure;
  {
    MutexLock lock(mutex_);
    if (!reply_ || unfinished_ > 0) return;
    reply.emplace(std::move(*reply_));
    reply_.reset();
    failure = failure_;
  }
  if (!failure) return commit(std::move(*reply));
  let_go();
  reply->error(*failure);
}

// The prefix's end first, so that it is evicted first.
void WriteBatch::let_go() {
  lease_.release();
  present_lease_.release();
}

void WriteBatch::commit(Reply reply) {
  std::vector<CommitBlock> blocks;
  blocks.reserve(slots_.size());
  for (std::size_t i = 0; i < header_.keys.size(); ++i) {
    if (is_present_[i]) continue;
    CommitBlock block = header_.each;
    block.handle = slots_[blocks.size()];
    block.key = header_.keys[i];
    block.parent = header_.parents[i];
    blocks.push_back(std::move(block));
  }
  const bool any = !blocks.empty();
  if (present_lease_) {
    // It may have run out, and its cache may be gone.
    if (auto alive = cache_->renew(present_lease_.id(), terms_.lease_ms); !alive) {
      let_go();
      return reply.error(alive.error());
    }
  }
  auto answer = [self = shared_from_this(),
                 reply = std::move(reply)](Result<std::vector<CommitStatus>> done) mutable {
    // First, so that a client that has its answer finds nothing pinned.
    self->let_go();
    if (!done) return reply.error(done.error());
    std::vector<CommitStatus> statuses;
    std::size_t next_status = 0;
    for (bool present : self->is_present_) {
      statuses.push_back(present ? CommitStatus::duplicate : (*done)[next_status++]);
    }
    reply.text(200, commit_text({.keys = self->header_.keys, .statuses = statuses}));
  };
  if (!any) return answer(std::vector<CommitStatus>());
  cache_->commit(lease_.id(), std::move(blocks), std::move(answer), {.hint = header_.hint});
}

}  // namespace cairn::routes
