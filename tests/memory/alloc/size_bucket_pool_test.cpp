#include "memory/alloc/size_bucket_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace cairn {
namespace {

class SizeBucketPoolTest : public testing::Test {
 protected:
  SizeBucketPool::Buffer get(std::uint64_t size_bytes) {
    return pool_->acquire(size_bytes).value();
  }
  BucketStatistics bucket(std::size_t i) { return pool_->bucket_statistics()[i]; }

  // Two buffers of each size.
  std::unique_ptr<SizeBucketPool> pool_ =
      SizeBucketPool::create({.buffers = {2, 2, 2, 2, 2}}).value();
};

TEST_F(SizeBucketPoolTest, ServesEachSizeFromTheSmallestBucketThatFits) {
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> expected = {
      {1, 256}, {256, 256}, {257, 1024}, {4096, 4096}, {4097, 16384}, {65536, 65536}};
  for (const auto& [asked_bytes, got_bytes] : expected) {
    const SizeBucketPool::Buffer buffer = get(asked_bytes);
    EXPECT_EQ(buffer.size_bytes(), asked_bytes);
    EXPECT_EQ(buffer.capacity_bytes(), got_bytes);
    std::memset(buffer.data(), 1, buffer.capacity_bytes());
  }
}

TEST_F(SizeBucketPoolTest, RefusesZeroBytesAndMoreThanTheLargestBucket) {
  EXPECT_EQ(pool_->acquire(0).error().code, ErrorCode::out_of_range);
  EXPECT_EQ(pool_->acquire(65537).error().code, ErrorCode::out_of_range);
}

TEST_F(SizeBucketPoolTest, ReusesAReturnedBuffer) {
  std::byte* first = nullptr;
  {
    const auto buffer = get(100);
    first = buffer.data();
    EXPECT_EQ(bucket(0).in_use, 1u);
  }
  EXPECT_EQ(bucket(0).in_use, 0u);
  EXPECT_EQ(get(100).data(), first);
  EXPECT_EQ(bucket(0).hits, 2u);
}

TEST_F(SizeBucketPoolTest, LendsALargerBufferIfABucketIsEmpty) {
  const auto first = get(256);
  const auto second = get(256);
  const auto third = get(256);
  EXPECT_EQ(third.capacity_bytes(), 1024u);
  EXPECT_EQ(bucket(0).hits, 2u);
  EXPECT_EQ(bucket(0).misses, 1u);
  EXPECT_EQ(bucket(1).in_use, 1u);
  const AllocatorStatistics now = pool_->statistics();
  EXPECT_EQ(now.allocations, 3u);
  EXPECT_EQ(now.cache_hits, 2u);
  EXPECT_EQ(now.cache_misses, 1u);
}

TEST_F(SizeBucketPoolTest, ReportsNoCapacityWhenNoLargerBufferIsFree) {
  const auto first = get(65536);
  const auto second = get(65536);
  EXPECT_EQ(pool_->acquire(20000).error().code, ErrorCode::no_capacity);
  EXPECT_TRUE(pool_->acquire(16384).has_value());
}

TEST_F(SizeBucketPoolTest, UpgradeAndDowngradeKeepTheBytes) {
  auto buffer = get(200);
  std::memset(buffer.data(), 7, 200);
  buffer.upgrade(5000).value();
  EXPECT_EQ(buffer.capacity_bytes(), 16384u);
  EXPECT_EQ(buffer.size_bytes(), 5000u);
  buffer.downgrade(150);
  EXPECT_EQ(buffer.capacity_bytes(), 256u);
  EXPECT_THAT(std::vector<std::byte>(buffer.bytes().begin(), buffer.bytes().end()),
              testing::ElementsAreArray(std::vector<std::byte>(150, std::byte{7})));
  EXPECT_EQ(bucket(3).upgrades, 1u);
  EXPECT_EQ(bucket(0).downgrades, 1u);
  EXPECT_EQ(bucket(3).in_use, 0u);
  EXPECT_EQ(pool_->statistics().allocated_bytes, 256u);
}

TEST_F(SizeBucketPoolTest, UpgradesInPlaceWithinTheCapacity) {
  auto buffer = get(100);
  std::byte* const data = buffer.data();
  buffer.upgrade(256).value();
  EXPECT_EQ(buffer.data(), data);
  EXPECT_EQ(buffer.size_bytes(), 256u);
}

TEST_F(SizeBucketPoolTest, FailedUpgradeLeavesTheBufferUnchanged) {
  auto buffer = get(100);
  std::byte* const data = buffer.data();
  EXPECT_EQ(buffer.upgrade(70'000).error().code, ErrorCode::out_of_range);
  const auto first = get(65536);
  const auto second = get(65536);
  EXPECT_EQ(buffer.upgrade(60'000).error().code, ErrorCode::no_capacity);
  EXPECT_EQ(buffer.data(), data);
  EXPECT_EQ(buffer.size_bytes(), 100u);
}

TEST_F(SizeBucketPoolTest, DowngradeKeepsTheBufferIfNoSmallerOneIsFree) {
  const auto first = get(256);
  const auto second = get(256);
  auto buffer = get(1000);
  buffer.downgrade(10);
  EXPECT_EQ(buffer.capacity_bytes(), 1024u);
  EXPECT_EQ(buffer.size_bytes(), 10u);
  EXPECT_EQ(bucket(0).downgrades, 0u);
}

TEST_F(SizeBucketPoolTest, ReportsBytes) {
  const std::uint64_t total = 2 * (256 + 1024 + 4096 + 16384 + 65536);
  {
    const auto first = get(1000);
    const auto second = get(60'000);
    const AllocatorStatistics now = pool_->statistics();
    EXPECT_EQ(now.reserved_bytes, total);
    EXPECT_EQ(now.allocated_bytes, 1024u + 65536u);
    EXPECT_EQ(now.cached_bytes, total - 1024 - 65536);
    EXPECT_EQ(now.largest_free_bytes, 65536u);
  }
  EXPECT_EQ(pool_->statistics().allocated_bytes, 0u);
  EXPECT_EQ(pool_->statistics().peak_allocated_bytes, 1024u + 65536u);
  EXPECT_EQ(pool_->statistics().frees, 2u);
}

TEST_F(SizeBucketPoolTest, NeverSharesABufferBetweenThreads) {
  const auto pool = SizeBucketPool::create({.buffers = {3, 2, 2, 1, 1}}).value();
  std::atomic<std::uint32_t> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      const std::byte own{static_cast<unsigned char>(t + 1)};
      for (std::uint32_t i = 0; i < 5000; ++i) {
        auto buffer = pool->acquire(1 + random() % 1500);
        if (!buffer) continue;
        std::memset(buffer->data(), static_cast<int>(own), buffer->size_bytes());
        if (random() % 4 == 0) (void)buffer->upgrade(buffer->size_bytes() * 3).has_value();
        if (random() % 4 == 0) buffer->downgrade(1 + buffer->size_bytes() / 8);
        if (buffer->data()[0] != own) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(pool->statistics().allocated_bytes, 0u);
  EXPECT_EQ(pool->statistics().frees, pool->statistics().allocations);
}

}  // namespace
}  // namespace cairn
