#include "memory/alloc/caching_allocator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/memory/alloc/sizes.hpp"
#include "tests/memory/alloc/stepped_runtime.hpp"

namespace cairn {
namespace {

using fakes::SteppedRuntime;
using Buffer = CachingAllocator::Buffer;

class CachingAllocatorTest : public testing::Test {
 protected:
  Buffer get(std::uint64_t size_bytes) { return get(size_bytes, *stream_); }
  Buffer get(std::uint64_t size_bytes, Stream& stream) {
    return allocator_.allocate(size_bytes, stream).value();
  }
  std::uint64_t reserved() { return allocator_.statistics().reserved_bytes; }
  void use(Stream& stream) { stream.zero(nullptr, 0).value(); }
  void finish(Stream& stream) {
    SteppedRuntime::steps(stream).done = SteppedRuntime::steps(stream).issued;
  }

  SteppedRuntime runtime_{256 * kMiB};
  std::unique_ptr<Stream> stream_ = runtime_.create_stream(0).value();
  std::unique_ptr<Stream> other_ = runtime_.create_stream(0).value();
  CachingAllocator allocator_{runtime_, {}};
};

TEST_F(CachingAllocatorTest, ReservesTwoMiBForSmallRequests) {
  const Buffer one = get(1);
  const Buffer most = get(kMiB);
  EXPECT_EQ(reserved(), 2 * kMiB);
  EXPECT_EQ(allocator_.statistics().allocated_bytes, kMiB + 512);
}

TEST_F(CachingAllocatorTest, ReservesTwentyMiBForRequestsBelowTenMiB) {
  const Buffer least = get(kMiB + 1);
  EXPECT_EQ(reserved(), 20 * kMiB);
  const Buffer most = get(10 * kMiB - 512);
  EXPECT_EQ(reserved(), 20 * kMiB);
  const Buffer too_much = get(10 * kMiB - 512);
  EXPECT_EQ(reserved(), 40 * kMiB);
}

TEST_F(CachingAllocatorTest, RoundsRequestsFromTenMiBUpToTwoMiB) {
  const Buffer exact = get(10 * kMiB);
  EXPECT_EQ(reserved(), 10 * kMiB);
  const Buffer more = get(10 * kMiB + 1);
  EXPECT_EQ(reserved(), 22 * kMiB);
}

TEST_F(CachingAllocatorTest, AlignsTo512BytesAndViewsTheRequestedSize) {
  const Buffer first = get(700);
  const Buffer second = get(700);
  EXPECT_EQ(second.data(), first.data() + 1024);
  EXPECT_EQ(second.view().data(), second.data());
  EXPECT_EQ(second.view().size_bytes(), 700u);
  EXPECT_EQ(second.view().kind(), StorageKind::device);
}

TEST_F(CachingAllocatorTest, RefusesZeroBytesAndMoreThanTheDeviceHas) {
  EXPECT_EQ(allocator_.allocate(0, *stream_).error().code, ErrorCode::out_of_range);
  EXPECT_EQ(allocator_.allocate(~0ull, *stream_).error().code, ErrorCode::out_of_range);
  EXPECT_EQ(allocator_.allocate(257 * kMiB, *stream_).error().code, ErrorCode::no_capacity);
  EXPECT_EQ(allocator_.statistics().allocations, 0u);
}

TEST_F(CachingAllocatorTest, TakesTheSmallestBlockThatIsLargeEnough) {
  Buffer large = get(64 * kKiB);
  const Buffer wall = get(512);
  Buffer small = get(16 * kKiB);
  const Buffer second_wall = get(512);
  std::byte* const best = small.data();
  large.reset();
  small.reset();
  EXPECT_EQ(get(10 * kKiB).data(), best);
}

TEST_F(CachingAllocatorTest, TakesTheLowestAddressAmongEqualBlocks) {
  Buffer low = get(16 * kKiB);
  const Buffer wall = get(512);
  Buffer high = get(16 * kKiB);
  const Buffer second_wall = get(512);
  std::byte* const lowest = low.data();
  low.reset();
  high.reset();
  EXPECT_EQ(get(16 * kKiB).data(), lowest);
}

TEST_F(CachingAllocatorTest, JoinsNeighboursUntilTheSegmentIsWhole) {
  Buffer low = get(512);
  Buffer middle = get(512);
  Buffer high = get(512);
  low.reset();
  high.reset();
  middle.reset();
  const AllocatorStatistics now = allocator_.statistics();
  EXPECT_EQ(now.largest_free_bytes, 2 * kMiB);
  EXPECT_EQ(now.fragmentation(), 0.0);
  EXPECT_EQ(now.splits, 3u);
  EXPECT_EQ(now.merges, 3u);
}

TEST_F(CachingAllocatorTest, ReportsFragmentation) {
  Buffer low = get(512 * kKiB);
  const Buffer wall = get(512 * kKiB);
  low.reset();
  EXPECT_DOUBLE_EQ(allocator_.statistics().fragmentation(), 1 - 1024.0 / 1536.0);
}

TEST_F(CachingAllocatorTest, DoesNotSplitOffASmallRestOfALargeBlock) {
  const Buffer first = get(9 * kMiB);
  const Buffer second = get(10 * kMiB);  // the rest of 1 MiB is too small for a large request
  EXPECT_EQ(allocator_.statistics().allocated_bytes, 20 * kMiB);
  EXPECT_EQ(second.size_bytes(), 10 * kMiB);
}

TEST_F(CachingAllocatorTest, CountsHitsMissesAndThePeak) {
  Buffer first = get(kMiB);
  Buffer second = get(kMiB);
  first.reset();
  second.reset();
  const Buffer third = get(512);
  AllocatorStatistics now = allocator_.statistics();
  EXPECT_EQ(now.allocations, 3u);
  EXPECT_EQ(now.frees, 2u);
  EXPECT_EQ(now.cache_misses, 1u);
  EXPECT_EQ(now.cache_hits, 2u);
  EXPECT_EQ(now.peak_allocated_bytes, 2 * kMiB);
  allocator_.reset_peak();
  EXPECT_EQ(allocator_.statistics().peak_allocated_bytes, 512u);
}

TEST_F(CachingAllocatorTest, MovesABufferWithoutFreeingIt) {
  Buffer first = get(512);
  std::byte* const data = first.data();
  Buffer moved = std::move(first);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(allocator_.statistics().frees, 0u);
  moved = get(512);
  EXPECT_EQ(allocator_.statistics().frees, 1u);
}

TEST_F(CachingAllocatorTest, ReusesAtOnceOnTheSameStream) {
  Buffer first = get(512);
  std::byte* const data = first.data();
  use(*stream_);
  first.reset();
  EXPECT_EQ(get(512).data(), data);
}

TEST_F(CachingAllocatorTest, KeepsTheMemoryOfStreamsApart) {
  const Buffer wall = get(512);  // the rest of its segment is free
  const Buffer of_other = get(512, *other_);
  EXPECT_EQ(reserved(), 4 * kMiB);
}

TEST_F(CachingAllocatorTest, WaitsForRecordedWorkBeforeReusingABlock) {
  Buffer first = get(2 * kMiB);
  std::byte* const data = first.data();
  use(*other_);
  first.record_stream(*other_).value();
  first.reset();
  EXPECT_EQ(allocator_.statistics().pending_bytes, 2 * kMiB);
  EXPECT_EQ(allocator_.statistics().cached_bytes, 20 * kMiB);
  EXPECT_NE(get(2 * kMiB).data(), data);
  finish(*other_);
  EXPECT_EQ(get(2 * kMiB).data(), data);
  EXPECT_EQ(allocator_.statistics().pending_bytes, 0u);
}

TEST_F(CachingAllocatorTest, WaitsForAllRecordedStreams) {
  const auto third = runtime_.create_stream(0).value();
  Buffer first = get(kMiB);
  use(*other_);
  use(*third);
  first.record_stream(*other_).value();
  first.record_stream(*third).value();
  first.record_stream(*third).value();
  first.reset();
  finish(*third);
  get(512);
  EXPECT_EQ(allocator_.statistics().pending_bytes, kMiB);
  finish(*other_);
  get(512);
  EXPECT_EQ(allocator_.statistics().pending_bytes, 0u);
}

TEST_F(CachingAllocatorTest, ReusesMemoryOfNoStreamWhenItsUserIsDone) {
  Buffer first = allocator_.allocate(512).value();
  std::byte* const data = first.data();
  use(*stream_);
  first.record_stream(*stream_).value();
  first.reset();
  EXPECT_EQ(allocator_.statistics().pending_bytes, 512u);
  EXPECT_NE(allocator_.allocate(512).value().data(), data);
  finish(*stream_);
  EXPECT_EQ(allocator_.statistics().pending_bytes, 0u) << "nobody has to allocate for that";
  EXPECT_EQ(allocator_.allocate(512).value().data(), data);
}

TEST_F(CachingAllocatorTest, KeepsMemoryOfNoStreamFromStreams) {
  const Buffer wall = allocator_.allocate(512).value();
  const Buffer of_stream = get(512);
  EXPECT_EQ(reserved(), 4 * kMiB);
}

TEST_F(CachingAllocatorTest, NeedsNoEventForTheStreamItWasAllocatedFor) {
  Buffer first = get(512);
  use(*stream_);
  first.record_stream(*stream_).value();
  first.reset();
  EXPECT_EQ(allocator_.statistics().pending_bytes, 0u);
}

TEST_F(CachingAllocatorTest, ReturnsWholeFreeSegmentsOnly) {
  get(30 * kMiB);
  Buffer in_use = get(512);
  allocator_.empty_cache().value();
  EXPECT_EQ(runtime_.book().live_bytes, 2 * kMiB);
  EXPECT_EQ(reserved(), 2 * kMiB);
  in_use.reset();
  allocator_.empty_cache().value();
  EXPECT_EQ(runtime_.book().live_bytes, 0u);
}

TEST_F(CachingAllocatorTest, WaitsForAStreamBeforeReturningItsMemory) {
  get(30 * kMiB);
  use(*stream_);
  allocator_.empty_cache().value();
  EXPECT_EQ(SteppedRuntime::steps(*stream_).done, 1u);
}

TEST_F(CachingAllocatorTest, EmptiesTheCacheAndRetriesWhenTheDeviceIsFull) {
  get(200 * kMiB);
  get(30 * kMiB, *other_);
  const Buffer needs_all = get(256 * kMiB);
  EXPECT_EQ(runtime_.book().live_bytes, 256 * kMiB);
  EXPECT_EQ(allocator_.allocate(512, *stream_).error().code, ErrorCode::no_capacity);
}

TEST_F(CachingAllocatorTest, ReturnsIdleSegmentsBeforeReservingMore) {
  get(30 * kMiB);
  EXPECT_EQ(reserved(), 30 * kMiB);
  get(512);
  EXPECT_EQ(reserved(), 2 * kMiB);
}

TEST_F(CachingAllocatorTest, KeepsIdleSegmentsUpToTheLimit) {
  CachingAllocator frugal(runtime_, {.idle_limit_bytes = 12 * kMiB});
  for (const std::uint64_t size_bytes : {10 * kMiB, 12 * kMiB, 14 * kMiB}) {
    (void)frugal.allocate(size_bytes, *stream_).value();
  }
  // When the next segment was reserved, 10 MiB were within the limit; 22 MiB were not.
  EXPECT_EQ(frugal.statistics().reserved_bytes, 26 * kMiB);
  EXPECT_EQ(frugal.statistics().peak_reserved_bytes, 26 * kMiB);
}

TEST_F(CachingAllocatorTest, GivesAForgottenStreamsMemoryToTheNextStream) {
  get(512);
  allocator_.forget(*stream_);
  stream_.reset();
  const auto next = runtime_.create_stream(0).value();
  get(512, *next);
  EXPECT_EQ(reserved(), 2 * kMiB);
  allocator_.empty_cache().value();
  EXPECT_EQ(reserved(), 0u);
}

TEST_F(CachingAllocatorTest, GivesAnEndedStreamsMemoryToTheNextStream) {
  get(512);
  use(*stream_);
  allocator_.end_stream(std::move(stream_));
  const auto next = runtime_.create_stream(0).value();
  get(512, *next);
  EXPECT_EQ(reserved(), 2 * kMiB);
  EXPECT_EQ(allocator_.statistics().cache_hits, 1u);
}

TEST_F(CachingAllocatorTest, LimitsTheNumberOfStreams) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (std::size_t i = 0; i < CachingAllocator::kMaxStreams; ++i) {
    streams.push_back(runtime_.create_stream(0).value());
    get(512, *streams.back());
  }
  EXPECT_EQ(allocator_.allocate(512, *stream_).error().code, ErrorCode::too_many);
  Buffer last = get(512, *streams.back());
  EXPECT_EQ(last.record_stream(*stream_).error().code, ErrorCode::too_many);
  allocator_.forget(*streams.front());
  EXPECT_TRUE(allocator_.allocate(512, *stream_).has_value());
}

using CachingAllocatorDeathTest = CachingAllocatorTest;

TEST_F(CachingAllocatorDeathTest, DoesNotForgetAStreamWhileABufferNamesIt) {
  Buffer buffer = get(512);
  buffer.record_stream(*other_).value();
  EXPECT_DEATH(allocator_.forget(*other_), "a stream that is gone");
}

}  // namespace
}  // namespace cairn
