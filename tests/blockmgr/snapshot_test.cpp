// Makes, restores and lists snapshots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/snapshot/snapshot_format.hpp"
#include "tests/base/eventually.hpp"
#include "tests/blockmgr/snapshot_rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/gated_disk_io.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

CacheConfig named(CacheConfig config, const std::string& name) {
  config.name = name;
  return config;
}

// Three chains in three tiers, the second with metadata.
std::shared_ptr<Cache> filled(SnapshotRig& rig) {
  const auto cache = rig.cache(small_cache({.device = 8, .pinned = 8, .disk = 8}));
  EXPECT_TRUE(rig.put(*cache, {.keys = keys(1, 3), .tier = Tier::device, .priority = 70}));
  rig.clock.advance_ms(10);
  EXPECT_TRUE(rig.put(*cache, {.keys = keys(11, 4), .tier = Tier::pinned}));
  rig.clock.advance_ms(10);
  EXPECT_TRUE(rig.put(*cache, {.keys = keys(21, 2), .tier = Tier::disk, .parent = key(12)}));
  EXPECT_TRUE(cache->set_metadata(key(12), R"({"a":1})"));
  return cache;
}
std::vector<BlockKey> filled_keys() {
  auto all = keys(1, 3);
  for (const auto& more : {keys(11, 4), keys(21, 2)})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::optional<BlockInfo> info(const Cache& cache, const BlockKey& name) {
  for (const BlockInfo& block : cache.list({.limit = 1'000'000}).value().blocks) {
    if (block.key == name) return block;
  }
  return std::nullopt;
}

class SnapshotRoundTrip : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Compressed, SnapshotRoundTrip, ::testing::Bool());

TEST_P(SnapshotRoundTrip, RestoresEveryBlockInTheSameCache) {
  SnapshotRig rig;
  const auto cache = filled(rig);
  const TransferStatus made = rig.make(cache, "s", GetParam()).value();
  EXPECT_EQ(made.state, TransferState::done);
  EXPECT_EQ(made.blocks_done, 9u);
  EXPECT_EQ(made.blocks_total, 9u);
  EXPECT_EQ(made.bytes, 9u * 64);
  ASSERT_TRUE(cache->clear({}));
  const TransferStatus back = rig.restore(cache, "s").value();
  EXPECT_EQ(back.blocks_done, 9u);
  EXPECT_EQ(back.blocks_total, 9u);
  for (const BlockKey& name : filled_keys()) {
    EXPECT_EQ(rig.read(*cache, name).value(), bytes_of(name));
  }
  EXPECT_EQ(rig.match(*cache, keys(11, 4), 0).blocks.size(), 4u);
  EXPECT_EQ(info(*cache, key(2))->handle.tier, Tier::device);
  EXPECT_EQ(info(*cache, key(2))->priority, 70);
  EXPECT_EQ(info(*cache, key(2))->parent, key(1));
  EXPECT_EQ(info(*cache, key(12))->metadata, R"({"a":1})");
  EXPECT_EQ(info(*cache, key(12))->epoch, 2u);
  EXPECT_EQ(info(*cache, key(11))->epoch, 1u);
  EXPECT_EQ(info(*cache, key(21))->handle.tier, Tier::disk);
  EXPECT_EQ(info(*cache, key(21))->parent, key(12));
  EXPECT_EQ(info(*cache, key(1))->parent, std::nullopt);
  for (Tier tier : kTiers) {
    EXPECT_EQ(count(*cache, tier, SlotState::committed), 0u);
    EXPECT_EQ(count(*cache, tier, SlotState::allocated), 0u);
  }
  EXPECT_EQ(cache->stats().leases, 0u);
}

