#include "memory/alloc/slab_pool.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>
#include <vector>

#include "memory/alloc/allocation_scope.hpp"
#include "tests/memory/alloc/sizes.hpp"
#include "tests/memory/alloc/stepped_runtime.hpp"

namespace cairn {
namespace {

class SlabPoolTest : public testing::Test {
 protected:
  SlabPool::Buffer get(std::uint64_t size_bytes) { return pool_.allocate(size_bytes).value(); }

  SlabPool pool_{&Region::system, {.limit_bytes = 16 * kMiB}};
};

TEST_F(SlabPoolTest, HasFourSizeClassesPerDoubling) {
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> expected = {
      {1, 256},
      {256, 256},
      {257, 320},
      {320, 320},
      {321, 384},
      {512, 512},
      {513, 640},
      {1025, 1280},
      {2048, 2048},
      {2049, 2560},
      {3 * kMiB, 3 * kMiB},
      {3 * kMiB + 1, 7 * kMiB / 2},
      {4 * kMiB, 4 * kMiB}};
  for (const auto& [asked_bytes, class_bytes] : expected) {
    EXPECT_EQ(SlabPool::class_bytes(asked_bytes), class_bytes) << asked_bytes;
    EXPECT_EQ(get(asked_bytes).capacity_bytes(), class_bytes) << asked_bytes;
    pool_.trim();
  }
}

TEST_F(SlabPoolTest, WastesAtMostAFifthOfAnObject) {
  for (std::uint64_t size_bytes = 257; size_bytes < 4 * kMiB; size_bytes += size_bytes / 50 + 1) {
    const std::uint64_t class_bytes = SlabPool::class_bytes(size_bytes);
    ASSERT_GE(class_bytes, size_bytes);
    ASSERT_LE(class_bytes - size_bytes, class_bytes / 5) << size_bytes;
  }
}

TEST_F(SlabPoolTest, ServesFromASlabUntilItIsFull) {
  std::vector<SlabPool::Buffer> held;
  for (int i = 0; i < 8; ++i) held.push_back(get(64 * kKiB));
  EXPECT_EQ(pool_.statistics().cache_misses, 1u);
  EXPECT_EQ(pool_.statistics().reserved_bytes, 512 * kKiB);
  held.push_back(get(64 * kKiB));
  EXPECT_EQ(pool_.statistics().cache_misses, 2u);
  EXPECT_EQ(pool_.statistics().cache_hits, 7u);
  std::byte* const freed = held[3].data();
  held.erase(held.begin() + 3);
  EXPECT_EQ(get(64 * kKiB).data(), freed);
}

TEST_F(SlabPoolTest, RefusesZeroBytesAndMoreThanTheLargest) {
  EXPECT_EQ(pool_.allocate(0).error().code, ErrorCode::out_of_range);
  EXPECT_EQ(pool_.allocate(SlabPool::kMaxBytes + 1).error().code, ErrorCode::out_of_range);
}

TEST_F(SlabPoolTest, GivesAnObjectLargerThanASlabItsOwnSlab) {
  { const auto large = get(9 * kMiB); }
  EXPECT_EQ(pool_.statistics().reserved_bytes, 10 * kMiB);
  EXPECT_EQ(get(10 * kMiB).capacity_bytes(), 10 * kMiB);
  EXPECT_EQ(pool_.statistics().cache_misses, 1u);
  EXPECT_EQ(pool_.allocate(17 * kMiB).error().code, ErrorCode::no_capacity);
}

TEST_F(SlabPoolTest, TrimReturnsUnusedSlabs) {
  get(1000);
  const auto in_use = get(100'000);
  const std::uint64_t of_used = 8 * in_use.capacity_bytes();
  EXPECT_GT(pool_.statistics().reserved_bytes, of_used);
  pool_.trim();
  EXPECT_EQ(pool_.statistics().reserved_bytes, of_used);
  EXPECT_EQ(pool_.statistics().cached_bytes, of_used - in_use.capacity_bytes());
}

TEST_F(SlabPoolTest, FreesOtherClassesSlabsAtTheLimit) {
  get(4 * kMiB);  // a slab of 8 MiB, unused again
  get(2 * kMiB);  // another
  const auto needs_room = get(3 * kMiB);
  EXPECT_EQ(pool_.statistics().reserved_bytes, 8 * kMiB);
}

TEST_F(SlabPoolTest, ReportsNoCapacityAtTheLimit) {
  const auto first = get(4 * kMiB);
  const auto second = get(2 * kMiB);
  EXPECT_EQ(pool_.allocate(100).error().code, ErrorCode::no_capacity);
  EXPECT_TRUE(pool_.allocate(2 * kMiB).has_value());
}

TEST(SlabPool, ReturnsTheErrorOfItsSource) {
  SlabPool pool(
      [](std::uint64_t) -> Result<Region> {
        return Error{ErrorCode::device_error, ""};
      },
      {});
  EXPECT_EQ(pool.allocate(1).error().code, ErrorCode::device_error);
  EXPECT_EQ(pool.statistics().reserved_bytes, 0u);
}

TEST(SlabPool, NeverSharesAnObjectAndTheSumsHold) {
  constexpr std::uint64_t kSeed = 11;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  SlabPool pool(&Region::system, {.limit_bytes = 64 * kMiB});
  std::vector<SlabPool::Buffer> held;
  std::map<std::byte*, std::byte*> live;
  std::uint64_t capacity_bytes = 0;
  for (int i = 0; i < CAIRN_CHURN_OPERATIONS / 10; ++i) {
    if (held.empty() || random() % 100 < 55) {
      auto buffer = pool.allocate(1 + random() % (1ull << (1 + random() % 20)));
      if (!buffer) {
        ASSERT_EQ(buffer.error().code, ErrorCode::no_capacity);
        held.clear();
        live.clear();
        capacity_bytes = 0;
        continue;
      }
      const auto after = live.lower_bound(buffer->data() + buffer->size_bytes());
      if (after != live.begin()) {
        ASSERT_LE(std::prev(after)->second, buffer->data());
      }
      live.emplace(buffer->data(), buffer->data() + buffer->size_bytes());
      capacity_bytes += buffer->capacity_bytes();
      held.push_back(std::move(*buffer));
    } else {
      std::swap(held[random() % held.size()], held.back());
      live.erase(held.back().data());
      capacity_bytes -= held.back().capacity_bytes();
      held.pop_back();
    }
    if (random() % 1000 == 0) pool.trim();
    const AllocatorStatistics now = pool.statistics();
    ASSERT_EQ(now.allocated_bytes, capacity_bytes);
    ASSERT_EQ(now.reserved_bytes, now.allocated_bytes + now.cached_bytes);
    ASSERT_LE(now.reserved_bytes, 64 * kMiB);
  }
}

TEST(SlabPool, ServesManyThreads) {
  SlabPool pool(&Region::system, {});
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      for (int i = 0; i < 2000; ++i) {
        const auto buffer = pool.allocate(1 + random() % 10'000).value();
        buffer.data()[0] = std::byte{1};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.statistics().allocated_bytes, 0u);
  EXPECT_EQ(pool.statistics().frees, 8000u);
}

// Slabs of a device, whose streams may still use what was freed.
class DeviceSlabsTest : public testing::Test {
 protected:
  // Returns its address.
  std::byte* used_by(Stream& stream) {
    SlabPool::Buffer buffer = pool_.allocate(1000).value();
    stream.zero(nullptr, 0).value();
    buffer.record_stream(stream);
    return buffer.data();
  }
  void finish(Stream& stream) {
    fakes::SteppedRuntime::steps(stream).done = fakes::SteppedRuntime::steps(stream).issued;
  }

  fakes::SteppedRuntime runtime_{16 * kMiB};
  std::unique_ptr<Stream> stream_ = runtime_.create_stream(0).value();
  std::unique_ptr<Stream> other_ = runtime_.create_stream(0).value();
  SlabPool pool_{
      [this](std::uint64_t size_bytes) { return runtime_.allocate_device(size_bytes, {}); },
      {.limit_bytes = 16 * kMiB}};
};

TEST_F(DeviceSlabsTest, ReusesAnObjectWhenItsStreamIsDone) {
  std::byte* const first = used_by(*stream_);
  EXPECT_EQ(pool_.statistics().pending_bytes, 1024u);
  EXPECT_EQ(pool_.statistics().allocated_bytes, 0u);
  EXPECT_EQ(pool_.statistics().cached_bytes, pool_.statistics().reserved_bytes);
  EXPECT_NE(pool_.allocate(1000).value().data(), first);
  finish(*stream_);
  EXPECT_EQ(pool_.allocate(1000).value().data(), first);
  EXPECT_EQ(pool_.statistics().pending_bytes, 0u);
}

TEST_F(DeviceSlabsTest, WaitsForEachStreamByItself) {
  used_by(*stream_);
  std::byte* const second = used_by(*other_);
  finish(*other_);
  EXPECT_EQ(pool_.statistics().pending_bytes, 1024u);
  EXPECT_EQ(pool_.allocate(1000).value().data(), second);
}

TEST_F(DeviceSlabsTest, KeepsASlabThatAStreamUses) {
  used_by(*stream_);
  pool_.trim();
  EXPECT_GT(pool_.statistics().reserved_bytes, 0u);
  finish(*stream_);
  pool_.trim();
  EXPECT_EQ(pool_.statistics().reserved_bytes, 0u);
}

class AllocationScopeTest : public SlabPoolTest {
 protected:
  AllocationScope scope_{pool_, kMiB};
};

TEST_F(AllocationScopeTest, DestructorReturnsEverything) {
  {
    AllocationScope scope(pool_, kMiB);
    scope.allocate(1000).value();
    scope.allocate(2000).value();
    EXPECT_EQ(pool_.statistics().allocated_bytes, 1024u + 2048u);
  }
  EXPECT_EQ(pool_.statistics().allocated_bytes, 0u);
}

TEST_F(AllocationScopeTest, TracksCurrentAndPeak) {
  const auto first = scope_.allocate(1000).value();
  scope_.allocate(2000).value();
  EXPECT_EQ(scope_.current_bytes(), 1024u + 2048u);
  scope_.release(first);
  EXPECT_EQ(scope_.current_bytes(), 2048u);
  EXPECT_EQ(scope_.peak_bytes(), 1024u + 2048u);
  scope_.release_all();
  EXPECT_EQ(scope_.current_bytes(), 0u);
  EXPECT_EQ(scope_.held_bytes(), 0u);
  EXPECT_EQ(pool_.statistics().allocated_bytes, 0u);
}

TEST_F(AllocationScopeTest, ServesFromPreallocatedBuffers) {
  scope_.preallocate({.size_bytes = 1024, .count = 2}).value();
  scope_.preallocate({.size_bytes = 4096, .count = 1}).value();
  const std::uint64_t before = pool_.statistics().allocations;
  EXPECT_EQ(scope_.current_bytes(), 0u);
  scope_.allocate(500).value();
  EXPECT_EQ(scope_.current_bytes(), 1024u);  // the smallest that fits
  scope_.allocate(1024).value();
  scope_.allocate(3000).value();
  EXPECT_EQ(pool_.statistics().allocations, before);
  scope_.allocate(1).value();
  EXPECT_EQ(pool_.statistics().allocations, before + 1);
}

TEST_F(AllocationScopeTest, AllocatesObjectsOfAType) {
  const std::span<std::uint32_t> numbers = scope_.allocate<std::uint32_t>(1000).value();
  EXPECT_EQ(numbers.size(), 1000u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(numbers.data()) % SlabPool::kAlignment, 0u);
  EXPECT_EQ(scope_.current_bytes(), 4096u);
  scope_.allocate<char>(24).value();
  EXPECT_EQ(pool_.statistics().typed_allocations, 2u);
  EXPECT_EQ(pool_.statistics().typed_objects, 1024u);
}

TEST_F(AllocationScopeTest, RefusesMoreObjectsThanCanBeCounted) {
  EXPECT_EQ(scope_.allocate<std::uint64_t>(std::uint64_t{1} << 62).error().code,
            ErrorCode::out_of_range);
  EXPECT_EQ(pool_.statistics().typed_allocations, 0u);
}

TEST_F(AllocationScopeTest, ReusesReleasedBuffers) {
  const auto first = scope_.allocate(1000).value();
  scope_.release(first);
  EXPECT_EQ(scope_.allocate(900).value().data(), first.data());
}

TEST_F(AllocationScopeTest, HasALimit) {
  scope_.allocate(kMiB / 2).value();
  scope_.preallocate({.size_bytes = kMiB / 4, .count = 1}).value();
  EXPECT_EQ(scope_.allocate(kMiB / 2).error().code, ErrorCode::no_capacity);
  EXPECT_TRUE(scope_.allocate(kMiB / 4).has_value());
  EXPECT_EQ(scope_.allocate(0).error().code, ErrorCode::out_of_range);
}

TEST_F(AllocationScopeTest, PreallocatesAllOrNothing) {
  EXPECT_EQ(scope_.preallocate({.size_bytes = kMiB / 4, .count = 5}).error().code,
            ErrorCode::no_capacity);
  EXPECT_EQ(scope_.held_bytes(), 0u);
  EXPECT_EQ(pool_.statistics().allocated_bytes, 0u);
  EXPECT_TRUE(scope_.preallocate({.size_bytes = kMiB / 4, .count = 4}).has_value());
}

}  // namespace
}  // namespace cairn
