#include "transport/copy/stream_pool.hpp"

#include <utility>

#include "base/assert.hpp"
#include "base/thread.hpp"

namespace cairn {
namespace {

// On the executor, or here where there is no memory for a task: what waits would wait for ever.
template <class Work>
void post_or_run(Executor& executor, const Work& work) noexcept {
  if (!guarded("transfer", [&] { executor.post(work); })) guarded("transfer", work);
}

}  // namespace

StreamPool::StreamPool(DeviceRuntime& runtime, DeviceMemory* scratch, Executor& executor)
    : executor_(executor) {
  for (std::uint32_t i = 0; i < executor.workers(); ++i) {
    sets_.push_back(std::make_unique<StreamSet>(runtime, scratch));
    free_.push_back(sets_.back().get());
  }
}

// Once the work has run, this may be gone: nobody else sees work that this call still has to post.
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
    free_.push_back(streams);  // it has room for all of them
    if (waiting_.empty()) return;
  }
  // Who gives them back has not ended yet, so this is still there.
  post_or_run(executor_, [this] { serve(); });
}

// The one that has rested longest: a server has all of its streams, and their threads, soon after
// its start, and none of them later.
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
    static_cast<void>(wait_for_event(event, mode));  // the event tells it once more
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
