// Restores that replace what a cache holds: all of it, or nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>

#include "blockmgr/index/config_check.hpp"
#include "blockmgr/snapshot/snapshot_reader.hpp"
#include "tests/base/eventually.hpp"
#include "tests/blockmgr/snapshot_rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/faulty_disk_io.hpp"
#include "tests/fakes/gated_disk_io.hpp"

namespace cairn::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// A cache with chain 1..3 saved, which then holds chain 11..14 alone, the last one on disk.
std::shared_ptr<Cache> saved_then_changed(SnapshotRig& rig, bool compress = false) {
  const auto cache = rig.cache(small_cache({.pinned = 4, .disk = 4}));
  EXPECT_TRUE(rig.put(*cache, {.keys = keys(1, 2), .priority = 70}));
  EXPECT_TRUE(rig.put(*cache, {.keys = keys(3, 1), .tier = Tier::disk, .parent = key(2)}));
  EXPECT_TRUE(rig.make(cache, "s", compress));
  EXPECT_TRUE(cache->clear({}));
  EXPECT_TRUE(rig.put(*cache, {.keys = keys(11, 3)}));
  EXPECT_TRUE(rig.put(*cache, {.keys = keys(14, 1), .tier = Tier::disk, .parent = key(13)}));
  return cache;
}

std::size_t intact(SnapshotRig& rig, Cache& cache, const std::vector<BlockKey>& names) {
  std::size_t found = 0;
  for (const BlockKey& name : names) {
    const auto bytes = rig.read(cache, name);
    if (!bytes) continue;
    EXPECT_EQ(*bytes, bytes_of(name));
    ++found;
  }
  return found;
}

void expect_unchanged(SnapshotRig& rig, Cache& cache) {
  EXPECT_EQ(intact(rig, cache, keys(11, 4)), 4u);
  EXPECT_EQ(intact(rig, cache, keys(1, 3)), 0u);
}

void expect_nothing_held(const Cache& cache) {
  for (const Tier tier : kTiers) {
    EXPECT_EQ(count(cache, tier, SlotState::committed), 0u);
    EXPECT_EQ(count(cache, tier, SlotState::allocated), 0u);
  }
  EXPECT_EQ(cache.stats().leases, 0u);
}

class SnapshotReplace : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Compressed, SnapshotReplace, ::testing::Bool());

TEST_P(SnapshotReplace, LeavesTheSnapshotsBlocksAndNoOthers) {
  SnapshotRig rig;
  const auto cache = saved_then_changed(rig, GetParam());
  const TransferStatus status = rig.replace(cache, "s").value();
  EXPECT_EQ(status.state, TransferState::done);
  EXPECT_EQ(status.blocks_done, 3u);
  EXPECT_EQ(status.blocks_total, 3u);
  EXPECT_EQ(intact(rig, *cache, keys(1, 3)), 3u);
  EXPECT_EQ(intact(rig, *cache, keys(11, 4)), 0u);
  EXPECT_EQ(present_in(*cache, Tier::disk), keys(3, 1));
  const auto list = cache->list({.limit = 10}).value();
  ASSERT_EQ(list.blocks.size(), 3u);
  for (const BlockInfo& block : list.blocks) {
    if (block.key == key(2)) {
      EXPECT_EQ(block.parent, key(1));
    }
    EXPECT_EQ(block.priority, block.key == key(3) ? 50 : 70);
  }
  expect_nothing_held(*cache);
}

TEST_P(SnapshotReplace, EventsTellRemovedThenClearedThenStored) {
  SnapshotRig rig;
  const auto cache = saved_then_changed(rig, GetParam());
  const std::uint64_t begin = rig.manager->events().next_id();
  ASSERT_TRUE(rig.replace(cache, "s"));
  std::vector<BlockEvent> events(64);
  events.resize(rig.manager->events().read(begin, events).count);
  ASSERT_EQ(events.size(), 4u + 1 + 3);
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].kind, i < 4    ? BlockEventKind::removed
                              : i == 4 ? BlockEventKind::cleared
                                       : BlockEventKind::stored)
        << i;
  }
  EXPECT_EQ(events[4].tier, std::nullopt);
}

TEST_P(SnapshotReplace, AWrongByteInTheLastBlockChangesNothing) {
  SnapshotRig rig;
  const auto cache = saved_then_changed(rig, GetParam());
  std::uint64_t end = 0;  // of the data, which the index follows
  {
    const SnapshotIo io;
    auto reader = SnapshotReader::open(io, rig.file("s")).value();
    ASSERT_TRUE(reader->load_index());
    for (auto block = reader->next(); block; block = reader->next()) {
      end = block->offset_bytes + block->record.stored_bytes;
    }
  }
  std::string bytes = contents(rig.file("s"));
  bytes[end - 1] = static_cast<char>(bytes[end - 1] ^ 1);
  overwrite(rig.file("s"), bytes);
  EXPECT_EQ(rig.replace(cache, "s").error().code, ErrorCode::broken_snapshot);
  expect_unchanged(rig, *cache);
}

