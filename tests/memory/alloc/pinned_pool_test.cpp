#include "memory/alloc/pinned_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "memory/host/host_runtime.hpp"
#include "tests/fakes/faulty_runtime.hpp"
#include "tests/memory/alloc/sizes.hpp"

namespace cairn {
namespace {

using fakes::Fault;
using fakes::FaultyRuntime;

class PinnedPoolTest : public testing::Test {
 protected:
  // An asynchronous acquire and its result.
  struct Asked {
    std::optional<Result<PinnedPool::Slot>> answer;
    bool has_slot() const { return answer && answer->has_value(); }
  };
  std::shared_ptr<Asked> ask(PinnedPool& pool, std::uint64_t size_bytes) {
    auto asked = std::make_shared<Asked>();
    pool.acquire(size_bytes, [asked](Result<PinnedPool::Slot> slot) {
      asked->answer.emplace(std::move(slot));
    });
    return asked;
  }

  FaultyRuntime runtime_{make_host_runtime({}).value()};
  PinnedPool pool_{runtime_, {.limit_bytes = 4 * kMiB}};
};

TEST_F(PinnedPoolTest, LendsPinnedMemoryOfAtLeastTheSize) {
  const auto slot = pool_.acquire(3 * kMiB).value();
  EXPECT_EQ(slot.view().kind(), StorageKind::pinned);
  EXPECT_GE(slot.view().size_bytes(), 3 * kMiB);
  EXPECT_GE(pool_.acquire(1).value().view().size_bytes(), kMiB);
}

TEST_F(PinnedPoolTest, KeepsASlotForTheNextUser) {
  std::byte* const first = pool_.acquire(kMiB).value().data();
  EXPECT_EQ(pool_.acquire(kMiB).value().data(), first);
  const AllocatorStatistics now = pool_.statistics();
  EXPECT_EQ(now.cache_misses, 1u);
  EXPECT_EQ(now.cache_hits, 1u);
  EXPECT_EQ(now.cached_bytes, kMiB);
  EXPECT_EQ(now.largest_free_bytes, kMiB);
}

TEST_F(PinnedPoolTest, LendsTheSmallestKeptSlotThatFits) {
  {
    const auto large = pool_.acquire(3 * kMiB).value();
    const auto small = pool_.acquire(kMiB).value();
  }
  const auto slot = pool_.acquire(kMiB).value();
  EXPECT_EQ(slot.view().size_bytes(), kMiB);
}

TEST_F(PinnedPoolTest, ServesWaitersInOrderWhenSlotsComeBack) {
  auto first = ask(pool_, 4 * kMiB);
  auto second = ask(pool_, 3 * kMiB);
  auto third = ask(pool_, kMiB);
  EXPECT_TRUE(first->has_slot());
  EXPECT_FALSE(second->has_slot());
  EXPECT_FALSE(third->has_slot());
  first->answer.reset();
  EXPECT_TRUE(second->has_slot());  // got the slot of 4 MiB
  EXPECT_FALSE(third->has_slot());
  second->answer.reset();
  EXPECT_TRUE(third->has_slot());
}

TEST_F(PinnedPoolTest, SmallRequestsDoNotOvertakeALargeOne) {
  auto small = ask(pool_, kMiB);
  auto large = ask(pool_, 4 * kMiB);
  auto late = ask(pool_, kMiB);
  EXPECT_FALSE(late->has_slot());
  small->answer.reset();
  EXPECT_TRUE(large->has_slot());
}

TEST_F(PinnedPoolTest, LendsBeyondTheLimitToASingleUserAndFreesIt) {
  auto small = ask(pool_, kMiB);
  auto huge = ask(pool_, 9 * kMiB);
  EXPECT_FALSE(huge->has_slot());
  small->answer.reset();
  EXPECT_TRUE(huge->has_slot());
  huge->answer.reset();
  EXPECT_EQ(pool_.statistics().reserved_bytes, 0u);
}

TEST_F(PinnedPoolTest, LendsMinLentSlotsBeyondTheLimit) {
  PinnedPool pool(runtime_, {.limit_bytes = kMiB, .min_lent = 2});
  auto first = ask(pool, 3 * kMiB);
  auto second = ask(pool, 3 * kMiB);
  auto third = ask(pool, 3 * kMiB);
  EXPECT_TRUE(second->has_slot());
  EXPECT_FALSE(third->has_slot());
  first->answer.reset();
  EXPECT_TRUE(third->has_slot());
  second->answer.reset();
  third->answer.reset();
  EXPECT_EQ(pool.statistics().reserved_bytes, 0u);
}

TEST_F(PinnedPoolTest, FreesSlotsThatAreTooSmall) {
  {
    const auto first = pool_.acquire(2 * kMiB).value();
    const auto second = pool_.acquire(2 * kMiB).value();
  }
  const auto large = pool_.acquire(3 * kMiB).value();
  EXPECT_EQ(pool_.statistics().reserved_bytes, 3 * kMiB);
}

TEST_F(PinnedPoolTest, RefusesWaitersBeyondMaxWaiting) {
  PinnedPool pool(runtime_, {.limit_bytes = kMiB, .max_waiting = 1});
  auto first = ask(pool, kMiB);
  auto second = ask(pool, kMiB);
  auto third = ask(pool, kMiB);
  ASSERT_TRUE(third->answer.has_value());
  EXPECT_EQ(third->answer->error().code, ErrorCode::queue_full);
  first->answer.reset();
  EXPECT_TRUE(second->has_slot());
}

TEST_F(PinnedPoolTest, ReturnsTheRuntimesErrorAndServesTheNext) {
  auto first = ask(pool_, 4 * kMiB);
  auto second = ask(pool_, 5 * kMiB);
  auto third = ask(pool_, kMiB);
  runtime_.fail_nth(Fault::allocate, 1);
  first->answer.reset();
  ASSERT_TRUE(second->answer.has_value());
  EXPECT_EQ(second->answer->error().code, ErrorCode::device_error);
  EXPECT_TRUE(third->has_slot());
}

// Calls `meanwhile` once during an allocation.
class SlowRuntime final : public FaultyRuntime {
 public:
  using FaultyRuntime::FaultyRuntime;
  Result<Region> allocate_pinned(std::uint64_t size_bytes, PinnedOptions options) override {
    if (auto now = std::exchange(meanwhile, nullptr)) now();
    return FaultyRuntime::allocate_pinned(size_bytes, options);
  }
  std::function<void()> meanwhile;
};

// A transfer scheduler was destroyed in the callback of its last transfer, while the disk's thread
// was still looking for the next waiter in the pool.
TEST_F(PinnedPoolTest, MayBeDestroyedInTheLastCallback) {
  SlowRuntime runtime(make_host_runtime({}).value());
  auto pool = std::make_unique<PinnedPool>(runtime, PinnedPool::Options{.limit_bytes = 4 * kMiB});
  bool another_had_it = false;
  runtime.meanwhile = [&] {
    pool->acquire(4 * kMiB, [&](Result<PinnedPool::Slot> slot) { another_had_it = !!slot; });
  };
  pool->acquire(4 * kMiB, [&](Result<PinnedPool::Slot> slot) {
    ASSERT_TRUE(slot);
    EXPECT_FALSE(another_had_it);
    { const PinnedPool::Slot goes = *std::move(slot); }
    EXPECT_TRUE(another_had_it);
    pool.reset();
  });
  EXPECT_EQ(pool, nullptr);
}

TEST_F(PinnedPoolTest, LendsSystemMemoryAfterADeviceIsLost) {
  runtime_.lose("device 0 is lost");
  runtime_.fail_nth(Fault::allocate, 1);
  const auto slot = pool_.acquire(kMiB).value();
  EXPECT_EQ(slot.view().kind(), StorageKind::system);
  EXPECT_GE(slot.view().size_bytes(), kMiB);
}

TEST_F(PinnedPoolTest, SurvivesAFailureOfAnySingleAllocation) {
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE("allocation " + std::to_string(n));
    FaultyRuntime runtime(make_host_runtime({}).value());
    runtime.fail_nth(Fault::allocate, n);
    PinnedPool pool(runtime, {.limit_bytes = 4 * kMiB});
    std::uint64_t errors = 0;
    for (const std::uint64_t size_bytes : {kMiB, 2 * kMiB, 4 * kMiB, 6 * kMiB, kMiB}) {
      auto slot = pool.acquire(size_bytes);
      if (!slot) ++errors;
      const AllocatorStatistics now = pool.statistics();
      EXPECT_EQ(now.reserved_bytes, now.allocated_bytes + now.cached_bytes);
    }
    EXPECT_EQ(errors, runtime.failed());
    EXPECT_EQ(pool.statistics().allocated_bytes, 0u);
    if (runtime.failed() == 0) break;
    EXPECT_LT(n, 6u);
  }
}

TEST_F(PinnedPoolTest, ServesWaitingThreads) {
  std::atomic<std::uint32_t> served{0};
  std::atomic<std::uint64_t> lent_bytes{0};
  std::atomic<bool> beyond{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 200; ++i) {
        const std::uint64_t size_bytes = (1 + (t + i) % 4) * kMiB;
        const auto slot = pool_.acquire(size_bytes).value();
        if (lent_bytes.fetch_add(size_bytes) + size_bytes > 4 * kMiB) beyond = true;
        slot.data()[0] = std::byte{1};
        lent_bytes.fetch_sub(size_bytes);
        ++served;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served, 1200u);
  EXPECT_FALSE(beyond);
  EXPECT_EQ(pool_.statistics().allocated_bytes, 0u);
}

}  // namespace
}  // namespace cairn
