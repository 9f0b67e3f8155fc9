// Real streams and real bytes: the host runtime's streams are threads that write.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "memory/alloc/caching_allocator.hpp"
#include "memory/exported_memory.hpp"
#include "memory/host/host_runtime.hpp"
#include "tests/conformance/stream_gate.hpp"
#include "tests/memory/alloc/sizes.hpp"

namespace cairn {
namespace {

TEST(CachingAllocatorOnHost, DoesNotReuseABlockWhileAStreamMayWriteIt) {
  const auto runtime = make_host_runtime({}).value();
  const auto own = runtime->create_stream(0).value();
  const auto other = runtime->create_stream(0).value();
  CachingAllocator allocator(*runtime, {});
  const auto gate = conformance::make_page_gate();

  auto buffer = allocator.allocate(2 * kMiB, *own).value();
  std::byte* const data = buffer.data();
  gate->hold(*other);
  other->zero(data, 2 * kMiB).value();
  buffer.record_stream(*other).value();
  buffer.reset();
  std::vector<CachingAllocator::Buffer> meanwhile;
  for (int i = 0; i < 30; ++i) {
    meanwhile.push_back(allocator.allocate(2 * kMiB, *own).value());
    EXPECT_NE(meanwhile.back().data(), data);
  }
  gate->open();
  other->record().value()->wait().value();
  EXPECT_EQ(allocator.allocate(2 * kMiB, *own).value().data(), data);
}

TEST(CachingAllocatorOnHost, ReturnsMemoryOnlyAfterItsStreamsWorkEnds) {
  const auto runtime = make_host_runtime({}).value();
  const auto own = runtime->create_stream(0).value();
  CachingAllocator allocator(*runtime, {});
  const auto gate = conformance::make_page_gate();

  auto buffer = allocator.allocate(2 * kMiB, *own).value();
  gate->hold(*own);
  own->zero(buffer.data(), 2 * kMiB).value();  // crashes if the memory is already unmapped
  buffer.reset();
  std::thread emptier([&] { allocator.empty_cache().value(); });
  EXPECT_FALSE(own->record().value()->ready().value());
  gate->open();
  emptier.join();
  EXPECT_EQ(allocator.statistics().reserved_bytes, 0u);
}

// Each thread writes its number through its own stream and reads it back through a second one.
// While it has the buffer, it must find only its own number.
TEST(CachingAllocatorOnHost, ServesManyThreads) {
  constexpr std::uint32_t kThreads = 4;
  constexpr std::uint32_t kRounds = 400;
  const auto runtime = make_host_runtime({.device_bytes = 48 * kMiB}).value();
  CachingAllocator allocator(*runtime, {});
  std::atomic<std::uint32_t> wrong{0};
  std::atomic<std::uint32_t> served{0};
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      const auto stream = runtime->create_stream(0).value();
      const auto second = runtime->create_stream(0).value();
      const std::vector<std::byte> pattern(64 << 10, std::byte{static_cast<unsigned char>(t + 1)});
      for (std::uint32_t round = 0; round < kRounds; ++round) {
        const std::uint64_t size_bytes = 1 + random() % (3 * kMiB);
        auto buffer = allocator.allocate(size_bytes, *stream);
        if (!buffer) continue;  // the device is small on purpose
        const std::uint64_t used_bytes = std::min<std::uint64_t>(size_bytes, pattern.size());
        std::vector<std::byte> back(used_bytes);
        const MemoryCopy in{buffer->data(), pattern.data(), used_bytes};
        const MemoryCopy out{back.data(), buffer->data(), used_bytes};
        stream->copy({&in, 1}).value();
        const auto written = stream->record().value();
        second->wait_for(*written).value();
        second->copy({&out, 1}).value();
        buffer->record_stream(*second).value();
        const auto read = second->record().value();
        buffer->reset();
        read->wait().value();
        if (std::memcmp(back.data(), pattern.data(), used_bytes) != 0) ++wrong;
        ++served;
        if (round % 100 == 99) allocator.empty_cache().value();
      }
      stream->record().value()->wait().value();
      allocator.forget(*stream);
      allocator.forget(*second);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(served, kThreads * kRounds / 2);
  allocator.empty_cache().value();
  const AllocatorStatistics end = allocator.statistics();
  EXPECT_EQ(end.reserved_bytes, 0u);
  EXPECT_EQ(end.allocations, served);
}

TEST(CachingAllocatorOnHost, ReusesAndClearsWholeMemoryOfTheSameSize) {
  const std::unique_ptr<DeviceRuntime> runtime = make_host_runtime({}).value();
  constexpr std::uint64_t kBytes = 12'345;
  CachingAllocator allocator(*runtime, {.idle_limit_bytes = 2 * kBytes});
  const std::byte* first = nullptr;
  {
    const Region tier = allocator.allocate_whole(kBytes, false).value();
    EXPECT_EQ(tier.size_bytes(), kBytes);
    EXPECT_EQ(tier.kind(), StorageKind::device);
    first = tier.data();
    std::memset(tier.data(), 0xAB, kBytes);
    const AllocatorStatistics now = allocator.statistics();
    EXPECT_EQ(now.allocated_bytes, kBytes);
    EXPECT_EQ(now.reserved_bytes, kBytes);
    EXPECT_EQ(now.cache_misses, 1u);
    EXPECT_EQ(now.segments, 1u);
  }
  EXPECT_EQ(allocator.statistics().cached_bytes, kBytes);
  EXPECT_EQ(allocator.statistics().allocated_bytes, 0u);
  EXPECT_EQ(allocator.statistics().largest_free_bytes, kBytes);
  // Another size gets other memory.
  EXPECT_NE(allocator.allocate_whole(kBytes - 1, false).value().data(), first);
  const Region again = allocator.allocate_whole(kBytes, false).value();
  EXPECT_EQ(again.data(), first);
  for (std::uint64_t i = 0; i < kBytes; ++i) ASSERT_EQ(again.data()[i], std::byte{0}) << i;
  EXPECT_EQ(allocator.statistics().cache_hits, 1u);
  ASSERT_TRUE(allocator.empty_cache());
  EXPECT_EQ(allocator.statistics().reserved_bytes, kBytes) << "memory in use stays";
}

TEST(CachingAllocatorOnHost, KeepsNoWholeMemoryBeyondTheLimit) {
  const std::unique_ptr<DeviceRuntime> runtime = make_host_runtime({}).value();
  CachingAllocator allocator(*runtime, {.idle_limit_bytes = 10'000});
  { const Region tier = allocator.allocate_whole(10'001, false).value(); }
  EXPECT_EQ(allocator.statistics().reserved_bytes, 0u);
  { const Region tier = allocator.allocate_whole(10'000, false).value(); }
  EXPECT_EQ(allocator.statistics().reserved_bytes, 10'000u);
  { const Region tier = allocator.allocate_whole(4'096, false).value(); }
  EXPECT_EQ(allocator.statistics().reserved_bytes, 10'000u);
}

// A process that mapped it would see the next owner's bytes.
TEST(CachingAllocatorOnHost, KeepsNoWholeMemoryThatWasShared) {
  const std::unique_ptr<DeviceRuntime> runtime = make_host_runtime({}).value();
  CachingAllocator allocator(*runtime, {.idle_limit_bytes = 1 << 20});
  {
    const Region tier = allocator.allocate_whole(8'192, false).value();
    EXPECT_TRUE(tier.share());
  }
  EXPECT_EQ(allocator.statistics().reserved_bytes, 0u);
}

TEST(CachingAllocatorOnHost, EmptiesTheCacheForWholeMemoryAndCountsTheRetry) {
  constexpr std::uint64_t kDeviceBytes = 1 << 20;
  const std::unique_ptr<DeviceRuntime> runtime =
      make_host_runtime({.device_bytes = kDeviceBytes}).value();
  CachingAllocator allocator(*runtime, {.idle_limit_bytes = kDeviceBytes});
  { const Region tier = allocator.allocate_whole(kDeviceBytes, false).value(); }
  EXPECT_EQ(allocator.statistics().cached_bytes, kDeviceBytes);
  EXPECT_TRUE(allocator.allocate_whole(kDeviceBytes - 1, false));
  EXPECT_EQ(allocator.statistics().retries, 1u);
  EXPECT_EQ(allocator.allocate_whole(kDeviceBytes + 1, false).error().code, ErrorCode::no_capacity);
  EXPECT_EQ(allocator.statistics().retries, 2u);
  EXPECT_EQ(allocator.statistics().allocated_bytes, 0u);
}

}  // namespace
}  // namespace cairn
