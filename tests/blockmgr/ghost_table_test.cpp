#include "blockmgr/eviction/ghost_table.hpp"

#include <gtest/gtest.h>

#include "tests/blockmgr/eviction_traces.hpp"

namespace cairn {
namespace {

TEST(GhostTable, RecallsAHistoryOnce) {
  GhostTable ghosts(100);
  EXPECT_FALSE(ghosts.recall(hashed(1)).is_known());
  ghosts.remember(hashed(1), {.request = 7, .uses = 2});
  EXPECT_EQ(ghosts.size(), 1U);
  const BlockHistory history = ghosts.recall(hashed(1));
  EXPECT_EQ(history.request, 7U);
  EXPECT_EQ(history.uses, 2U);
  EXPECT_FALSE(ghosts.recall(hashed(1)).is_known());
  EXPECT_EQ(ghosts.size(), 0U);
}

TEST(GhostTable, RecallsRecentHistories) {
  for (const std::uint32_t blocks : {1U, 15U, 16U, 17U, 40U}) {
    GhostTable ghosts(1000);
    for (std::uint32_t i = 0; i < blocks; ++i) {
      ghosts.remember(hashed(i), {.request = i, .uses = 1});
    }
    EXPECT_EQ(ghosts.size(), blocks);
    for (std::uint32_t i = blocks; i-- > 0;) {
      EXPECT_EQ(ghosts.recall(hashed(i)).request, i) << "of " << blocks;
    }
    EXPECT_EQ(ghosts.size(), 0U);
  }
}

TEST(GhostTable, ForgetsTheOldestFirstAndNeverGrows) {
  GhostTable ghosts(1000);
  const std::uint64_t bytes = ghosts.memory_bytes();
  for (std::uint32_t i = 0; i < 10'000; ++i) {
    ghosts.remember(hashed(i), {.request = i, .uses = 1});
  }
  EXPECT_EQ(ghosts.memory_bytes(), bytes);
  EXPECT_LE(ghosts.size(), 1000U);
  std::uint32_t of_last = 0;
  for (std::uint32_t i = 9'500; i < 10'000; ++i) of_last += ghosts.recall(hashed(i)).is_known();
  EXPECT_GT(of_last, 450U);  // half the capacity: few sets of five get more than five entries
  std::uint32_t of_first = 0;
  for (std::uint32_t i = 0; i < 5'000; ++i) of_first += ghosts.recall(hashed(i)).is_known();
  EXPECT_LT(of_first, 50U);
}

}  // namespace
}  // namespace cairn