TEST_P(SnapshotRoundTrip, RestoresEveryBlockInOtherTiersAndLayouts) {
  SnapshotRig rig;
  const auto cache = filled(rig);
  ASSERT_TRUE(rig.make(cache, "s", GetParam()));
  CacheConfig config = named(small_cache({.pinned = 16}), "other");
  config.tiers[index_of(Tier::pinned)]->layout = LayoutKind::layer_separate;
  config.tiers[index_of(Tier::pinned)]->block_dim = BlockDim::second;
  config.shape.alignment = 256;
  const auto other = rig.cache(config);
  EXPECT_EQ(rig.restore(other, "s")->blocks_done, 9u);
  for (const BlockKey& name : filled_keys()) {
    EXPECT_EQ(rig.read(*other, name).value(), bytes_of(name));
  }
}

TEST_P(SnapshotRoundTrip, RestoresBlocksLargerThanABuffer) {
  SnapshotRig rig;
  CacheConfig config = small_cache({.device = 4, .pinned = 4});
  // 1.2 MB per block, not a round size.
  config.shape = {
      .num_layers = 3, .outer_dim = 2, .page_size = 16, .inner_dim = 6250, .dtype_width_bytes = 2};
  const auto cache = rig.cache(config);
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3), .tier = Tier::device}));
  ASSERT_TRUE(rig.make(cache, "s", GetParam()));
  ASSERT_TRUE(cache->clear({}));
  ASSERT_TRUE(rig.restore(cache, "s"));
  for (const BlockKey& name : keys(1, 3)) {
    EXPECT_EQ(rig.read(*cache, name).value(), bytes_of(name, cache->block_bytes()));
  }
}

TEST(Snapshot, WorksForAnEmptyCache) {
  SnapshotRig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  EXPECT_EQ(rig.make(cache, "s")->blocks_total, 0u);
  EXPECT_EQ(rig.restore(cache, "s")->blocks_done, 0u);
}

TEST(Snapshot, CompressesOnRequest) {
  SnapshotRig rig;
  CacheConfig config = small_cache({.pinned = 4});
  config.shape.inner_dim = 4096;
  const auto cache = rig.cache(config);
  const auto allocation = rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).value();
  ASSERT_TRUE(
      rig.commit(*cache, allocation.lease, {{.handle = allocation.blocks[0], .key = key(1)}}));
  ASSERT_TRUE(rig.make(cache, "plain"));
  ASSERT_TRUE(rig.make(cache, "packed", true));
  const auto list = rig.snapshots().list("test", true).value();
  EXPECT_THAT(list, ElementsAre(::testing::Field(&SnapshotInfo::name, "packed"),
                                ::testing::Field(&SnapshotInfo::name, "plain")));
  EXPECT_TRUE(list[0].compressed);
  EXPECT_FALSE(list[1].compressed);
  EXPECT_GT(list[1].file_bytes, cache->block_bytes());
  EXPECT_LT(list[0].file_bytes, cache->block_bytes() / 10);
  EXPECT_EQ(list[0].file_bytes, std::filesystem::file_size(rig.file("packed")));
  EXPECT_EQ(list[0].blocks, 1u);
  EXPECT_EQ(list[0].created_unix_ms, rig.clock.unix_ms());
}

TEST(Snapshot, KeepsTheEvictionOrder) {
  for (const bool with_snapshot : {false, true}) {
    SnapshotRig rig;
    const auto cache = rig.cache(small_cache({.pinned = 6}));
    for (const int n : {1, 2, 3, 4, 5, 6}) {
      ASSERT_TRUE(rig.put(*cache, {.keys = keys(static_cast<std::uint64_t>(n), 1)}));
    }
    rig.match(*cache, keys(2, 1), 0);
    if (with_snapshot) {
      ASSERT_TRUE(rig.make(cache, "s"));
    }
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(11, 3)}));
    EXPECT_THAT(cache->contains(views(keys(1, 6))),
                ElementsAre(false, true, false, false, true, true))
        << with_snapshot;
  }
}