TEST_P(SnapshotReplace, NoFileChangesNothing) {
  SnapshotRig rig;
  const auto cache = saved_then_changed(rig, GetParam());
  EXPECT_EQ(rig.replace(cache, "other").error().code, ErrorCode::unknown_snapshot);
  expect_unchanged(rig, *cache);
}

TEST_P(SnapshotReplace, EachFailingFileCallChangesNothingOrLeavesAPartOfTheSnapshot) {
  std::atomic<int> left{0};
  std::atomic<bool> fired{false};
  std::atomic<bool> emptied{false};
  BlockManagerOptions options;
  options.snapshot_file_fault = [&](std::string_view) {
    if (left == 0 || --left > 0) return 0;
    fired = true;
    return EIO;
  };
  options.failpoint = [&](std::string_view place) {
    if (place == "restore.emptied") emptied = true;
  };
  int unchanged = 0;
  int partly = 0;
  for (int n = 1;; ++n) {
    SnapshotRig rig({.options = options});
    const auto cache = saved_then_changed(rig, GetParam());
    fired = emptied = false;
    left = n;
    const auto done = rig.replace(cache, "s");
    left = 0;
    if (done) {
      EXPECT_EQ(intact(rig, *cache, keys(1, 3)), 3u) << "call " << n;
      if (!fired) break;  // without a failure
      continue;           // a mapping that failed, and was read instead
    }
    EXPECT_EQ(done.error().code, ErrorCode::io_error) << "call " << n;
    expect_nothing_held(*cache);
    if (!emptied) {
      ++unchanged;
      expect_unchanged(rig, *cache);
      continue;
    }
    ++partly;
    EXPECT_EQ(intact(rig, *cache, keys(11, 4)), 0u) << "call " << n;
    EXPECT_LT(intact(rig, *cache, keys(1, 3)), 3u) << "call " << n;
  }
  EXPECT_GE(unchanged, 5);
  // An uncompressed file is copied from its mapping, which no call can fail.
  EXPECT_EQ(partly > 0, GetParam());
}

TEST(SnapshotReplacement, EachFailingDiskCallLeavesAPartOfTheSnapshotOrAllOfIt) {
  int failed = 0;
  for (std::uint64_t n = 1; n < 100; ++n) {
    fakes::FakedDisk<fakes::FaultyDiskIo> faulty;
    SnapshotRig rig({.disk = faulty.wrap()});
    const auto cache = saved_then_changed(rig);
    const std::uint64_t before = faulty->failures();
    faulty->fail_call(n);
    const auto done = rig.replace(cache, "s");
    const bool fired = faulty->failures() > before;
    faulty->fail_call(0);
    if (!done) {
      ++failed;
      EXPECT_LT(intact(rig, *cache, keys(1, 3)), 3u) << "call " << n;
    } else {
      EXPECT_EQ(intact(rig, *cache, keys(1, 3)), 3u) << "call " << n;
    }
    EXPECT_EQ(intact(rig, *cache, keys(11, 4)), 0u) << "call " << n;
    expect_nothing_held(*cache);
    rig.manager.reset();
    rig.scheduler.reset();
    if (!fired) break;
  }
  EXPECT_GE(failed, 1);
}

TEST(SnapshotReplacement, ALeaseInTheWayIsRefusedAndChangesNothing) {
  SnapshotRig rig;
  const auto cache = saved_then_changed(rig);
  const MatchResult held = rig.match(*cache, keys(11, 2));
  const Error error = rig.replace(cache, "s").error();
  EXPECT_EQ(error.code, ErrorCode::leased);
  EXPECT_THAT(error.detail, HasSubstr("leases hold 2 blocks"));
  expect_unchanged(rig, *cache);
  ASSERT_TRUE(cache->release(*held.lease));
  EXPECT_TRUE(rig.replace(cache, "s"));
  EXPECT_EQ(intact(rig, *cache, keys(1, 3)), 3u);
}

