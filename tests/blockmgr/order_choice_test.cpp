#include "blockmgr/eviction/order_choice.hpp"

#include <gtest/gtest.h>

#include <random>

namespace cairn {
namespace {

class OrderChoiceTest : public testing::Test {
 protected:
  // Adds requests of 10 blocks. On average the order finds `more` blocks more than LRU.
  void add(double more, int requests) {
    for (int i = 0; i < requests; ++i) {
      const double chance = i % 2 == 0 ? 1 : -1;
      choice_.add({.more_hits = more + chance,
                   .chosen_more_hits = choice_.follows_lru() ? 0 : more + chance,
                   .asked_blocks = 10});
    }
  }
  static constexpr std::uint32_t kModelBlocks = 1000;
  static constexpr int kWindow =
      static_cast<int>(OrderChoice::kWindowCapacities * kModelBlocks / 10);
  OrderChoice choice_{kModelBlocks};
};

TEST_F(OrderChoiceTest, FollowsTheBetterRecentOrder) {
  EXPECT_FALSE(choice_.follows_lru());
  add(-2 * 10 * OrderChoice::kWorse, 3 * kWindow);
  EXPECT_TRUE(choice_.follows_lru());
  add(4 * 10 * OrderChoice::kBetter, 4 * kWindow);
  EXPECT_FALSE(choice_.follows_lru());
  EXPECT_EQ(choice_.changes(), 2U);
}

// With a workload that alternates, the cache would switch too late each time.
TEST_F(OrderChoiceTest, StaysWithLruUntilLossesAreRegained) {
  add(-4 * 10 * OrderChoice::kWorse, 3 * kWindow);
  ASSERT_TRUE(choice_.follows_lru());
  for (int turn = 0; turn < 5; ++turn) {
    add(2 * 10 * OrderChoice::kWorse, 2 * kWindow);
    add(-4 * 10 * OrderChoice::kWorse, 2 * kWindow);
  }
  EXPECT_EQ(choice_.changes(), 1U);
}

// Each switch came too late: the order finds more than LRU overall, but the choice finds less.
TEST_F(OrderChoiceTest, FollowsLruWhenSwitchingLoses) {
  const auto add_late = [this](double chosen_more, int requests) {
    for (int i = 0; i < requests; ++i) {
      choice_.add({.more_hits = 4 * 10 * OrderChoice::kBetter,
                   .chosen_more_hits = chosen_more,
                   .asked_blocks = 10});
    }
  };
  const auto long_window = static_cast<int>(OrderChoice::kLongWindows * kWindow);
  add_late(0, long_window);
  add_late(-2 * 10 * OrderChoice::kLost, long_window);
  EXPECT_TRUE(choice_.follows_lru());
  // The loss counts until it leaves the long window.
  add_late(0, kWindow);
  EXPECT_TRUE(choice_.follows_lru());
  add_late(0, 3 * long_window);
  EXPECT_FALSE(choice_.follows_lru());
}

// In a small cache a window has few long prompts, so a single hit or miss is chance.
TEST_F(OrderChoiceTest, IgnoresAFewLongPrompts) {
  std::mt19937 random(3);
  for (int i = 0; i < 20 * kWindow / 10; ++i) {
    const double chance = random() % 10 == 0 ? 100.0 * (random() % 2 == 0 ? 1 : -1) : 0;
    choice_.add({.more_hits = chance, .asked_blocks = 100});
    ASSERT_FALSE(choice_.follows_lru()) << "request " << i;
  }
}

TEST_F(OrderChoiceTest, IgnoresNoise) {
  add(-0.9 * 10 * OrderChoice::kWorse, 5 * kWindow);
  EXPECT_EQ(choice_.changes(), 0U);
  add(-2 * 10 * OrderChoice::kWorse, 3 * kWindow);
  add(0.9 * 10 * OrderChoice::kBetter, 5 * kWindow);
  EXPECT_EQ(choice_.changes(), 1U);
}

TEST_F(OrderChoiceTest, IgnoresTooFewRequests) {
  add(-2 * 10 * OrderChoice::kWorse, kWindow / 4);
  EXPECT_FALSE(choice_.follows_lru());
}

}  // namespace
}  // namespace cairn
