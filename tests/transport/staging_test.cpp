#include "transport/staging.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "tests/fakes/faulty_runtime.hpp"

namespace cairn {
namespace {

using fakes::Fault;
using fakes::FaultyRuntime;

constexpr std::uint64_t kSlot = StagingPool::kLeastSlotBytes;

class Staging : public testing::Test {
 protected:
  std::uint64_t allocations() const { return runtime_.count(Fault::allocate); }
  FaultyRuntime runtime_{std::move(*make_host_runtime({}))};
};

TEST_F(Staging, TakesNoMemoryBeforeItIsNeeded) {
  StagingPool pool(runtime_, 4 * kSlot);
  EXPECT_EQ(allocations(), 0u);
}

TEST_F(Staging, UsesASlotAgain) {
  StagingPool pool(runtime_, 4 * kSlot);
  for (int i = 0; i < 3; ++i) {
    const auto slot = pool.acquire(1000);
    ASSERT_TRUE(slot);
    EXPECT_GE(slot->view().size_bytes(), 1000u);
    EXPECT_EQ(slot->view().kind(), StorageKind::pinned);
  }
  EXPECT_EQ(allocations(), 1u);
}

TEST_F(Staging, ReplacesSlotsThatAreTooSmall) {
  StagingPool pool(runtime_, 4 * kSlot);
  {
    const auto a = pool.acquire(kSlot);
    const auto b = pool.acquire(kSlot);
    const auto c = pool.acquire(kSlot);
  }
  const auto large = pool.acquire(3 * kSlot);
  ASSERT_TRUE(large);
  EXPECT_GE(large->view().size_bytes(), 3 * kSlot);
}

TEST_F(Staging, GivesASlotAboveTheLimitAlone) {
  StagingPool pool(runtime_, 2 * kSlot);
  {
    const auto large = pool.acquire(10 * kSlot);
    ASSERT_TRUE(large);
    EXPECT_GE(large->view().size_bytes(), 10 * kSlot);
  }
  const auto small = pool.acquire(kSlot);
  EXPECT_TRUE(small);
}

TEST_F(Staging, TellsTheRuntimesErrorAndServesTheNext) {
  StagingPool pool(runtime_, 2 * kSlot);
  runtime_.fail_nth(Fault::allocate, 1);
  EXPECT_FALSE(pool.acquire(kSlot));
  EXPECT_TRUE(pool.acquire(kSlot));
}

TEST_F(Staging, HoldsItsLimitAgainstManyThreadsAndServesAllOfThem) {
  constexpr std::uint64_t kLimit = 3 * kSlot;
  StagingPool pool(runtime_, kLimit);
  std::atomic<std::uint64_t> held{0};
  std::atomic<std::uint64_t> most{0};
  const auto use = [&](std::uint64_t slots) {
    for (int i = 0; i < 200; ++i) {
      const auto slot = pool.acquire(slots * kSlot);
      ASSERT_TRUE(slot);
      const std::uint64_t now = held += slots;
      std::uint64_t before = most;
      while (before < now && !most.compare_exchange_weak(before, now)) {
      }
      slot->view().data()[0] = std::byte{1};
      held -= slots;
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t slots : {1u, 1u, 2u, 3u, 1u}) threads.emplace_back(use, slots);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most * kSlot, kLimit);
}

}  // namespace
}  // namespace cairn