// Without the check at the moment of the change, the leased block would be dropped.
TEST(SnapshotReplacement, ALeaseThatComesWhileTheFileIsCheckedChangesNothing) {
  std::atomic<bool> armed{false};
  std::function<void()> on_read;
  BlockManagerOptions options;
  options.snapshot_file_fault = [&](std::string_view call) {
    if (call == "read" && armed.exchange(false)) on_read();
    return 0;
  };
  SnapshotRig rig({.options = options});
  const auto cache = saved_then_changed(rig, true);
  std::atomic<int> reads{0};
  on_read = [&] {
    // The first reads are of the file's ends and its index, before the request's own check.
    if (++reads < 5) {
      armed = true;
      return;
    }
    MatchResult held;
    const auto names = keys(11, 1);
    EXPECT_TRUE(cache->match(views(names), std::nullopt, held));
  };
  armed = true;
  const auto id = rig.snapshots().restore(cache, {.file = rig.file("s"), .replace = true});
  ASSERT_TRUE(id) << id.error().detail;
  EXPECT_EQ(rig.wait(*id).error->code, ErrorCode::leased);
  EXPECT_EQ(reads, 5);
  expect_unchanged(rig, *cache);
}

TEST(SnapshotReplacement, WhatDoesNotFitIntoTheEmptyCacheChangesNothing) {
  SnapshotRig rig;
  const auto big = rig.cache(small_cache({.pinned = 8}));
  ASSERT_TRUE(rig.put(*big, {.keys = keys(1, 3)}));
  ASSERT_TRUE(rig.put(*big, {.keys = keys(21, 4)}));  // used last
  ASSERT_TRUE(rig.make(big, "s"));
  CacheConfig config = small_cache({.pinned = 6});
  config.name = "other";
  const auto cache = rig.cache(config);
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(11, 6)}));
  const Error error = rig.replace(cache, "s").error();
  EXPECT_EQ(error.code, ErrorCode::no_capacity);
  EXPECT_THAT(error.detail, HasSubstr("7 blocks"));
  EXPECT_EQ(intact(rig, *cache, keys(11, 6)), 6u);
  const TransferStatus status = rig.replace(cache, "s", true).value();
  EXPECT_EQ(status.blocks_total, 6u);
  EXPECT_EQ(intact(rig, *cache, keys(21, 4)), 4u);
  EXPECT_EQ(intact(rig, *cache, keys(1, 2)), 2u);
  EXPECT_EQ(intact(rig, *cache, keys(11, 6)), 0u);
}

TEST(SnapshotReplacement, WaitsForABlockThatIsBeingMoved) {
  fakes::FakedDisk<fakes::GatedDiskIo> gate;
  SnapshotRig rig{Rig::Parts{.disk = gate.wrap()}};
  const auto cache = saved_then_changed(rig);
  gate->close();
  TransferRequest move{.keys = keys(12, 1), .to = Tier::disk};
  ASSERT_TRUE(cache->transfer(move));
  gate->wait_for_calls(1);
  const auto id = rig.snapshots().restore(cache, {.file = rig.file("s"), .replace = true}).value();
  EXPECT_THAT(cache->contains(views(keys(11, 3))), Each(true));
  gate->open();
  EXPECT_EQ(rig.wait(id).state, TransferState::done);
  EXPECT_EQ(intact(rig, *cache, keys(1, 3)), 3u);
  EXPECT_EQ(intact(rig, *cache, keys(11, 4)), 0u);
  rig.manager.reset();
  rig.scheduler.reset();
}

TEST(SnapshotReplacement, CannotBeCancelledOnceTheCacheIsEmpty) {
  std::function<void()> on_emptied = [] {};
  BlockManagerOptions options;
  options.failpoint = [&](std::string_view place) {
    if (place == "restore.emptied") on_emptied();
  };
  SnapshotRig rig({.options = options});
  const auto cache = saved_then_changed(rig);
  std::promise<TransferId> started;
  auto id = started.get_future().share();
  on_emptied = [&] { EXPECT_TRUE(rig.manager->cancel_transfer(id.get())); };
  started.set_value(
      rig.snapshots().restore(cache, {.file = rig.file("s"), .replace = true}).value());
  EXPECT_EQ(rig.wait(id.get()).state, TransferState::done);
  EXPECT_EQ(intact(rig, *cache, keys(1, 3)), 3u);
}

// A writer that begins once the cache is empty, before any block of the snapshot is loaded, and
// takes all that it can get.
TEST(SnapshotReplacement, WritersTakeNoneOfItsRoom) {
  std::function<void()> on_emptied = [] {};
  BlockManagerOptions options;
  options.failpoint = [&](std::string_view place) {
    if (place == "restore.emptied") on_emptied();
  };
  SnapshotRig rig({.options = options});
  const auto cache = saved_then_changed(rig);
  std::thread writer;
  std::atomic<bool> stop{false};
  on_emptied = [&] {
    writer = std::thread([&] {
      while (!stop) {
        std::promise<Result<Allocation>> got;
        cache->allocate({.count = 2, .tier = Tier::pinned},
                        [&got](Result<Allocation> answer) { got.set_value(std::move(answer)); });
        static_cast<void>(got.get_future().get());  // what it gets it holds
      }
    });
  };
  const auto replaced = rig.replace(cache, "s");
  stop = true;
  writer.join();
  ASSERT_TRUE(replaced) << replaced.error().detail;
  EXPECT_EQ(replaced->blocks_done, 3u);
}