TEST(SnapshotRestore, KeepsPresentBlocks) {
  SnapshotRig rig;
  const auto cache = rig.cache(small_cache({.pinned = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  ASSERT_TRUE(rig.make(cache, "s"));
  ASSERT_TRUE(rig.evict(*cache, keys(3, 2), {}));
  const BlockHandle before = info(*cache, key(2))->handle;
  const TransferStatus status = rig.restore(cache, "s").value();
  EXPECT_EQ(status.blocks_done, 4u);
  EXPECT_EQ(status.bytes, 2u * 64);
  EXPECT_EQ(info(*cache, key(2))->handle, before);
  EXPECT_EQ(rig.match(*cache, keys(1, 4), 0).blocks.size(), 4u);
}

TEST(SnapshotRestore, RestoredBlocksGoFirst) {
  SnapshotRig rig;
  const auto cache = rig.cache(small_cache({.pinned = 6}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1)}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(2, 1)}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(3, 2)}));
  ASSERT_TRUE(rig.make(cache, "s"));
  ASSERT_TRUE(cache->clear({}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(11, 2)}));
  ASSERT_TRUE(rig.restore(cache, "s"));
  // The snapshot's oldest block goes first, then the next, then the tail of its chain.
  const std::vector<std::vector<bool>> expected = {
      {false, true, true, true}, {false, false, true, true}, {false, false, true, false}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(21 + i, 1)}));
    EXPECT_EQ(cache->contains(views(keys(1, 4))), expected[i]) << i;
  }
  EXPECT_THAT(cache->contains(views(keys(11, 2))), ElementsAre(true, true));
}

TEST(SnapshotRestore, RefusesWhatDoesNotFitUnlessPartial) {
  SnapshotRig rig;
  const auto cache = rig.cache(small_cache({.pinned = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3)}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(11, 4)}));  // used last
  ASSERT_TRUE(rig.make(cache, "s"));
  const auto small = rig.cache(named(small_cache({.pinned = 6}), "small"));
  ASSERT_TRUE(rig.put(*small, {.keys = keys(31, 1)}));
  EXPECT_EQ(rig.restore(small, "s").error().code, ErrorCode::no_capacity);
  EXPECT_EQ(present_in(*small, Tier::pinned).size(), 1u);
  const TransferStatus status = rig.restore(small, "s", true).value();
  EXPECT_EQ(status.blocks_done, 5u);
  EXPECT_EQ(status.blocks_total, 5u);
  EXPECT_EQ(rig.match(*small, keys(11, 4), 0).blocks.size(), 4u);
  EXPECT_EQ(rig.match(*small, keys(1, 3), 0).blocks.size(), 1u);
  EXPECT_TRUE(is_in(*small, Tier::pinned, key(31)));
}

TEST(SnapshotRestore, RefusesAnotherShapeBeforeAnythingChanges) {
  SnapshotRig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2)}));
  ASSERT_TRUE(rig.make(cache, "s"));
  // The block size is the same, but its bytes mean something else.
  CacheConfig config = named(small_cache({.pinned = 4}), "other");
  config.shape.page_size = 4;
  config.shape.inner_dim = 2;
  const auto other = rig.cache(config);
  const Error error = rig.restore(other, "s").error();
  EXPECT_EQ(error.code, ErrorCode::state_conflict);
  EXPECT_THAT(error.detail, ::testing::HasSubstr("2 tokens x 4 values"));
  EXPECT_THAT(error.detail, ::testing::HasSubstr("4 tokens x 2 values"));
  EXPECT_THAT(present_in(*other, Tier::pinned), IsEmpty());
}

TEST(SnapshotRestore, SkipsExpiredBlocksAndKeepsTtls) {
  SnapshotRig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1), .ttl_ms = 100}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(2, 1), .ttl_ms = 1000}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(3, 1)}));
  ASSERT_TRUE(rig.make(cache, "s"));
  ASSERT_TRUE(cache->clear({}));
  rig.clock.advance_ms(500);
  EXPECT_EQ(rig.restore(cache, "s")->blocks_done, 2u);
  EXPECT_THAT(cache->contains(views(keys(1, 3))), ElementsAre(false, true, true));
  rig.clock.advance_ms(499);
  EXPECT_TRUE(cache->contains(views(keys(2, 1)))[0]);
  rig.clock.advance_ms(2);
  EXPECT_FALSE(cache->contains(views(keys(2, 1)))[0]);
}

