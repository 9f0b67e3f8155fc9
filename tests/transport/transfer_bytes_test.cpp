// Every pair of storage kinds, with every pair of layouts, moves every byte and no other.

#include <gtest/gtest.h>

#include <tuple>

#include "base/clock.hpp"
#include "tests/transport/support.hpp"
#include "transport/copy/stream_copier.hpp"

namespace cairn {
namespace {

using test::Arrangement;
using test::Bytes;
using test::kAllArrangements;
using test::kAllKinds;
using test::Storage;

constexpr std::uint32_t kMovedBlocks = 7;

class TransferBytes : public testing::TestWithParam<std::tuple<StorageKind, StorageKind>> {
 protected:
  Storage storage_;
  std::unique_ptr<DiskIo> disk_ = make_positional_disk_io();
  SystemClock clock_;
};

TEST_P(TransferBytes, EveryByteArrivesAtItsPlaceOnly) {
  const auto [source_kind, destination_kind] = GetParam();
  TransferScheduler scheduler(storage_.runtime(), *disk_, clock_, {});
  // Adjacent blocks, a gap, a step back: runs that merge and runs that do not.
  const std::vector<BlockPair> pairs = {{0, 2}, {1, 3}, {2, 4}, {6, 0}, {4, 6}};
  for (Arrangement source_arrangement : kAllArrangements) {
    for (Arrangement destination_arrangement : kAllArrangements) {
      SCOPED_TRACE(std::string(to_string(source_arrangement)) + " to " +
                   std::string(to_string(destination_arrangement)));
      const BlockLayout source =
          storage_.make(source_kind, source_arrangement, Storage::small_shape(kMovedBlocks));
      const BlockLayout destination = storage_.make(destination_kind, destination_arrangement,
                                                    Storage::small_shape(kMovedBlocks));
      const BlockLayout expected = storage_.make(StorageKind::system, destination_arrangement,
                                                 Storage::small_shape(kMovedBlocks));
      for (std::uint32_t block = 0; block < kMovedBlocks; ++block) {
        storage_.write_block(source, block, test::pattern(block, source.geometry().block_bytes()));
      }
      for (BlockPair pair : pairs) {
        storage_.write_block(expected, pair.destination,
                             test::pattern(pair.source, source.geometry().block_bytes()));
      }

      const JobOutcome outcome =
          test::run(scheduler, storage_.make_job(source, destination, pairs));

      EXPECT_EQ(outcome.state, JobState::done);
      EXPECT_TRUE(outcome.failures.empty());
      EXPECT_EQ(outcome.bytes_moved, pairs.size() * 240);
      if (destination_kind != StorageKind::disk) {
        EXPECT_EQ(storage_.image(destination), storage_.image(expected));
      }
      for (std::uint32_t block = 0; block < kMovedBlocks; ++block) {
        EXPECT_EQ(storage_.read_block(destination, block), storage_.read_block(expected, block));
      }
    }
  }
}

std::vector<std::tuple<StorageKind, StorageKind>> all_ways() {
  std::vector<std::tuple<StorageKind, StorageKind>> ways;
  for (StorageKind from : kAllKinds) {
    for (StorageKind to : kAllKinds) {
      if (from != StorageKind::disk || to != StorageKind::disk) ways.emplace_back(from, to);
    }
  }
  return ways;
}

INSTANTIATE_TEST_SUITE_P(AllKinds, TransferBytes, testing::ValuesIn(all_ways()),
                         [](const auto& tested) {
                           return std::string(to_string(std::get<0>(tested.param))) + "_to_" +
                                  std::string(to_string(std::get<1>(tested.param)));
                         });

class TransferWithinALayout : public testing::TestWithParam<StorageKind> {};

TEST_P(TransferWithinALayout, MovesBlocksToOtherSlots) {
  Storage storage;
  const std::unique_ptr<DiskIo> disk = make_positional_disk_io();
  const SystemClock clock;
  TransferScheduler scheduler(storage.runtime(), *disk, clock, {});
  for (Arrangement arrangement : kAllArrangements) {
    SCOPED_TRACE(to_string(arrangement));
    const BlockLayout layout =
        storage.make(GetParam(), arrangement, Storage::small_shape(kMovedBlocks));
    const Bytes first = test::pattern(1, layout.geometry().block_bytes());
    const Bytes second = test::pattern(2, layout.geometry().block_bytes());
    storage.write_block(layout, 0, first);
    storage.write_block(layout, 1, second);

    const JobOutcome outcome =
        test::run(scheduler, storage.make_job(layout, layout, {{0, 5}, {1, 3}}));

    EXPECT_EQ(outcome.state, JobState::done);
    EXPECT_EQ(storage.read_block(layout, 0), first);
    EXPECT_EQ(storage.read_block(layout, 1), second);
    EXPECT_EQ(storage.read_block(layout, 5), first);
    EXPECT_EQ(storage.read_block(layout, 3), second);
    EXPECT_EQ(storage.read_block(layout, 4),
              Bytes(layout.geometry().block_bytes(), Storage::kUntouched));
  }
}

INSTANTIATE_TEST_SUITE_P(AllKindsOfMemory, TransferWithinALayout,
                         testing::Values(StorageKind::system, StorageKind::pinned,
                                         StorageKind::device, StorageKind::unified),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

struct StrategyCase {
  CopyStrategy strategy;
  StorageKind source;
  StorageKind destination;
  const char* name;
};

class TransferStrategy : public testing::TestWithParam<StrategyCase> {};

TEST_P(TransferStrategy, MovesEveryByte) {
  const StrategyCase& tested = GetParam();
  Storage storage;
  const std::unique_ptr<DiskIo> disk = make_positional_disk_io();
  const SystemClock clock;
  const CopyStrategies wanted{
      .load = tested.strategy, .store = tested.strategy, .device = tested.strategy};
  TransferScheduler scheduler(storage.runtime(), *disk, clock,
                              {.strategy = wanted, .polling_interval_us = 1});
  const BlockLayout source =
      storage.make(tested.source, Arrangement::layer_second, Storage::small_shape(kMovedBlocks));
  const BlockLayout destination =
      storage.make(tested.destination, Arrangement::contiguous, Storage::small_shape(kMovedBlocks));
  for (std::uint32_t block = 0; block < kMovedBlocks; ++block) {
    storage.write_block(source, block, test::pattern(block, source.geometry().block_bytes()));
  }
  TransferJob job = storage.make_job(source, destination, test::straight_pairs(kMovedBlocks));

  EXPECT_EQ(test::run(scheduler, std::move(job)).state, JobState::done);

  const auto copied = scheduler.stats().copied;
  ASSERT_EQ(copied.size(), 1u);
  EXPECT_EQ(copied[0].from, tested.source);
  EXPECT_EQ(copied[0].to, tested.destination);
  EXPECT_EQ(copied[0].strategy, tested.strategy);
  EXPECT_EQ(copied[0].jobs, 1u);

  for (std::uint32_t block = 0; block < kMovedBlocks; ++block) {
    EXPECT_EQ(storage.read_block(destination, block),
              test::pattern(block, source.geometry().block_bytes()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TransferStrategy,
    testing::Values(
        StrategyCase{CopyStrategy::sync, StorageKind::system, StorageKind::pinned,
                     "sync_by_the_cpu"},
        StrategyCase{CopyStrategy::sync, StorageKind::pinned, StorageKind::device, "sync"},
        StrategyCase{CopyStrategy::sync, StorageKind::device, StorageKind::disk, "sync_staged"},
        StrategyCase{CopyStrategy::async, StorageKind::device, StorageKind::system, "async"},
        StrategyCase{CopyStrategy::polling, StorageKind::pinned, StorageKind::device, "polling"},
        StrategyCase{CopyStrategy::polling, StorageKind::disk, StorageKind::device,
                     "polling_staged"},
        StrategyCase{CopyStrategy::polling, StorageKind::unified, StorageKind::device,
                     "polling_unified"},
        StrategyCase{CopyStrategy::unified, StorageKind::unified, StorageKind::device,
                     "unified_to_device"},
        StrategyCase{CopyStrategy::unified, StorageKind::disk, StorageKind::unified,
                     "disk_to_unified"},
        StrategyCase{CopyStrategy::unified, StorageKind::pinned, StorageKind::unified,
                     "pinned_to_unified"}),
    [](const auto& tested) { return std::string(tested.param.name); });

// The strategies' metric cannot show this.
TEST(TransferStrategySync, BeginReturnsAfterTheCopy) {
  Storage storage;
  LayoutConfig shape = Storage::small_shape(1);
  // Copying takes milliseconds, so that a check without waiting comes too early.
  shape.inner_dim = 1u << 20;
  const BlockLayout source = storage.make(StorageKind::pinned, Arrangement::contiguous, shape);
  const BlockLayout destination = storage.make(StorageKind::device, Arrangement::contiguous, shape);
  DeviceMemory memory(storage.runtime());
  StreamSet streams(storage.runtime(), memory);
  StreamCopier copier(streams, {Place::of(source), Place::of(destination)},
                      {.strategy = CopyStrategy::sync});
  const std::vector<BlockPair> pairs = {{0, 0}};
  storage.write_block(source, 0, Bytes(source.geometry().block_bytes(), std::byte{7}));
  const auto event = copier.begin(pairs);
  ASSERT_TRUE(event);
  EXPECT_EQ(destination.regions()[0].data()[source.geometry().block_bytes() - 1], std::byte{7});
  ASSERT_TRUE((*event)->wait());
}

// Blocks larger than a group; jobs larger than a batch (32 MiB) and than all staging memory.
constexpr std::uint32_t kLargeBlocks = 18;
class LargeTransfer : public testing::TestWithParam<std::tuple<StorageKind, StorageKind>> {};

TEST_P(LargeTransfer, MovesEveryByteInBoundedPieces) {
  const auto [source_kind, destination_kind] = GetParam();
  Storage storage;
  const std::unique_ptr<DiskIo> disk = make_positional_disk_io();
  const SystemClock clock;
  TransferScheduler scheduler(storage.runtime(), *disk, clock, {.staging_bytes = 4ull << 20});
  const LayoutConfig shape{.num_blocks = kLargeBlocks,
                           .num_layers = 4,
                           .outer_dim = 2,
                           .page_size = 16,
                           .inner_dim = 4100,
                           .dtype_width_bytes = 4,
                           .alignment = 1};
  const BlockLayout source = storage.make(source_kind, Arrangement::layer_first, shape);
  const BlockLayout destination = storage.make(destination_kind, Arrangement::padded, shape);
  ASSERT_GT(source.geometry().block_bytes(), 2ull << 20);
  for (std::uint32_t block = 0; block < kLargeBlocks; ++block) {
    storage.write_block(source, block, test::pattern(block, source.geometry().block_bytes()));
  }
  std::vector<std::uint32_t> progress;
  TransferJob job = storage.make_job(source, destination, test::straight_pairs(kLargeBlocks));
  job.on_progress = [&progress](std::uint32_t arrived) { progress.push_back(arrived); };

  EXPECT_EQ(test::run(scheduler, std::move(job)).state, JobState::done);

  for (std::uint32_t block = 0; block < kLargeBlocks; ++block) {
    EXPECT_TRUE(test::same(storage.read_block(destination, block),
                           test::pattern(block, source.geometry().block_bytes())))
        << block;
  }
  EXPECT_GT(progress.size(), 1u);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_EQ(progress.back(), kLargeBlocks);
}

INSTANTIATE_TEST_SUITE_P(Routes, LargeTransfer,
                         testing::Values(std::tuple{StorageKind::pinned, StorageKind::device},
                                         std::tuple{StorageKind::system, StorageKind::pinned},
                                         std::tuple{StorageKind::disk, StorageKind::device},
                                         std::tuple{StorageKind::device, StorageKind::disk},
                                         std::tuple{StorageKind::pinned, StorageKind::disk}),
                         [](const auto& tested) {
                           return std::string(to_string(std::get<0>(tested.param))) + "_to_" +
                                  std::string(to_string(std::get<1>(tested.param)));
                         });

}  // namespace
}  // namespace cairn
