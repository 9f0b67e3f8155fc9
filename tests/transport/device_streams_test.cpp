// What keeps copies apart that run on streams at different times: the reuse of device memory, and
// the order between streams.
#include <gtest/gtest.h>

#include "memory/host/host_runtime.hpp"
#include "tests/conformance/stream_gate.hpp"
#include "tests/transport/support.hpp"
#include "transport/copy/block_copier.hpp"

namespace cairn::test {
namespace {

// 6 pieces each.
constexpr std::uint32_t kBlocks = 12;

class DeviceStreamsTest : public testing::Test {
 protected:
  BlockLayout make(StorageKind kind, Arrangement arrangement, std::uint64_t seed,
                   std::uint32_t blocks = kBlocks) {
    BlockLayout made = storage_.make(kind, arrangement, Storage::small_shape(blocks));
    for (std::uint32_t i = 0; i < blocks; ++i) {
      storage_.write_block(made, i, pattern(seed + i, made.geometry().block_bytes()));
    }
    return made;
  }
  void expect_holds(const BlockLayout& layout, std::uint64_t seed) {
    for (std::uint32_t i = 0; i < layout.config().num_blocks; ++i) {
      EXPECT_EQ(storage_.read_block(layout, i), pattern(seed + i, layout.geometry().block_bytes()))
          << i;
    }
  }
  AllocatorStatistics now(const std::string& allocator, int device_id) {
    for (const NamedAllocator& one : memory_.statistics()) {
      if (one.allocator == allocator && one.device == std::to_string(device_id)) return one.now;
    }
    ADD_FAILURE() << "there is no allocator " << allocator;
    return {};
  }
  AllocatorStatistics now(int device_id) {
    return now("device" + std::to_string(device_id), device_id);
  }
  // A list is written by the CPU, and freed before the stream reads it.
  void expect_lists_apart(std::uint32_t blocks, const std::string& allocator) {
    const BlockLayout first = make(StorageKind::device, Arrangement::layer_second, 100, blocks);
    const BlockLayout second = make(StorageKind::device, Arrangement::layer_second, 200, blocks);
    const BlockLayout first_copy = make(StorageKind::pinned, Arrangement::contiguous, 300, blocks);
    const BlockLayout second_copy = make(StorageKind::pinned, Arrangement::contiguous, 400, blocks);
    const int device = first.device_id();
    gate_->hold(*streams_.stream(device).value());
    const auto begin = [&](const BlockLayout& from, const BlockLayout& to) {
      return StreamCopier(streams_, {cairn::Place::of(from), cairn::Place::of(to)}, {})
          .begin(straight_pairs(blocks))
          .value();
    };
    const auto one = begin(first, first_copy);
    const std::uint64_t of_a_list = now(allocator, device).pending_bytes;
    EXPECT_GE(of_a_list, blocks * 6 * sizeof(MemoryCopy));
    const auto other = begin(second, second_copy);
    EXPECT_EQ(now(allocator, device).pending_bytes, 2 * of_a_list);
    EXPECT_EQ(now("device_slabs", device).allocated_bytes, 0u);
    gate_->open();
    one->wait().value();
    other->wait().value();
    expect_holds(first_copy, 100);
    expect_holds(second_copy, 200);
    streams_.stream(device).value()->synchronize().value();
    EXPECT_EQ(now(allocator, device).pending_bytes, 0u);
    EXPECT_GT(now(allocator, device).cached_bytes, 0u);
    // The next one is served from what was kept.
    const std::uint64_t hits = now(allocator, device).cache_hits;
    begin(first, second_copy)->wait().value();
    expect_holds(second_copy, 100);
    EXPECT_EQ(now(allocator, device).cache_hits, hits + 1);
  }