SnapshotRecord record_of(std::uint64_t number) {
  return {.key = key(number),
          .parent = key(number + 1),
          .metadata = "{}",
          .epoch = 3,
          .priority = 70,
          .tiers = 0b101,
          .last_use_unix_ms = 5,
          .expires_at_unix_ms = 9,
          .stored_bytes = 17,
          .stored_checksum = 19,
          .block_bytes = 64,
          .checksum = 21};
}

TEST(SnapshotIndex, ReadsBackEveryField) {
  SnapshotBytes index;
  append(index, record_of(1));
  append(index, record_of(11));
  SnapshotIndexCursor cursor(index);
  ASSERT_TRUE(cursor.next());
  const auto record = cursor.next();
  ASSERT_TRUE(record);
  EXPECT_TRUE(cursor.at_end());
  EXPECT_EQ(record->key, key(11));
  EXPECT_EQ(record->parent, key(12));
  EXPECT_EQ(record->metadata, "{}");
  EXPECT_EQ(record->epoch, 3U);
  EXPECT_EQ(record->priority, 70U);
  EXPECT_EQ(record->tiers, 0b101U);
  EXPECT_EQ(record->last_use_unix_ms, 5);
  EXPECT_EQ(record->expires_at_unix_ms, 9);
  EXPECT_EQ(record->stored_bytes, 17U);
  EXPECT_EQ(record->stored_checksum, 19U);
  EXPECT_EQ(record->block_bytes, 64U);
  EXPECT_EQ(record->checksum, 21U);
}

TEST(SnapshotIndex, RefusesInvalidRecords) {
  const auto refused = [](const SnapshotRecord& record) {
    SnapshotBytes index;
    append(index, record);
    const auto read = SnapshotIndexCursor(index).next();
    return !read && read.error().code == ErrorCode::broken_snapshot;
  };
  SnapshotRecord wrong = record_of(1);
  EXPECT_FALSE(refused(wrong));
  wrong.tiers = 0;
  EXPECT_TRUE(refused(wrong));
  wrong.tiers = 1U << kNumTiers;
  EXPECT_TRUE(refused(wrong));
  wrong = record_of(1);
  wrong.priority = 101;
  EXPECT_TRUE(refused(wrong));
  wrong = record_of(1);
  wrong.key = {};
  EXPECT_TRUE(refused(wrong));
}

TEST(Snapshots, RefuseBadAndDuplicateNames) {
  SnapshotRig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("../a"),
        std::string("a b"), std::string("a\0b", 3), std::string(65, 'a')}) {
    EXPECT_EQ(rig.make(cache, bad).error().code, ErrorCode::out_of_range) << bad;
    EXPECT_EQ(rig.snapshots().remove("test", bad).error().code, ErrorCode::out_of_range) << bad;
  }
  EXPECT_TRUE(rig.make(cache, std::string(64, 'a')));
  EXPECT_EQ(rig.make(cache, std::string(64, 'a')).error().code, ErrorCode::state_conflict);
  EXPECT_EQ(rig.snapshots().remove("test", "b").error().code, ErrorCode::unknown_snapshot);
  EXPECT_EQ(rig.restore(cache, "b").error().code, ErrorCode::unknown_snapshot);
  EXPECT_TRUE(rig.snapshots().remove("test", std::string(64, 'a')));
  EXPECT_THAT(files_of(rig), IsEmpty());
  EXPECT_THAT(rig.snapshots().list("test", true).value(), IsEmpty());
  EXPECT_EQ(rig.snapshots().list("test", false).error().code, ErrorCode::unknown_cache);
}

TEST(Snapshots, LimitTheirNumber) {
  BlockManagerOptions options;
  options.max_snapshots = 2;
  SnapshotRig rig({.options = options});
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  ASSERT_TRUE(rig.make(cache, "a"));
  ASSERT_TRUE(rig.make(cache, "b"));
  EXPECT_EQ(rig.make(cache, "c").error().code, ErrorCode::too_many);
  ASSERT_TRUE(rig.snapshots().remove("test", "a"));
  EXPECT_TRUE(rig.make(cache, "c"));
}

