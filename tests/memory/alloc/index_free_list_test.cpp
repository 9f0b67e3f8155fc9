#include "memory/alloc/index_free_list.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

namespace cairn {
namespace {

TEST(IndexFreeList, PopsEachIndexOnce) {
  IndexFreeList list(3);
  EXPECT_EQ(list.pop(), 0u);
  EXPECT_EQ(list.pop(), 1u);
  EXPECT_EQ(list.pop(), 2u);
  EXPECT_EQ(list.pop(), std::nullopt);
}

TEST(IndexFreeList, PopsTheLatestFirst) {
  IndexFreeList list(3);
  while (list.pop()) {
  }
  list.push(0);
  list.push(2);
  EXPECT_EQ(list.pop(), 2u);
  EXPECT_EQ(list.pop(), 0u);
  EXPECT_EQ(list.pop(), std::nullopt);
}

TEST(IndexFreeList, MayBeEmpty) { EXPECT_EQ(IndexFreeList(0).pop(), std::nullopt); }

TEST(IndexFreeListDeathTest, RefusesToPushAFreeIndex) {
  IndexFreeList list(2);
  const auto index = list.pop();
  list.push(*index);
  EXPECT_DEATH(list.push(*index), "freed twice");
  EXPECT_DEATH(list.push(1), "freed twice");
  EXPECT_DEATH(list.push(2), "another list");
}

// Few indices and many threads; each pushes the first of two indices before the second. A thread
// that is overtaken between its read of the head and its exchange often finds the same index on
// top, but another one below. Without the tag, this fails within a few thread switches.
TEST(IndexFreeList, NeverGivesAnIndexToTwoThreads) {
  constexpr std::uint32_t kThreads = 6;
  constexpr std::uint32_t kCapacity = 4;
  constexpr std::uint32_t kRounds = 10 * (CAIRN_CHURN_OPERATIONS / kThreads);
  IndexFreeList list(kCapacity);
  // Not atomic on purpose: a second owner is a data race, which tsan reports, or a wrong count.
  std::vector<std::uint64_t> owned(kCapacity, 0);
  std::vector<std::atomic<std::uint32_t>> owners(kCapacity);
  std::atomic<std::uint64_t> popped{0};
  std::atomic<bool> shared{false};
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      std::uint64_t mine = 0;
      const auto pop = [&] {
        const auto index = list.pop();
        if (!index) return index;
        if (owners[*index].fetch_add(1, std::memory_order_relaxed) != 0) shared = true;
        ++owned[*index];
        ++mine;
        return index;
      };
      const auto push = [&](std::optional<std::uint32_t> index) {
        if (!index) return;
        owners[*index].fetch_sub(1, std::memory_order_relaxed);
        list.push(*index);
      };
      for (std::uint32_t round = 0; round < kRounds && !shared; ++round) {
        const auto first = pop();
        const auto second = pop();
        push(first);
        push(second);
      }
      popped += mine;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_FALSE(shared) << "an index had two owners";
  std::uint64_t counted = 0;
  for (const std::uint64_t count : owned) counted += count;
  EXPECT_EQ(counted, popped);
  for (std::uint32_t i = 0; i < kCapacity; ++i) EXPECT_TRUE(list.pop().has_value());
  EXPECT_EQ(list.pop(), std::nullopt);
}

}  // namespace
}  // namespace cairn
