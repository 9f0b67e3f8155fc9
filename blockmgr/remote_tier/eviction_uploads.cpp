#include "blockmgr/remote_tier/eviction_uploads.hpp"

#include <optional>
#include <utility>

#include "blockmgr/remote_tier/remote_upload.hpp"

namespace cairn {

EvictionUploads::EvictionUploads(std::shared_ptr<RemoteContext> context, Options options)
    : context_(std::move(context)), options_(std::move(options)) {}

void EvictionUploads::take(std::vector<LeavingBlock> blocks) {
  {
    MutexLock lock(mutex_);
    if (ended_) return;  // the caller destroys `blocks`, and so the readers, without the lock
    for (LeavingBlock& block : blocks) {
      waiting_.push_back({.block = std::move(block), .since = options_.clock.now()});
    }
  }
  store_next();
}

void EvictionUploads::store_next() {
  while (true) {
    std::optional<Waiting> next;
    {
      MutexLock lock(mutex_);
      if (waiting_.empty() || storing_ == context_->max_storing) return;
      next.emplace(std::move(waiting_.front()));
      waiting_.pop_front();
      ++storing_;
    }
    const BlockKey key = next->block.key;
    start_upload({.context = context_,
                  .key = key,
                  .parent = next->block.parent,
                  .reader = std::make_shared<BlockReader>(std::move(next->block.reader)),
                  .may_be_there = true,  // it may have been fetched from the store
                  .ended = [self = shared_from_this(), key](const Result<>& result) {
                    self->store_ended(key, result);
                  }});
  }
}

void EvictionUploads::store_ended(const BlockKey& key, const Result<>& result) {
  {
    MutexLock lock(mutex_);
    --storing_;
  }
  options_.ended(key, result);
  store_next();
}

void EvictionUploads::look() {
  std::vector<Waiting> late;
  {
    MutexLock lock(mutex_);
    const TimePoint before = options_.clock.now() - options_.wait_at_most;
    while (!waiting_.empty() && waiting_.front().since < before) {
      late.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }
  for (const Waiting& each : late) {
    options_.ended(each.block.key,
                   Error{ErrorCode::deadline_exceeded, "it waited too long to be stored"});
  }
}

void EvictionUploads::end() {
  std::deque<Waiting> rest;
  MutexLock lock(mutex_);
  ended_ = true;
  rest.swap(waiting_);
}

std::uint64_t EvictionUploads::waiting() const {
  MutexLock lock(mutex_);
  return waiting_.size() + storing_;
}

}  // namespace cairn
