// Every operation of the runtime and of the disk fails once; the outcome must be true.

#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.hpp"
#include "memory/host/host_runtime.hpp"
#include "tests/fakes/faulty_disk_io.hpp"
#include "tests/fakes/faulty_runtime.hpp"
#include "tests/transport/support.hpp"

namespace cairn {
namespace {

using fakes::Fault;
using fakes::FaultyDiskIo;
using fakes::FaultyRuntime;
using test::Arrangement;
using test::Bytes;
using test::Storage;

struct Route {
  StorageKind source;
  StorageKind destination;
  CopyStrategy strategy;
};

std::string name_of(const Route& route) {
  return std::string(to_string(route.source)) + "_to_" + std::string(to_string(route.destination)) +
         (route.strategy == CopyStrategy::automatic ? ""
                                                    : "_" + std::string(to_string(route.strategy)));
}

constexpr Route kRoutes[] = {
    {StorageKind::pinned, StorageKind::device, CopyStrategy::automatic},
    {StorageKind::pinned, StorageKind::device, CopyStrategy::polling},
    {StorageKind::pinned, StorageKind::device, CopyStrategy::sync},
    {StorageKind::unified, StorageKind::device, CopyStrategy::automatic},
    {StorageKind::disk, StorageKind::unified, CopyStrategy::automatic},
    {StorageKind::unified, StorageKind::disk, CopyStrategy::automatic},
    {StorageKind::disk, StorageKind::device, CopyStrategy::automatic},
    {StorageKind::device, StorageKind::disk, CopyStrategy::automatic},
    {StorageKind::disk, StorageKind::pinned, CopyStrategy::automatic},
    {StorageKind::pinned, StorageKind::disk, CopyStrategy::automatic},
};

// Each block is a part, so that a job with a disk has many operations.
constexpr LayoutConfig kShape{.num_blocks = 3,
                              .num_layers = 2,
                              .outer_dim = 2,
                              .page_size = 4,
                              .inner_dim = 40'001,
                              .dtype_width_bytes = 4,
                              .alignment = 1};

class TransferFault : public testing::TestWithParam<Route> {
 protected:
  TransferFault() {
    for (std::uint32_t block = 0; block < kShape.num_blocks; ++block) {
      bytes_.push_back(test::pattern(block, block_bytes(kShape)));
      storage_.write_block(source_, block, bytes_.back());
    }
  }

  void clear_destination() {
    const Bytes untouched(block_bytes(kShape), Storage::kUntouched);
    for (std::uint32_t block = 0; block < kShape.num_blocks; ++block) {
      storage_.write_block(destination_, block, untouched);
    }
  }
  TransferJob job() const {
    return storage_.make_job(source_, destination_, test::straight_pairs(kShape.num_blocks));
  }
  static CopyStrategies strategies() {
    const CopyStrategy wanted = GetParam().strategy;
    return {.load = wanted, .store = wanted, .device = wanted};
  }
  bool arrived(std::uint32_t block) {
    return test::same(storage_.read_block(destination_, block), bytes_[block]);
  }
  void expect_true(const JobOutcome& outcome) {
    EXPECT_EQ(outcome.state == JobState::done, outcome.failures.empty());
    std::vector<bool> named(kShape.num_blocks, false);
    for (const BlockFailure& failure : outcome.failures) {
      ASSERT_LT(failure.index, kShape.num_blocks);
      EXPECT_FALSE(named[failure.index]) << "named twice";
      named[failure.index] = true;
      EXPECT_FALSE(failure.error.detail.empty());
    }
    for (std::uint32_t block = 0; block < kShape.num_blocks; ++block) {
      EXPECT_TRUE(named[block] || arrived(block)) << block;
    }
    EXPECT_EQ(outcome.bytes_moved,
              (kShape.num_blocks - outcome.failures.size()) * block_bytes(kShape));
  }

  Storage storage_;
  BlockLayout source_ = storage_.make(GetParam().source, Arrangement::layer_second, kShape);
  BlockLayout destination_ = storage_.make(GetParam().destination, Arrangement::contiguous, kShape);
  std::vector<Bytes> bytes_;
  std::unique_ptr<DiskIo> disk_ = make_positional_disk_io();
  SystemClock clock_;
};

TEST_P(TransferFault, ReportsARuntimeFaultAndTheNextJobSucceeds) {
  for (Fault fault : {Fault::allocate, Fault::create_stream, Fault::copy, Fault::copy_later,
                      Fault::record, Fault::event}) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE(std::string(to_string(fault)) + " number " + std::to_string(n));
      FaultyRuntime runtime(std::move(*make_host_runtime({.devices = 2})));
      TransferScheduler scheduler(runtime, *disk_, clock_,
                                  {.workers = 1, .strategy = strategies()});
      clear_destination();
      runtime.fail_nth(fault, n);
      const JobOutcome outcome = test::run(scheduler, job());
      runtime.fail_nth(fault, 0);
      expect_true(outcome);
      EXPECT_EQ(outcome.state, runtime.failed() > 0 ? JobState::failed : JobState::done);

      clear_destination();
      const JobOutcome next = test::run(scheduler, job());
      EXPECT_EQ(next.state, JobState::done);
      expect_true(next);
      if (runtime.failed() == 0) break;
    }
  }
}

