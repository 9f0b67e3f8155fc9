#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/simulation/run.hpp"
#include "tests/simulation/shrink.hpp"

namespace cairn::sim {
namespace {

using testing::ElementsAre;

TEST(Shrink, KeepsOnlyTheNeededSteps) {
  Steps all(1'000);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  const auto needs_three = [](const Steps& steps) {
    const auto has = [&](std::uint32_t step) { return std::ranges::count(steps, step) > 0; };
    return has(17) && has(18) && has(900);
  };
  EXPECT_THAT(shrink(all, 1'000, needs_three), ElementsAre(17, 18, 900));
}

TEST(Shrink, StopsAfterItsTries) {
  std::uint32_t asked = 0;
  const Steps left = shrink({1, 2, 3, 4}, 3, [&](const Steps&) {
    ++asked;
    return false;
  });
  EXPECT_EQ(asked, 3u);
  EXPECT_THAT(left, ElementsAre(1, 2, 3, 4));
}

TEST(Simulation, SameSeedGivesTheSameRun) {
  const RunOptions options{.seed = 4};
  const RunOutcome once = run(options);
  const RunOutcome again = run(options);
  EXPECT_EQ(once.fingerprint, again.fingerprint);
  EXPECT_EQ(once.events, again.events);
  EXPECT_NE(run({.seed = 5}).fingerprint, once.fingerprint);
}

// A block was moved on disk so that its slab could hold blocks of another size. The index still
// named its old place when the power failed.
TEST(Simulation, APowerCutLosesNoBlockOfASlabThatChangedItsSize) {
  EXPECT_EQ(run({.seed = 9'001'295}).finding, "");
}

// Every test run uses the same seeds; `./run simulate` tries others.
class Seeds : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Seeds, FindNothing) {
  for (std::uint64_t i = 0; i < CAIRN_SIMULATED_RUNS; ++i) {
    const RunOptions options{.seed = GetParam() * 1'000'000 + i};
    std::cout << "seed " << options.seed << std::endl;
    const RunOutcome outcome = run(options);
    ASSERT_EQ(outcome.finding, "")
        << "./run simulate --seed " << options.seed << ", step " << outcome.step;
  }
}

INSTANTIATE_TEST_SUITE_P(Simulation, Seeds, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace cairn::sim
