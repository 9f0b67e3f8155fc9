#include "tests/conformance/collective/collective_case.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <ostream>
#include <string_view>
#include <thread>

#include "memory/cuda/cuda_runtime.hpp"
#include "transport/collective/local_communicator.hpp"

namespace cairn::conformance {
namespace {

Result<Ranks> in_process(std::unique_ptr<NcclStand>& /*stand*/, std::uint32_t world_size,
                         std::chrono::milliseconds step_timeout) {
  return make_local_group(world_size, step_timeout);
}

Result<Ranks> over_tcp(std::unique_ptr<NcclStand>& /*stand*/, std::uint32_t world_size,
                       std::chrono::milliseconds step_timeout) {
  const auto local = make_local_collectives("127.0.0.1");
  return join_all(*local, world_size, step_timeout);
}

Result<Ranks> over_nccl(std::unique_ptr<NcclStand>& stand, std::uint32_t world_size,
                        std::chrono::milliseconds step_timeout) {
  if (!stand) {
    auto made = NcclStand::make();
    if (!made) return std::move(made).error();
    stand = std::move(*made);
  }
  return join_all(*stand->collectives, world_size, step_timeout);
}

bool gpu_required() {
  const char* const value = std::getenv("CAIRN_REQUIRE_GPU");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

Result<std::unique_ptr<NcclStand>> NcclStand::make() {
  auto stand = std::make_unique<NcclStand>();
  auto runtime = make_cuda_runtime();
  if (!runtime) return std::move(runtime).error();
  stand->runtime = std::move(*runtime);
  stand->memory.emplace(*stand->runtime);
  auto nccl = make_nccl_collectives(*stand->runtime, *stand->memory);
  if (!nccl) return std::move(nccl).error();
  stand->collectives = std::move(*nccl);
  return stand;
}

void PrintTo(const CollectiveCase& tested, std::ostream* out) { *out << tested.name; }

std::vector<CollectiveCase> collective_cases() {
  return {{"local", in_process}, {"tcp", over_tcp}, {"nccl", over_nccl}};
}

std::vector<Result<>> on_each(Ranks& ranks, const std::function<Result<>(Communicator&)>& part) {
  std::vector<Result<>> answers(ranks.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i]) threads.emplace_back([&, i] { answers[i] = part(*ranks[i]); });
  }
  threads.clear();
  return answers;
}

Result<Ranks> join_all(Collectives& collectives, std::uint32_t world_size,
                       std::chrono::milliseconds step_timeout) {
  const JoinStop stop;
  auto invitation = collectives.invite(std::chrono::seconds(60), stop);
  if (!invitation) return std::move(invitation).error();
  const std::string unique_id = (*invitation)->unique_id();
  std::vector<std::optional<Result<std::unique_ptr<Communicator>>>> joined(world_size);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      JoinRequest request{.place = {.rank = rank, .world_size = world_size},
                          .device_id = static_cast<int>(rank),
                          .unique_id = unique_id};
      // If one rank fails to join, the others wait this long for it.
      request.join_timeout = std::max(step_timeout, std::chrono::milliseconds(5'000));
      request.step_timeout = step_timeout;
      if (rank == 0) request.invitation = std::move(*invitation);
      threads.emplace_back([&, rank, mine = std::move(request)]() mutable {
        joined[rank].emplace(collectives.join(std::move(mine), stop, [] {}));
      });
    }
  }
  Ranks ranks;
  for (auto& one : joined) {
    if (!*one) return std::move(*one).error();
    ranks.push_back(std::move(**one));
  }
  return ranks;
}

bool CollectiveTest::make(std::uint32_t world_size, std::chrono::milliseconds step) {
  auto made = GetParam().make(stand_, world_size, step);
  if (made) {
    ranks_ = std::move(*made);
    return true;
  }
  const bool too_few_devices = made.error().code == ErrorCode::out_of_range && world_size > 1;
  const bool none = made.error().code == ErrorCode::unavailable && !gpu_required();
  [&] {
    if (too_few_devices || none) GTEST_SKIP() << GetParam().name << ": " << made.error().detail;
    FAIL() << GetParam().name << ": " << made.error().detail;
  }();
  return false;
}

void CollectiveTest::expect_all_done(const std::vector<Result<>>& answers) {
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    EXPECT_TRUE(answers[rank].has_value())
        << "rank " << rank << ": " << answers[rank].error().detail;
  }
}

}  // namespace cairn::conformance