  Storage storage_;
  DeviceMemory memory_{storage_.runtime()};
  StreamSet streams_{storage_.runtime(), memory_};
  const std::unique_ptr<conformance::StreamGate> gate_ = conformance::make_page_gate();
};

TEST_F(DeviceStreamsTest, AShortListIsReusedWhenItsStreamHasReadIt) {
  expect_lists_apart(12, "device_slabs");
  EXPECT_GT(now(1).splits, 0u) << "a slab is a part of a segment";
}

TEST_F(DeviceStreamsTest, ALongListIsReusedWhenItsStreamHasReadIt) {
  expect_lists_apart(80, "device1");
  EXPECT_GT(now(1).splits, 0u);
  EXPECT_GT(now(1).merges, 0u);
}

// Behind a bus, scratch memory is filled on one stream and emptied on another.
TEST_F(DeviceStreamsTest, ScratchMemoryIsReusedWhenItIsEmpty) {
  const BlockLayout first = make(StorageKind::pinned, Arrangement::contiguous, 100);
  const BlockLayout second = make(StorageKind::pinned, Arrangement::contiguous, 200);
  const BlockLayout first_copy = make(StorageKind::device, Arrangement::layer_first, 300);
  const BlockLayout second_copy = make(StorageKind::device, Arrangement::layer_first, 400);
  const int device = first_copy.device_id();
  gate_->hold(*streams_.stream(device, StreamUse::within).value());
  const auto begin = [&](const BlockLayout& from, const BlockLayout& to) {
    return BlockCopier(streams_, {cairn::Place::of(from), cairn::Place::of(to)},
                       {.visibility = MemoryVisibility::explicit_dma})
        .begin(straight_pairs(kBlocks))
        .value();
  };
  const auto one = begin(first, first_copy);
  const auto other = begin(second, second_copy);
  // Both have crossed the bus, and neither has been scattered.
  streams_.stream(device, StreamUse::bus).value()->synchronize().value();
  EXPECT_GE(now(device).pending_bytes, 2 * kBlocks * first.geometry().block_bytes());
  gate_->open();
  one->wait().value();
  other->wait().value();
  expect_holds(first_copy, 100);
  expect_holds(second_copy, 200);
}

// The second half of a copy waits on the device, so its caller goes on.
TEST_F(DeviceStreamsTest, TheSecondHalfWaitsForTheFirst) {
  const BlockLayout from = make(StorageKind::pinned, Arrangement::contiguous, 100);
  const BlockLayout to = make(StorageKind::device, Arrangement::layer_first, 200);
  const BlockLayout back = make(StorageKind::pinned, Arrangement::contiguous, 300);
  const int device = to.device_id();
  const auto begin = [&](const BlockLayout& source, const BlockLayout& destination) {
    return BlockCopier(streams_, {cairn::Place::of(source), cairn::Place::of(destination)},
                       {.visibility = MemoryVisibility::explicit_dma})
        .begin(straight_pairs(kBlocks))
        .value();
  };
  gate_->hold(*streams_.stream(device, StreamUse::bus).value());
  const auto there = begin(from, to);
  EXPECT_FALSE(there->ready().value());
  gate_->open();
  there->wait().value();
  expect_holds(to, 100);
  begin(to, back)->wait().value();
  expect_holds(back, 100);
}

// Slabs without a user are memory of the device like any other.
TEST(DeviceMemoryTest, GivesUnusedSlabsToATier) {
  constexpr std::uint64_t kDeviceBytes = 4 << 20;
  const auto runtime = make_host_runtime({.device_bytes = kDeviceBytes}).value();
  DeviceMemory memory(*runtime);
  auto small = memory.allocate(0, 1000).value();
  EXPECT_EQ(memory.allocate_whole(kDeviceBytes, {}).error().code, ErrorCode::no_capacity);
  small = DeviceBuffer();
  EXPECT_TRUE(memory.allocate_whole(kDeviceBytes, {}).has_value());
  EXPECT_EQ(memory.statistics().at(1).now.reserved_bytes, 0u);
}

TEST(DeviceMemoryTest, HasABoundForItsSlabs) {
  const auto runtime = make_host_runtime({}).value();
  DeviceMemory memory(*runtime);
  std::vector<DeviceBuffer> held;
  while (held.size() * DeviceMemory::kMostSmallBytes <= DeviceMemory::kSlabLimitBytes) {
    held.push_back(memory.allocate(0, DeviceMemory::kMostSmallBytes).value());
  }
  EXPECT_EQ(memory.statistics().at(1).now.reserved_bytes, DeviceMemory::kSlabLimitBytes);
  held.clear();
  EXPECT_GT(memory.empty_cache(0).value(), DeviceMemory::kSlabLimitBytes);
  EXPECT_EQ(memory.statistics().at(0).now.reserved_bytes, 0u);
}

// One memory for host and device: a copy through scratch memory would be one more.
TEST_F(DeviceStreamsTest, CopiesDirectlyWhereMemoryIsOne) {
  const BlockLayout from = make(StorageKind::device, Arrangement::layer_first, 100);
  const BlockLayout to = make(StorageKind::pinned, Arrangement::contiguous, 200);
  BlockCopier copier(streams_, {cairn::Place::of(from), cairn::Place::of(to)},
                     {.visibility = MemoryVisibility::system});
  copier.copy(straight_pairs(kBlocks)).value();
  expect_holds(to, 100);
  // Nothing but a slab for the list.
  EXPECT_EQ(now(from.device_id()).allocations, now("device_slabs", from.device_id()).cache_misses);
}

}  // namespace
}  // namespace cairn::test
