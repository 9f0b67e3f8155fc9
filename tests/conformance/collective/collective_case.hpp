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

// NCCL on this machine's GPUs, and what its communicators borrow.
struct NcclStand {
  // unavailable where there is no GPU, or no NCCL.
  static Result<std::unique_ptr<NcclStand>> make();

  std::unique_ptr<DeviceRuntime> runtime;
  std::optional<DeviceMemory> memory;
  std::unique_ptr<Collectives> collectives;
};

// A kind of collectives under test, its ranks all in this process.
struct CollectiveCase {
  std::string name;
  // unavailable where this machine has none. The stand is made where it is needed, and outlives
  // the ranks.
  Result<Ranks> (*make)(std::unique_ptr<NcclStand>& stand, std::uint32_t world_size,
                        std::chrono::milliseconds step_timeout);
};
void PrintTo(const CollectiveCase& tested, std::ostream* out);
std::vector<CollectiveCase> collective_cases();

// Runs `part` for every rank at once, each on a thread of its own, and answers what each answered.
std::vector<Result<>> on_each(Ranks& ranks, const std::function<Result<>(Communicator&)>& part);

// Joins all ranks of a new group, each on a thread of its own.
Result<Ranks> join_all(Collectives& collectives, std::uint32_t world_size,
                       std::chrono::milliseconds step_timeout);

// Skips where the kind is not available on this machine, or not with so many ranks, unless
// CAIRN_REQUIRE_GPU=1 and one rank is asked for.
class CollectiveTest : public testing::TestWithParam<CollectiveCase> {
 protected:
  // Long enough for a busy machine: only what is to fail waits so long.
  static constexpr std::chrono::milliseconds kPatience{60'000};
  // Of calls that are to fail by it.
  static constexpr std::chrono::milliseconds kSoon{150};

  // False where the test is skipped or has failed.
  [[nodiscard]] bool make(std::uint32_t world_size, std::chrono::milliseconds step = kPatience);
  void expect_all_done(const std::vector<Result<>>& answers);

  std::unique_ptr<NcclStand> stand_;
  Ranks ranks_;
};

}  // namespace cairn::conformance
