// A small workload during which the n-th disk or device operation fails, for every n. Each call
// must return, no read may return wrong bytes, and nothing may stay held.
#include <gtest/gtest.h>

#include "memory/host/host_runtime.hpp"
#include "tests/blockmgr/rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/faulty_disk_io.hpp"
#include "tests/fakes/faulty_runtime.hpp"
#include "tests/fakes/gated_disk_io.hpp"

namespace cairn::testing {
namespace {

// Moves bytes in every way. A step may fail, but may not return wrong bytes or no result.
void work(Rig& rig, Cache& cache) {
  const auto fine = [](const auto& result) {
    return result || result.error().code != ErrorCode::internal;
  };
  for (std::uint64_t first : {0u, 10u, 20u, 30u}) {
    EXPECT_TRUE(fine(rig.put(cache, {.keys = keys(first, 4), .tier = Tier::device})));
  }
  EXPECT_TRUE(fine(rig.put(cache, {.keys = keys(40, 2), .tier = Tier::disk})));
  // Writes only two pieces; the rest is filled with zeros.
  if (auto slot = rig.allocate(cache, {.count = 2, .tier = Tier::disk})) {
    const Bytes piece(16, std::byte{7});
    EXPECT_TRUE(fine(rig.write(
        cache, {.lease = slot->lease, .block = slot->blocks[0], .part = PieceSelector{1, 0}},
        piece)));
    EXPECT_TRUE(fine(rig.write(
        cache, {.lease = slot->lease, .block = slot->blocks[0], .part = PieceSelector{0, 1}},
        piece)));
    EXPECT_TRUE(
        fine(rig.commit(cache, slot->lease, {{.handle = slot->blocks[1], .key = key(50)}})));
    EXPECT_TRUE(fine(cache.release(slot->lease, {})));
  }
  for (Tier to : {Tier::disk, Tier::device, Tier::pinned}) {
    if (auto id = cache.transfer({.keys = keys(0, 2), .to = to, .move = to == Tier::pinned})) {
      rig.scheduler->wait_idle();
      const TransferStatus status = rig.manager->transfer(*id).value();
      EXPECT_TRUE(status.state == TransferState::done || status.state == TransferState::failed);
      EXPECT_EQ(status.blocks_done + status.failures.size(), 2u);
      EXPECT_EQ(status.state == TransferState::done, status.failures.empty());
    }
  }
  EXPECT_TRUE(fine(rig.evict(cache, keys(30, 4), Tier::device)));
  for (std::uint64_t first : {0u, 10u, 20u, 30u, 40u}) {
    for (const BlockKey& name : keys(first, 4)) {
      const auto bytes = rig.read(cache, name);
      if (bytes) {
        EXPECT_EQ(*bytes, bytes_of(name));
      } else {
        EXPECT_NE(bytes.error().code, ErrorCode::internal) << bytes.error().detail;
      }
    }
  }
}

void check_nothing_is_held(Rig& rig, Cache& cache) {
  rig.scheduler->wait_idle();
  rig.clock.advance_ms(60'000);
  rig.manager->tick();
  const CacheStats stats = cache.stats();
  EXPECT_EQ(stats.leases, 0u);
  for (Tier tier : kTiers) {
    EXPECT_EQ(count(cache, tier, SlotState::allocated), 0u) << to_string(tier);
    EXPECT_EQ(count(cache, tier, SlotState::committed), 0u) << to_string(tier);
    for (const RouteStats& route : stats.routes[index_of(tier)]) {
      EXPECT_EQ(route.in_flight_blocks, 0u);
    }
    for (const BlockKey& name : present_in(cache, tier)) {
      if (name == key(50)) continue;
      EXPECT_EQ(rig.read(cache, name).value(), bytes_of(name));
    }
  }
  ASSERT_TRUE(cache.clear({}));
  for (Tier tier : kTiers) {
    EXPECT_EQ(count(cache, tier, SlotState::free),
              cache.stats().tiers[index_of(tier)].capacity_blocks);
  }
}

const CacheConfig kConfig = small_cache({.device = 6, .pinned = 5, .disk = 12});

TEST(Faults, EveryDiskCallFailsOnce) {
  std::uint64_t n = 1;
  for (;; ++n) {
    SCOPED_TRACE("disk call " + std::to_string(n));
    fakes::FakedDisk<fakes::FaultyDiskIo> faulty;
    Rig rig({.disk = faulty.wrap()});
    const auto cache = rig.cache(kConfig);
    faulty->fail_call(n);
    work(rig, *cache);
    const bool failed = faulty->failures() > 0;
    faulty->fail_call(0);
    check_nothing_is_held(rig, *cache);
    rig.manager.reset();
    rig.scheduler.reset();  // before the disk that it borrows
    if (!failed) break;
  }
  EXPECT_GT(n, 10u) << "the workload hardly uses the disk";
}

class RuntimeFaults : public ::testing::TestWithParam<fakes::Fault> {};
INSTANTIATE_TEST_SUITE_P(Faults, RuntimeFaults,
                         ::testing::Values(fakes::Fault::allocate, fakes::Fault::create_stream,
                                           fakes::Fault::copy, fakes::Fault::copy_later,
                                           fakes::Fault::record, fakes::Fault::event),
                         [](const auto& fault) { return std::string(to_string(fault.param)); });

TEST_P(RuntimeFaults, EveryCallFailsOnce) {
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE(std::string(to_string(GetParam())) + " " + std::to_string(n));
    auto runtime = std::make_unique<fakes::FaultyRuntime>(std::move(make_host_runtime({}).value()));
    fakes::FaultyRuntime& faulty = *runtime;
    Rig rig({.runtime = std::move(runtime)});
    const auto cache = rig.cache(kConfig);
    faulty.fail_nth(GetParam(), n);
    work(rig, *cache);
    const bool failed = faulty.failed() > 0;
    faulty.fail_nth(GetParam(), 0);
    check_nothing_is_held(rig, *cache);
    if (!failed) break;
  }
}

TEST(Faults, FailedReadDropsTheCopy) {
  fakes::FakedDisk<fakes::FaultyDiskIo> faulty;
  Rig rig({.disk = faulty.wrap()});
  const auto cache = rig.cache(kConfig);
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2), .tier = Tier::disk}));
  faulty->fail_call(1);
  EXPECT_EQ(rig.read(*cache, key(2)).error().code, ErrorCode::io_error);
  EXPECT_EQ(rig.read(*cache, key(2)).error().code, ErrorCode::unknown_key);
  EXPECT_EQ(rig.match(*cache, keys(1, 2), 0).blocks.size(), 1u);
  const auto evictions = cache->stats().tiers[index_of(Tier::disk)].evictions;
  EXPECT_EQ(evictions[static_cast<std::size_t>(EvictionReason::io_error)], 1u);
  rig.manager.reset();
  rig.scheduler.reset();
}

