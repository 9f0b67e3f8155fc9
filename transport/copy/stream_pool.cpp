#include "transport/copy/stream_pool.hpp"

#include <utility>

#include "base/assert.hpp"
#include "base/thread.hpp"

namespace cairn {
namespace {

// Runs `work` on the executor. If there is no memory for a task it runs here, or waiters would
// block forever.
template <class Work>
void post_or_run(Executor& executor, const Work& work) noexcept {
  if (!guarded("transfer", [&] { executor.post(work); })) guarded("transfer", work);
}

}  // namespace

StreamPool::StreamPool(DeviceRuntime& runtime, DeviceMemory& memory, Executor& executor)
    : executor_(executor) {
  for (std::uint32_t i = 0; i < executor.workers(); ++i) {
    sets_.push_back(std::make_unique<StreamSet>(runtime, memory));
    free_.push_back(sets_.back().get());
  }
}

// `this` may be destroyed once the work has run. So a task that this call posts must not be visible
// to others.
void StreamPool::post(UniqueFunction<void(Held)> work) {
  Held streams(nullptr, GiveBack{this});
  {
    MutexLock lock(mutex_);
    if (free_.empty() || !waiting_.empty()) return waiting_.push_back(std::move(work));
    streams = take_free();
  }
  executor_.post([streams = std::move(streams), work = std::move(work)]() mutable {
    work(std::move(streams));
  });
}

void StreamPool::give_back(StreamSet* streams) noexcept {
  {
    MutexLock lock(mutex_);
    free_.push_back(streams);  // has capacity for all sets
    if (waiting_.empty()) return;
  }
  // The set being returned belongs to work that has not ended, so `this` still exists.
  post_or_run(executor_, [this] { serve(); });
}

// Takes the set unused for longest: all streams, and their threads, are created soon after the
// start, none later.
StreamPool::Held StreamPool::take_free() {
  StreamSet* const streams = free_.front();
  free_.erase(free_.begin());
  return {streams, GiveBack{this}};
}

void StreamPool::serve() {
  Held streams(nullptr, GiveBack{this});
  UniqueFunction<void(Held)> work;
  {
    MutexLock lock(mutex_);
    if (free_.empty() || waiting_.empty()) return;
    streams = take_free();
    work = std::move(waiting_.front());
    waiting_.pop_front();
  }
  work(std::move(streams));
}

void when_ready(Event& event, const CopyMode& mode, Executor& executor,
                UniqueFunction<void()> then) {
  if (mode.strategy == CopyStrategy::polling) {
    static_cast<void>(wait_for_event(event, mode));  // outcome_of() returns the error later
    return then();
  }
  const auto shared = std::make_shared<UniqueFunction<void()>>(std::move(then));
  event.when_reached([&executor, shared] { post_or_run(executor, [shared] { (*shared)(); }); });
}

Result<> outcome_of(Event& event) {
  auto ready = event.ready();
  if (!ready) return std::move(ready).error();
  CAIRN_ASSERT(*ready, "bytes that are still moving would be used");
  return {};
}

}  // namespace cairn
