#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "base/executor.hpp"
#include "base/mutex.hpp"
#include "transport/copy/stream_copier.hpp"

namespace cairn {

// Stream sets, one per transfer in progress. A transfer owns its set from its first copy to its
// last, whatever threads it runs on. Thread-safe.
class StreamPool {
 public:
  struct GiveBack {
    StreamPool* pool = nullptr;
    void operator()(StreamSet* streams) const noexcept { pool->give_back(streams); }
  };
  // Returns the set to the pool when destroyed. REQUIRES: its copies have ended or its streams were
  // dropped; the pool and its executor still exist.
  using Held = std::unique_ptr<StreamSet, GiveBack>;

  // One set per executor worker. Borrows all three; the executor must stay until its last task has
  // ended.
  StreamPool(DeviceRuntime& runtime, DeviceMemory& memory, Executor& executor);

  // Runs `work` on the executor as soon as a set is free, in the order of calls. Throws
  // std::bad_alloc, and then runs nothing.
  void post(UniqueFunction<void(Held)> work);

 private:
  void give_back(StreamSet* streams) noexcept;
  Held take_free() CAIRN_REQUIRES(mutex_);
  // Runs the oldest waiting work if a set is free.
  void serve();

  std::vector<std::unique_ptr<StreamSet>> sets_;
  Executor& executor_;
  Mutex mutex_;
  std::vector<StreamSet*> free_ CAIRN_GUARDED_BY(mutex_);
  std::deque<UniqueFunction<void(Held)>> waiting_ CAIRN_GUARDED_BY(mutex_);
};

// Runs `then` on the executor once the event is ready. With a blocking strategy, waits and runs
// `then` here. Throws std::bad_alloc, and then runs nothing.
void when_ready(Event& event, const CopyMode& mode, Executor& executor,
                UniqueFunction<void()> then);

// Returns the outcome of the work before a ready event.
Result<> outcome_of(Event& event);

}  // namespace cairn
