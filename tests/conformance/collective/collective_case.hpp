#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/collective/communicator.hpp"
#include "transport/copy/device_memory.hpp"

namespace cairn::conformance {

using Ranks = std::vector<std::unique_ptr<Communicator>>;

// NCCL on this machine's GPUs, and the objects that its communicators use.
struct NcclStand {
  // unavailable if there is no GPU or no NCCL.
  static Result<std::unique_ptr<NcclStand>> make();

  std::unique_ptr<DeviceRuntime> runtime;
  std::optional<DeviceMemory> memory;
  std::unique_ptr<Collectives> collectives;
};

// A kind of collectives under test. All its ranks are in this process.
struct CollectiveCase {
  std::string name;
  // unavailable if this machine has none. Makes the stand if needed; it outlives the ranks.
  Result<Ranks> (*make)(std::unique_ptr<NcclStand>& stand, std::uint32_t world_size,
                        std::chrono::milliseconds step_timeout);
};
void PrintTo(const CollectiveCase& tested, std::ostream* out);
std::vector<CollectiveCase> collective_cases();

// Runs `part` for every rank at once, each on its own thread, and returns the results by rank.
std::vector<Result<>> on_each(Ranks& ranks, const std::function<Result<>(Communicator&)>& part);

// Joins all ranks of a new group, each on its own thread.
Result<Ranks> join_all(Collectives& collectives, std::uint32_t world_size,
                       std::chrono::milliseconds step_timeout);

// Skips if the kind is not available on this machine, or not with that many ranks. Fails instead
// with CAIRN_REQUIRE_GPU=1 and one rank.
class CollectiveTest : public testing::TestWithParam<CollectiveCase> {
 protected:
  // Long enough for a busy machine. No successful call takes that long.
  static constexpr std::chrono::milliseconds kStepTimeout{60'000};
  // For calls that must time out.
  static constexpr std::chrono::milliseconds kSoon{150};

  // Returns false if the test is skipped or has failed.
  [[nodiscard]] bool make(std::uint32_t world_size, std::chrono::milliseconds step = kStepTimeout);
  void expect_all_done(const std::vector<Result<>>& answers);

  std::unique_ptr<NcclStand> stand_;
  Ranks ranks_;
};

}  // namespace cairn::conformance
