#include <gtest/gtest.h>

#include <future>

#include "base/task_threads.hpp"
#include "memory/host/host_runtime.hpp"
#include "tests/fakes/faulty_runtime.hpp"
#include "tests/transport/support.hpp"
#include "transport/copy/block_copier.hpp"
#include "transport/io/positional_disk_io.hpp"
#include "transport/transfer/memory_transfer.hpp"

namespace cairn::test {
namespace {

using fakes::Fault;
using fakes::FaultyRuntime;

constexpr std::uint32_t kScratchBlocks = 4;

class ScratchCopierTest : public testing::Test {
 protected:
  BlockLayout make(StorageKind kind, Arrangement arrangement) {
    return storage_.make(kind, arrangement, Storage::small_shape(kScratchBlocks));
  }
  static Bytes block(std::uint64_t seed, const BlockLayout& layout) {
    return pattern(seed, layout.geometry().block_bytes());
  }
  // Moves all blocks in reverse order, on streams of the runtime with scratch memory.
  JobOutcome move(DeviceRuntime& runtime, const BlockLayout& source,
                  const BlockLayout& destination) {
    for (std::uint32_t i = 0; i < kScratchBlocks; ++i)
      storage_.write_block(source, i, block(i, source));
    TransferJob job = storage_.make_job(source, destination, {{0, 3}, {1, 2}, {2, 1}, {3, 0}});
    DeviceMemory scratch(runtime);
    auto active = std::make_shared<ActiveJob>(JobId{1}, TimePoint{});
    active->job = std::move(job);
    {
      TaskThreads threads({.name = "test", .threads = 1});
      StreamPool streams(runtime, scratch, threads);
      PinnedPool staging(runtime, {});
      const auto disk = make_positional_disk_io(FileCalls::of_the_system());
      std::promise<void> ended;
      move_in_memory(
          {.job = active,
           .pairs = {.first = 0, .count = active->job.pairs.size()},
           .mode = {.strategy = CopyStrategy::async, .visibility = MemoryVisibility::explicit_dma}},
          {*disk, staging, streams, threads}, [&] { ended.set_value(); });
      ended.get_future().wait();
      threads.stop();
    }
    used_scratch_ = 0;
    for (const NamedAllocator& one : scratch.statistics()) used_scratch_ += one.now.allocations;
    return active->report.take_outcome();
  }
  void expect_arrived(const BlockLayout& destination) {
    for (std::uint32_t i = 0; i < kScratchBlocks; ++i) {
      EXPECT_EQ(storage_.read_block(destination, kScratchBlocks - 1 - i), block(i, destination))
          << i;
    }
  }

  Storage storage_;
  std::uint64_t used_scratch_ = 0;
};

TEST_F(ScratchCopierTest, MovesBlocksBetweenDevicePiecesAndHostMemory) {
  for (const Arrangement pieces : {Arrangement::layer_first, Arrangement::layer_second}) {
    SCOPED_TRACE(to_string(pieces));
    const BlockLayout device = make(StorageKind::device, pieces);
    const BlockLayout pinned = make(StorageKind::pinned, Arrangement::contiguous);
    EXPECT_EQ(move(storage_.runtime(), device, pinned).state, JobState::done);
    EXPECT_EQ(used_scratch_, 1u);
    expect_arrived(pinned);
    EXPECT_EQ(move(storage_.runtime(), pinned, device).state, JobState::done);
    EXPECT_EQ(used_scratch_, 1u);
    expect_arrived(device);
  }
}

TEST_F(ScratchCopierTest, TouchesOnlyTheBlocks) {
  const BlockLayout device = make(StorageKind::device, Arrangement::layer_second);
  const BlockLayout pinned = make(StorageKind::pinned, Arrangement::padded);
  EXPECT_EQ(move(storage_.runtime(), device, pinned).state, JobState::done);
  EXPECT_EQ(used_scratch_, 1u);
  expect_arrived(pinned);
  const BlockLayout expected = make(StorageKind::pinned, Arrangement::padded);
  for (std::uint32_t i = 0; i < kScratchBlocks; ++i) {
    storage_.write_block(expected, kScratchBlocks - 1 - i, block(i, expected));
  }
  EXPECT_EQ(storage_.image(pinned), storage_.image(expected));
}

TEST_F(ScratchCopierTest, IsOnlyUsedBetweenDevicePiecesAndHostBlocks) {
  const BlockLayout whole = make(StorageKind::device, Arrangement::contiguous);
  const BlockLayout pieces = make(StorageKind::device, Arrangement::layer_first);
  const BlockLayout pinned = make(StorageKind::pinned, Arrangement::contiguous);
  const BlockLayout pinned_pieces = make(StorageKind::pinned, Arrangement::layer_first);
  move(storage_.runtime(), whole, pinned);
  EXPECT_EQ(used_scratch_, 0u);
  move(storage_.runtime(), pieces, pinned_pieces);
  EXPECT_EQ(used_scratch_, 0u);
  expect_arrived(pinned_pieces);
  move(storage_.runtime(), pieces, whole);
  EXPECT_EQ(used_scratch_, 0u);
  expect_arrived(whole);
}

TEST_F(ScratchCopierTest, CopiesPieceByPieceIfTheDeviceIsFull) {
  FaultyRuntime runtime(make_host_runtime({.devices = 2, .device_bytes = 4096}).value());
  const BlockLayout device = make(StorageKind::device, Arrangement::layer_first);
  const BlockLayout pinned = make(StorageKind::pinned, Arrangement::contiguous);
  EXPECT_EQ(move(runtime, device, pinned).state, JobState::done);
  EXPECT_EQ(used_scratch_, 0u);
  expect_arrived(pinned);
}

TEST_F(ScratchCopierTest, NamesEveryBlockThatAnySingleFailureStopped) {
  for (const Fault fault : {Fault::allocate, Fault::create_stream, Fault::copy, Fault::copy_later,
                            Fault::record, Fault::event}) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE(std::string(to_string(fault)) + " " + std::to_string(n));
      ASSERT_LT(n, 20u);
      FaultyRuntime runtime(make_host_runtime({.devices = 2}).value());
      runtime.fail_nth(fault, n);
      const BlockLayout device = make(StorageKind::device, Arrangement::layer_second);
      const BlockLayout pinned = make(StorageKind::pinned, Arrangement::contiguous);
      const JobOutcome outcome = move(runtime, device, pinned);
      if (outcome.state == JobState::done) {
        expect_arrived(pinned);
      } else {
        EXPECT_EQ(outcome.failures.size(), kScratchBlocks);
        EXPECT_GT(runtime.failed(), 0u);
      }
      if (runtime.failed() == 0) break;
    }
  }
}

}  // namespace
}  // namespace cairn::test