// Half of the write may have reached the disk before it failed.
TEST(Faults, FailedRewritePreventsCommit) {
  fakes::FakedDisk<fakes::FaultyDiskIo> faulty;
  Rig rig({.disk = faulty.wrap()});
  const auto cache = rig.cache(kConfig);
  const auto slot = rig.allocate(*cache, {.count = 1, .tier = Tier::disk}).value();
  const Cache::WriteTarget target{.lease = slot.lease, .block = slot.blocks[0]};
  const auto commit = [&] {
    return rig.commit(*cache, slot.lease, {{.handle = slot.blocks[0], .key = key(1)}});
  };
  ASSERT_TRUE(rig.write(*cache, target, bytes_of(key(2))));
  faulty->fail_call(1);
  EXPECT_EQ(rig.write(*cache, target, bytes_of(key(3))).error().code, ErrorCode::io_error);
  EXPECT_EQ(commit().error().code, ErrorCode::state_conflict);
  ASSERT_TRUE(rig.write(*cache, target, bytes_of(key(1))));
  ASSERT_TRUE(commit());
  EXPECT_EQ(rig.read(*cache, key(1)).value(), bytes_of(key(1)));
  rig.manager.reset();
  rig.scheduler.reset();  // before the disk that it borrows
}

// Once a refused write (429) marked the whole block as torn, though it had written no byte.
TEST(Faults, RefusedWriteDoesNotTearTheBlock) {
  fakes::FakedDisk<fakes::GatedDiskIo> gate;
  Rig rig({.disk = gate.wrap(), .workers = 1, .max_queued_jobs = 1});
  const auto cache = rig.cache(kConfig);
  const auto slots = rig.allocate(*cache, {.count = 3, .tier = Tier::disk}).value();
  const auto target = [&](std::size_t i) {
    return Cache::WriteTarget{.lease = slots.lease, .block = slots.blocks[i]};
  };
  ASSERT_TRUE(rig.write(*cache, target(0), bytes_of(key(1))));
  std::vector<BlockWriter> writers;
  for (const std::size_t i : {1u, 2u, 0u}) {
    writers.push_back(cache->write(target(i)).value());
    ASSERT_TRUE(rig.await<std::span<const iovec>>(
        [&](auto done) { writers.back().room(std::move(done)); }));
  }
  gate->close();
  writers[0].finish([](const Result<>&) {});  // starts
  gate->wait_for_calls(1);
  writers[1].finish([](const Result<>&) {});  // waits
  std::optional<ErrorCode> refused;
  writers[2].finish([&refused](const Result<>& ended) { refused = ended.error().code; });
  EXPECT_EQ(refused, ErrorCode::queue_full);
  gate->open();
  rig.scheduler->wait_idle();
  writers.clear();
  ASSERT_TRUE(rig.commit(*cache, slots.lease, {{.handle = slots.blocks[0], .key = key(1)}}));
  EXPECT_EQ(rig.read(*cache, key(1)).value(), bytes_of(key(1)));
  rig.manager.reset();
  rig.scheduler.reset();  // before the disk that it borrows
}

TEST(Faults, AFailedTransferNamesEachKeyAndKeepsGoodCopies) {
  fakes::FakedDisk<fakes::FaultyDiskIo> faulty;
  Rig rig({.disk = faulty.wrap()});
  const auto cache = rig.cache(kConfig);
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2), .tier = Tier::pinned}));
  faulty->fail_range({.offset_bytes = 0, .size_bytes = 1u << 20});
  const TransferStatus status =
      rig.transfer(*cache, {.keys = keys(1, 2), .to = Tier::disk, .move = true});
  EXPECT_EQ(status.state, TransferState::failed);
  EXPECT_EQ(status.blocks_done, 0u);
  ASSERT_EQ(status.failures.size(), 2u);
  EXPECT_EQ(status.failures[0].key, key(1));
  EXPECT_EQ(status.failures[0].error.code, ErrorCode::io_error);
  // A failed write does not drop its source.
  for (const BlockKey& name : keys(1, 2)) EXPECT_EQ(rig.read(*cache, name).value(), bytes_of(name));
  EXPECT_TRUE(present_in(*cache, Tier::disk).empty());
  rig.manager.reset();
  rig.scheduler.reset();
}

}  // namespace
}  // namespace cairn::testing