TEST(Snapshots, KeepTheirCachesConfiguration) {
  SnapshotRig rig;
  CacheConfig made = small_cache({.pinned = 8}, OffloadMode::never);
  made.eviction = EvictionKind::class_hazard;
  ASSERT_TRUE(rig.make(rig.cache(made), "s"));
  EXPECT_EQ(rig.snapshots().configuration(rig.file("s")).value(), made);
}

TEST(Snapshots, OutliveTheirCacheAndItsServer) {
  SnapshotRig rig;
  {
    const auto cache = filled(rig);
    ASSERT_TRUE(rig.make(cache, "s"));
  }
  ASSERT_TRUE(rig.manager->drop_cache("test", true));
  EXPECT_EQ(rig.snapshots().list("test", false)->size(), 1u);
  overwrite(rig.dir.path() / "snapshots/test/t.snapshot.partial", "half");
  rig.manager.reset();
  BlockManagerOptions options;
  options.data_dir = rig.dir.path();
  rig.manager = std::make_unique<BlockManager>(*rig.runtime, *rig.scheduler, rig.clock, *rig.log,
                                               std::move(options));
  EXPECT_THAT(files_of(rig), ElementsAre("s.snapshot"));
  const CacheConfig config = rig.snapshots().configuration(rig.file("s")).value();
  EXPECT_EQ(config, small_cache({.device = 8, .pinned = 8, .disk = 8}));
  const auto cache = rig.cache(config);
  EXPECT_EQ(rig.restore(cache, "s")->blocks_done, 9u);
}

// A snapshot whose read of its only block waits at the disk.
struct Held {
  Held() {
    cache = rig.cache(small_cache({.pinned = 4, .disk = 4}));
    EXPECT_TRUE(rig.put(*cache, {.keys = keys(1, 1), .tier = Tier::disk}));
    gate->close();
    id = rig.snapshots().make(cache, {.name = "s"}).value();
    gate->wait_for_calls(1);
  }
  ~Held() {
    cache.reset();
    rig.manager.reset();
    rig.scheduler.reset();
  }
  fakes::FakedDisk<fakes::GatedDiskIo> gate;
  SnapshotRig rig{Rig::Parts{.disk = gate.wrap()}};
  std::shared_ptr<Cache> cache;
  TransferId id;
};

TEST(Snapshots, RunOneAtATimePerCache) {
  Held held;
  EXPECT_EQ(held.rig.make(held.cache, "t").error().code, ErrorCode::state_conflict);
  EXPECT_EQ(held.rig.snapshots().remove("test", "s").error().code, ErrorCode::state_conflict);
  const auto other = held.rig.cache(named(small_cache({.pinned = 4}), "other"));
  EXPECT_TRUE(held.rig.make(other, "t"));
  held.gate->open();
  EXPECT_EQ(held.rig.wait(held.id).state, TransferState::done);
  EXPECT_TRUE(held.rig.make(held.cache, "t"));
}

TEST(Snapshots, LeaveNothingWhenCancelled) {
  Held held;
  EXPECT_THAT(files_of(held.rig), ElementsAre("s.snapshot.partial"));
  EXPECT_EQ(held.rig.manager->cancel_transfer(held.id)->state, TransferState::running);
  held.gate->open();
  EXPECT_EQ(held.rig.wait(held.id).state, TransferState::cancelled);
  EXPECT_THAT(files_of(held.rig), IsEmpty());
  // A read still under way when the job ended releases its block when it returns.
  EXPECT_TRUE(
      eventually([&] { return count(*held.cache, Tier::disk, SlotState::evictable) == 1; }));
}

TEST(Snapshots, FailOnceTheirCacheIsDropped) {
  SnapshotRig rig;
  const auto cache = filled(rig);
  ASSERT_TRUE(rig.make(cache, "s"));
  ASSERT_TRUE(rig.manager->drop_cache("test", true));
  EXPECT_EQ(rig.restore(cache, "s").error().code, ErrorCode::unknown_cache);
}

}  // namespace
}  // namespace cairn::testing
