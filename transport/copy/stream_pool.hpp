#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "base/executor.hpp"
#include "base/mutex.hpp"
#include "transport/copy/stream_copier.hpp"

namespace cairn {

// Streams for movements under way, a set each. A set is a movement's own from its first copy to its
// last, whatever threads that happens on. Thread-safe.
class StreamPool {
 public:
  struct GiveBack {
    StreamPool* pool = nullptr;
    void operator()(StreamSet* streams) const noexcept { pool->give_back(streams); }
  };
  // Goes back when it ends. REQUIRES: its copies have ended, or its streams were dropped; the pool
  // and its executor stay until it has gone back.
  using Held = std::unique_ptr<StreamSet, GiveBack>;

  // As many sets as the executor has workers. Borrows all, the executor until its last task ended;
  // the scratch may be null.
  StreamPool(DeviceRuntime& runtime, DeviceMemory* scratch, Executor& executor);

  // Runs `work` on the executor with a set, as soon as one is free: in the order of the calls.
  // Throws std::bad_alloc, and then runs nothing.
  void post(UniqueFunction<void(Held)> work);

 private:
  void give_back(StreamSet* streams) noexcept;
  Held take_free() CAIRN_REQUIRES(mutex_);
  // The oldest that waits, where a set is free.
  void serve();

  std::vector<std::unique_ptr<StreamSet>> sets_;
  Executor& executor_;
  Mutex mutex_;
  std::vector<StreamSet*> free_ CAIRN_GUARDED_BY(mutex_);
  std::deque<UniqueFunction<void(Held)>> waiting_ CAIRN_GUARDED_BY(mutex_);
};

// Runs `then` once the event is ready: on the executor, or here after a wait where the strategy has
// the CPU wait. Throws std::bad_alloc, and then runs nothing.
void when_ready(Event& event, const CopyMode& mode, Executor& executor,
                UniqueFunction<void()> then);

// Of an event that is ready: how what came before it ended.
Result<> outcome_of(Event& event);

}  // namespace cairn