// Blocks of two sizes in slabs.
TEST(SnapshotReplacement, KvGroupsShareTheRoomAsPlanned) {
  const auto group = [](const std::string& name, KvGroupKind kind, std::uint32_t layers) {
    KvGroupConfig made{.name = name, .kind = kind};
    made.shape = {.num_layers = layers,
                  .outer_dim = 1,
                  .page_size = kind == KvGroupKind::state ? 1u : 4u,
                  .inner_dim = 8,
                  .dtype_width_bytes = 2,
                  .alignment = 16};
    return made;
  };
  CacheConfig config = small_cache({.pinned = 1});
  config.shape = {};
  config.block_tokens = 4;
  config.kv_groups = {group("full", KvGroupKind::full, 2), group("state", KvGroupKind::state, 24)};
  const SlotSizes sizes = slot_sizes(config, Tier::pinned);
  ASSERT_TRUE(sizes.are_several());
  config.tiers[index_of(Tier::pinned)]->num_blocks = 12 * sizes.slab_units;
  SnapshotRig rig;
  const auto cache = rig.cache(config);
  const auto store = [&](std::uint64_t number, KvGroupNumber kv_group) {
    const BlockKey name(key(number).view().in(kv_group));
    AllocateRequest request{.count = 1, .tier = Tier::pinned};
    request.group_counts.assign(kv_group + std::size_t{1}, 0);
    request.group_counts.back() = 1;
    const auto taken = rig.allocate(*cache, request).value();
    const auto bytes = bytes_of(name, block_bytes(config.shape_of(kv_group)));
    EXPECT_TRUE(rig.write(*cache, {.lease = taken.lease, .block = taken.blocks[0]}, bytes));
    EXPECT_TRUE(rig.commit(*cache, taken.lease, {{.handle = taken.blocks[0], .key = name}}));
    EXPECT_TRUE(cache->release(taken.lease));
  };
  for (std::uint64_t n = 1; n <= 12; ++n) {
    store(n, 0);
    if (n % 3 == 0) store(n, 1);
  }
  const auto before = cache->stats().tiers[index_of(Tier::pinned)].kv_groups;
  ASSERT_EQ(before[1].blocks, 4u);
  ASSERT_TRUE(rig.make(cache, "s"));
  ASSERT_TRUE(cache->clear({}));
  for (std::uint64_t n = 101; n <= 112; ++n) store(n, 1);  // slabs of the other size
  const TransferStatus status = rig.replace(cache, "s").value();
  EXPECT_EQ(status.blocks_done, 16u);
  const auto after = cache->stats().tiers[index_of(Tier::pinned)].kv_groups;
  EXPECT_EQ(after[0].blocks, before[0].blocks);
  EXPECT_EQ(after[1].blocks, before[1].blocks);
  for (std::uint64_t n = 1; n <= 12; ++n) {
    const BlockKey state(key(n).view().in(1));
    EXPECT_EQ(rig.read(*cache, key(n)).value(), bytes_of(key(n), block_bytes(config.shape_of(0))));
    if (n % 3 == 0) {
      EXPECT_EQ(rig.read(*cache, state).value(), bytes_of(state, block_bytes(config.shape_of(1))));
    }
  }
}

TEST(SnapshotReplacement, ATierThatChangesItsSizeMeanwhileIsRefused) {
  std::function<void()> on_read = [] {};
  std::atomic<int> reads{0};
  BlockManagerOptions options;
  options.snapshot_file_fault = [&](std::string_view call) {
    if (call == "read" && ++reads == 5) on_read();
    return 0;
  };
  SnapshotRig rig({.options = options});
  const auto cache = saved_then_changed(rig, true);
  reads = 0;
  on_read = [&] {
    CacheChange change;
    change.num_blocks[index_of(Tier::pinned)] = 5;
    EXPECT_TRUE(cache->change(change, [](const CacheConfig&) { return Result<>(); }));
  };
  const auto id = rig.snapshots().restore(cache, {.file = rig.file("s"), .replace = true}).value();
  EXPECT_EQ(rig.wait(id).error->code, ErrorCode::state_conflict);
  expect_unchanged(rig, *cache);
}

}  // namespace
}  // namespace cairn::testing