TEST_P(TransferFault, ADiskFaultFailsOnlyItsBlock) {
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    FaultyDiskIo faulty(*disk_);
    TransferScheduler scheduler(storage_.runtime(), faulty, clock_, {.strategy = strategies()});
    clear_destination();
    faulty.fail_call(n);
    const JobOutcome outcome = test::run(scheduler, job());
    expect_true(outcome);
    EXPECT_EQ(outcome.failures.size(), faulty.failures());
    if (faulty.failures() == 0) break;
    EXPECT_EQ(outcome.failures.at(0).error.code, ErrorCode::io_error);
    EXPECT_FALSE(arrived(outcome.failures.at(0).index));
  }
}

INSTANTIATE_TEST_SUITE_P(Routes, TransferFault, testing::ValuesIn(kRoutes),
                         [](const auto& tested) { return name_of(tested.param); });

TEST(TransferFaultInAGroup, NamesExactlyTheUnreadableBlocks) {
  Storage storage;
  const std::unique_ptr<DiskIo> disk = make_positional_disk_io();
  const SystemClock clock;
  constexpr std::uint32_t kBlocks = 20;
  for (StorageKind kind : {StorageKind::system, StorageKind::device}) {
    SCOPED_TRACE(to_string(kind));
    const BlockLayout source =
        storage.make(StorageKind::disk, Arrangement::contiguous, Storage::small_shape(kBlocks));
    const BlockLayout destination =
        storage.make(kind, Arrangement::layer_first, Storage::small_shape(kBlocks));
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      storage.write_block(source, block, test::pattern(block, 240));
    }
    FaultyDiskIo faulty(*disk);
    const auto offset_of = [&source](std::uint64_t block) {
      return source.regions()[0].file_offset_bytes() +
             source.geometry().locate({.block = block}).offset_bytes;
    };
    faulty.fail_range({offset_of(7) + 11, 1});
    faulty.fail_range({offset_of(8), 1});
    TransferScheduler scheduler(storage.runtime(), faulty, clock, {});

    const JobOutcome outcome =
        test::run(scheduler, storage.make_job(source, destination, test::straight_pairs(kBlocks)));

    ASSERT_EQ(outcome.failures.size(), 2u);
    EXPECT_EQ(outcome.failures[0].index, 7u);
    EXPECT_EQ(outcome.failures[1].index, 8u);
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      if (block == 7 || block == 8) continue;
      EXPECT_EQ(storage.read_block(destination, block), test::pattern(block, 240)) << block;
    }
  }
}

// A batch holds at most 16384 pieces. Blocks of one byte make several batches affordable.
constexpr std::uint32_t kBatch = 16384;

class TransferFaultInABatch : public testing::TestWithParam<Fault> {};

TEST_P(TransferFaultInABatch, NamesOnlyThePairsOfThatBatch) {
  Storage storage;
  const std::unique_ptr<DiskIo> disk = make_positional_disk_io();
  const SystemClock clock;
  const LayoutConfig shape{.num_blocks = 4 * kBatch,
                           .num_layers = 1,
                           .outer_dim = 1,
                           .page_size = 1,
                           .inner_dim = 1,
                           .dtype_width_bytes = 1,
                           .alignment = 1};
  const BlockLayout source = storage.make(StorageKind::pinned, Arrangement::contiguous, shape);
  const Bytes bytes = test::pattern(9, shape.num_blocks);
  std::copy(bytes.begin(), bytes.end(), source.regions()[0].data());
  for (std::uint32_t batch = 0; batch < 4; ++batch) {
    SCOPED_TRACE(batch);
    const BlockLayout destination =
        storage.make(StorageKind::device, Arrangement::contiguous, shape);
    FaultyRuntime runtime(std::move(*make_host_runtime({.devices = 2})));
    TransferScheduler scheduler(runtime, *disk, clock, {.workers = 1});
    runtime.fail_nth(GetParam(), batch + 1);
    const JobOutcome outcome = test::run(
        scheduler, storage.make_job(source, destination, test::straight_pairs(4 * kBatch)));

    ASSERT_EQ(runtime.failed(), 1u);
    ASSERT_EQ(outcome.failures.size(), kBatch);
    EXPECT_EQ(outcome.failures.front().index, batch * kBatch);
    EXPECT_EQ(outcome.failures.back().index, (batch + 1) * kBatch - 1);
    Bytes moved = storage.image(destination)[0];
    for (std::uint32_t i = 0; i < 4 * kBatch; ++i) {
      ASSERT_TRUE(i / kBatch == batch || moved[i] == bytes[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, TransferFaultInABatch,
                         testing::Values(Fault::copy, Fault::copy_later, Fault::record,
                                         Fault::event),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

}  // namespace
}  // namespace cairn
