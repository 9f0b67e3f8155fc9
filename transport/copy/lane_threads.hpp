#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/executor.hpp"
#include "transport/copy/stream_copier.hpp"

namespace cairn {

// Workers for what the CPU does for a movement, and for waiting on streams, each with a lane of its
// own. Thread-safe.
class LaneThreads {
 public:
  // Borrows the runtime and the scratch, which may be null.
  LaneThreads(DeviceRuntime& runtime, DeviceScratch* scratch, std::unique_ptr<Executor> executor)
      : lanes_(make_lanes(runtime, scratch, executor->workers())), executor_(std::move(executor)) {}

  void post(UniqueFunction<void(Lane&)> work) {
    executor_->post(
        [this, work = std::move(work)](std::size_t worker) mutable { work(*lanes_[worker]); });
  }
  Executor& executor() const { return *executor_; }

 private:
  static std::vector<std::unique_ptr<Lane>> make_lanes(DeviceRuntime& runtime,
                                                       DeviceScratch* scratch,
                                                       std::uint32_t count) {
    std::vector<std::unique_ptr<Lane>> lanes;
    for (std::uint32_t i = 0; i < count; ++i) {
      lanes.push_back(std::make_unique<Lane>(runtime, scratch));
    }
    return lanes;
  }

  const std::vector<std::unique_ptr<Lane>> lanes_;
  const std::unique_ptr<Executor> executor_;  // last: its tasks use the lanes
};

}  // namespace cairn
