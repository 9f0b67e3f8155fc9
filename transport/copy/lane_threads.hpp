#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/task_threads.hpp"
#include "transport/copy/stream_copier.hpp"

namespace cairn {

// Threads for what the CPU does for a movement, and for waiting on streams, each with a lane of its
// own. Thread-safe.
class LaneThreads {
 public:
  // Borrows both; `scratch` may be null. Throws std::system_error where there is no thread.
  LaneThreads(DeviceRuntime& runtime, DeviceScratch* scratch, std::uint32_t threads)
      : lanes_(make_lanes(runtime, scratch, threads)),
        threads_({.name = "transfer", .threads = threads}) {}

  void post(UniqueFunction<void(Lane&)> work) {
    threads_.post(
        [this, work = std::move(work)](std::size_t thread) mutable { work(*lanes_[thread]); });
  }

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
  TaskThreads threads_;  // last: its tasks use the lanes
};

}  // namespace cairn
