#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/executor.hpp"
#include "transport/copy/stream_copier.hpp"

namespace cairn {

// Workers for what the CPU does for a movement, and for waiting on streams, each with streams of
// its own. Thread-safe.
class StreamThreads {
 public:
  // Borrows the runtime and the scratch, which may be null.
  StreamThreads(DeviceRuntime& runtime, DeviceMemory* scratch, std::unique_ptr<Executor> executor)
      : sets_(make_sets(runtime, scratch, executor->workers())), executor_(std::move(executor)) {}

  void post(UniqueFunction<void(StreamSet&)> work) {
    executor_->post(
        [this, work = std::move(work)](std::size_t worker) mutable { work(*sets_[worker]); });
  }
  Executor& executor() const { return *executor_; }

 private:
  static std::vector<std::unique_ptr<StreamSet>> make_sets(DeviceRuntime& runtime,
                                                           DeviceMemory* scratch,
                                                           std::uint32_t count) {
    std::vector<std::unique_ptr<StreamSet>> sets;
    for (std::uint32_t i = 0; i < count; ++i) {
      sets.push_back(std::make_unique<StreamSet>(runtime, scratch));
    }
    return sets;
  }

  const std::vector<std::unique_ptr<StreamSet>> sets_;
  const std::unique_ptr<Executor> executor_;  // last: its tasks use the sets
};

}  // namespace cairn
