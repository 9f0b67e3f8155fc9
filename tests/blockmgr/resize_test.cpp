// Changes a cache's settings and sizes while it is in use. Blocks that fit stay, and no read
// returns another key's bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "blockmgr/index/config_check.hpp"
#include "tests/blockmgr/disk_restart.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn::testing {
namespace {

using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAreArray;

const Cache::Remember kForgotten = [](const CacheConfig&) { return Result<>(); };

CacheChange sizes(std::optional<std::uint32_t> pinned, std::optional<std::uint32_t> disk = {}) {
  CacheChange change;
  change.num_blocks[index_of(Tier::pinned)] = pinned;
  change.num_blocks[index_of(Tier::disk)] = disk;
  return change;
}

void expect_intact(Rig& rig, Cache& cache, const std::vector<BlockKey>& list) {
  for (const BlockKey& each : list) {
    const auto bytes = rig.read(cache, each);
    ASSERT_TRUE(bytes) << bytes.error().detail;
    EXPECT_EQ(*bytes, bytes_of(each));
  }
}

std::uint64_t capacity(const Cache& cache, Tier tier) {
  return cache.stats().tiers[index_of(tier)].capacity_blocks;
}

struct Form {
  const char* name;
  Tier tier;
  LayoutKind layout;
  BlockDim dim;
};

class Resize : public ::testing::TestWithParam<Form> {
 protected:
  CacheConfig config(std::uint32_t blocks) const {
    CacheConfig config = small_cache(GetParam().tier == Tier::disk ? TierSizes{.disk = blocks}
                                                                   : TierSizes{.pinned = blocks});
    TierConfig& tier = *config.tiers[index_of(GetParam().tier)];
    tier.layout = GetParam().layout;
    tier.block_dim = GetParam().dim;
    return config;
  }
  Result<> resize(Cache& cache, std::uint32_t blocks) const {
    CacheChange change;
    change.num_blocks[index_of(GetParam().tier)] = blocks;
    return cache.change(change, kForgotten);
  }
  std::vector<BlockKey> there(const Cache& cache) const {
    return present_in(cache, GetParam().tier);
  }

  Rig rig_;
};

TEST_P(Resize, GrowingKeepsBlocksAndAddsRoom) {
  const auto cache = rig_.cache(config(4));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(1, 4), .tier = GetParam().tier}));
  for (const std::uint32_t blocks : {5u, 12u, 13u}) {
    const auto grown = resize(*cache, blocks);
    ASSERT_TRUE(grown) << grown.error().detail;
    EXPECT_EQ(capacity(*cache, GetParam().tier), blocks);
    EXPECT_EQ(cache->config().tiers[index_of(GetParam().tier)]->num_blocks, blocks);
  }
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(11, 9), .tier = GetParam().tier}));
  expect_intact(rig_, *cache, keys(1, 4));
  expect_intact(rig_, *cache, keys(11, 9));
}

TEST_P(Resize, ShrinkingFollowsTheEvictionOrder) {
  const auto cache = rig_.cache(config(12));
  // Each block is its own prefix. The first four are used again, so 5 to 10 go first.
  for (std::uint64_t n = 1; n <= 12; ++n) {
    ASSERT_TRUE(rig_.put(*cache, {.keys = keys(n, 1), .tier = GetParam().tier}));
  }
  for (std::uint64_t n = 1; n <= 4; ++n) ASSERT_TRUE(rig_.read(*cache, key(n)));
  const auto shrunk = resize(*cache, 6);
  ASSERT_TRUE(shrunk) << shrunk.error().detail;
  rig_.scheduler->wait_idle();
  EXPECT_EQ(capacity(*cache, GetParam().tier), 6u);
  EXPECT_THAT(there(*cache),
              UnorderedElementsAreArray({key(1), key(2), key(3), key(4), key(11), key(12)}));
  expect_intact(rig_, *cache, there(*cache));
  // The order stays too: 11 is the next to go.
  ASSERT_TRUE(rig_.read(*cache, key(12)));
  for (std::uint64_t n = 1; n <= 4; ++n) ASSERT_TRUE(rig_.read(*cache, key(n)));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(20, 1), .tier = GetParam().tier}));
  EXPECT_THAT(there(*cache),
              UnorderedElementsAreArray({key(1), key(2), key(3), key(4), key(12), key(20)}));
}

TEST_P(Resize, ShrunkTierGrowsAgain) {
  const auto cache = rig_.cache(config(8));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(1, 8), .tier = GetParam().tier}));
  for (const std::uint32_t blocks : {3u, 20u, 2u, 9u}) {
    const auto resized = resize(*cache, blocks);
    ASSERT_TRUE(resized) << resized.error().detail;
    rig_.scheduler->wait_idle();
    const auto left = there(*cache);
    EXPECT_EQ(left.size(), std::min<std::size_t>(blocks, left.size()));
    expect_intact(rig_, *cache, left);
    ASSERT_TRUE(rig_.put(*cache, {.keys = keys(100 * blocks, blocks), .tier = GetParam().tier}));
    expect_intact(rig_, *cache, keys(100 * blocks, blocks));
  }
}

// A controller that sends its settings each minute must not use up the allowed changes.
TEST_P(Resize, UnchangedAndRefusedSizesUseNothingUp) {
  const auto cache = rig_.cache(config(4));
  for (int i = 0; i < 17'000; ++i) {
    ASSERT_TRUE(resize(*cache, 4));
    ASSERT_FALSE(resize(*cache, UINT32_MAX));
  }
  EXPECT_TRUE(resize(*cache, 5));
}

TEST_P(Resize, SettingsCanChangeWithoutLimit) {
  const auto cache = rig_.cache(config(4));
  for (std::uint32_t i = 0; i < 17'000; ++i) {
    const auto changed = cache->change({.default_lease_ms = 1'000 + i % 2}, kForgotten);
    ASSERT_TRUE(changed) << changed.error().detail;
  }
  EXPECT_EQ(cache->config().default_lease_ms, 1'001U);
  EXPECT_TRUE(resize(*cache, 5));
}

TEST_P(Resize, LeasedBlocksStayUntilReleased) {
  const auto cache = rig_.cache(config(8));
  for (std::uint64_t n = 1; n <= 8; ++n) {
    ASSERT_TRUE(rig_.put(*cache, {.keys = keys(n, 1), .tier = GetParam().tier}));
  }
  const auto held = rig_.match(*cache, keys(1, 8));
  ASSERT_EQ(held.blocks.size(), 8u);
  const auto refused = resize(*cache, 7);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::leased);
  EXPECT_EQ(capacity(*cache, GetParam().tier), 8u);

  // The last three lie in slots that are removed.
  std::vector<BlockHandle> low(held.blocks.begin(), held.blocks.begin() + 5);
  ASSERT_TRUE(cache->release(*held.lease, {.blocks = low}));
  const auto shrunk = resize(*cache, 4);
  ASSERT_TRUE(shrunk) << shrunk.error().detail;
  EXPECT_THAT(there(*cache), UnorderedElementsAreArray({key(1), key(6), key(7), key(8)}));
  expect_intact(rig_, *cache, keys(6, 3));
  // Blocks that the lease holds can be neither evicted nor deleted.
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(30, 1), .tier = GetParam().tier}));
  EXPECT_THAT(there(*cache), IsSupersetOf(keys(6, 3)));
  EXPECT_EQ(cache->erase(key(7)).error().code, ErrorCode::leased);
  EXPECT_EQ(cache->release(*held.lease, {}).value(), 3u);
  rig_.manager->tick();
  EXPECT_EQ(capacity(*cache, GetParam().tier), 4u);
  EXPECT_EQ(cache->stats().tiers[index_of(GetParam().tier)].leased_blocks, 0u);
  expect_intact(rig_, *cache, keys(6, 3));
  ASSERT_TRUE(cache->erase(key(7)));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(40, 4), .tier = GetParam().tier}));
  expect_intact(rig_, *cache, keys(40, 4));
}

// Clients read while the tier is resized.
TEST_P(Resize, ConcurrentReadersSeeNoWrongByte) {
  const auto cache = rig_.cache(config(40));
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::atomic<int> reads = 0;
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(1, 40), .tier = GetParam().tier}));
  const auto reader = [&] {
    for (std::uint64_t n = 0; !stop; ++n) {
      const BlockKey name = key(1 + n % 40);
      auto block = cache->read(name, {});
      if (!block) continue;
      std::atomic<bool> answered = false;
      block->fetch([&](Result<std::span<const iovec>> pieces) {
        Bytes bytes;
        for (const iovec& piece : pieces ? *pieces : std::span<const iovec>()) {
          const auto* data = static_cast<const std::byte*>(piece.iov_base);
          bytes.insert(bytes.end(), data, data + piece.iov_len);
        }
        if (pieces && bytes != bytes_of(name)) ++wrong;
        ++reads;
        answered = true;
      });
      while (!answered) std::this_thread::yield();
    }
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) readers.emplace_back(reader);
  while (reads < 3) std::this_thread::yield();
  for (const std::uint32_t blocks : {60u, 20u, 45u, 10u, 40u}) {
    const auto resized = resize(*cache, blocks);
    EXPECT_TRUE(resized) << resized.error().detail;
  }
  stop = true;
  for (std::thread& thread : readers) thread.join();
  rig_.scheduler->wait_idle();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(there(*cache).size(), 10u);
  expect_intact(rig_, *cache, there(*cache));
}

INSTANTIATE_TEST_SUITE_P(
    Tiers, Resize,
    ::testing::Values(
        Form{"pinned", Tier::pinned, LayoutKind::fully_contiguous, BlockDim::first},
        Form{"pinned_by_layer", Tier::pinned, LayoutKind::layer_separate, BlockDim::first},
        Form{"pinned_by_outer", Tier::pinned, LayoutKind::layer_separate, BlockDim::second},
        Form{"disk", Tier::disk, LayoutKind::fully_contiguous, BlockDim::first}),
    [](const auto& form) { return form.param.name; });

TEST(Change, NewPoliciesTakeEffect) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4, .disk = 8}, OffloadMode::never));
  CacheChange change;
  change.offload = OffloadMode::on_commit;
  change.default_lease_ms = 1234;
  ASSERT_TRUE(cache->change(change, kForgotten));
  EXPECT_EQ(cache->config().offload, OffloadMode::on_commit);
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2)}));
  EXPECT_THAT(present_in(*cache, Tier::disk), UnorderedElementsAreArray(keys(1, 2)));
  const auto held = rig.match(*cache, keys(1, 1));
  EXPECT_EQ(held.expires_at_unix_ms, rig.clock.unix_ms() + 1234);
  EXPECT_TRUE(cache->release(*held.lease, {}));

  change = {};
  change.offload = OffloadMode::on_evict;
  ASSERT_TRUE(cache->change(change, kForgotten));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(11, 4)}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(21, 4)}));
  EXPECT_THAT(present_in(*cache, Tier::disk), IsSupersetOf(keys(11, 4)));
}

TEST(Change, BadFieldChangesNothing) {
  Rig rig;
  const CacheConfig config = small_cache({.device = 2, .pinned = 4});
  const auto cache = rig.cache(config);
  CacheChange change = sizes(9);
  change.default_lease_ms = 77;
  change.num_blocks[index_of(Tier::device)] = 5;
  EXPECT_EQ(cache->change(change, kForgotten).error().code, ErrorCode::impossible);
  change.num_blocks[index_of(Tier::device)].reset();
  change.num_blocks[index_of(Tier::disk)] = 5;
  EXPECT_EQ(cache->change(change, kForgotten).error().code, ErrorCode::unknown_tier);
  EXPECT_EQ(cache->change(sizes(0), kForgotten).error().code, ErrorCode::impossible_shape);
  const auto full = [](const CacheConfig&) -> Result<> {
    return Error{ErrorCode::no_capacity, "the disk is full"};
  };
  EXPECT_EQ(cache->change(sizes(9), full).error().code, ErrorCode::no_capacity);
  EXPECT_EQ(cache->change(sizes(2), full).error().code, ErrorCode::no_capacity);
  EXPECT_EQ(cache->config(), config);
  EXPECT_EQ(capacity(*cache, Tier::pinned), 4u);
}

// Growth after growth, and after the added memory was given back.
TEST(Change, AnExportedTierGrowsAndShrinksInOnePiece) {
  Rig rig;
  CacheConfig config = small_cache({.pinned = 4});
  config.shape.alignment = 4096;
  const auto cache = rig.cache(config);
  auto before = cache->export_tier(Tier::pinned, false);
  ASSERT_TRUE(before);
  const std::uint64_t block_bytes = before->regions.front().size_bytes / 4;
  for (const std::uint32_t blocks : {8u, 11u, 5u, 2u, 3u, 12u}) {
    ASSERT_TRUE(cache->change(sizes(blocks), kForgotten));
    auto now = cache->export_tier(Tier::pinned, false);
    ASSERT_TRUE(now);
    EXPECT_EQ(now->memory.path, before->memory.path);
    EXPECT_EQ(now->memory.inode, before->memory.inode);
    EXPECT_NE(now->generation, before->generation);
    EXPECT_EQ(now->regions.front().offset_bytes, before->regions.front().offset_bytes);
    EXPECT_GE(now->regions.front().size_bytes, blocks * block_bytes);
    before = std::move(now);
  }
}

TEST(Change, AnExportedTierOfSeveralRegionsKeepsItsMemory) {
  Rig rig;
  CacheConfig config = small_cache({.pinned = 4});
  config.tiers[index_of(Tier::pinned)]->layout = LayoutKind::layer_separate;
  const auto cache = rig.cache(config);
  ASSERT_TRUE(cache->export_tier(Tier::pinned, false));
  EXPECT_EQ(cache->change(sizes(8), kForgotten).error().code, ErrorCode::state_conflict);
  EXPECT_TRUE(cache->change(sizes(2), kForgotten));
  EXPECT_TRUE(cache->change(sizes(4), kForgotten));
}

TEST(Change, ATierThatGrewInSeveralFilesCannotBeExported) {
  Rig rig;
  CacheConfig config = small_cache({.pinned = 4});
  config.tiers[index_of(Tier::pinned)]->layout = LayoutKind::layer_separate;
  const auto cache = rig.cache(config);
  ASSERT_TRUE(cache->change(sizes(8), kForgotten));
  EXPECT_EQ(cache->export_tier(Tier::pinned, false).error().code, ErrorCode::state_conflict);
  ASSERT_TRUE(cache->change(sizes(4), kForgotten));
  EXPECT_TRUE(cache->export_tier(Tier::pinned, false));
}

// Shrinking a tier moves blocks to the lower tier, as any eviction does.
TEST(Change, ShrinkingOffloadsBlocks) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 8, .disk = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 8)}));
  ASSERT_TRUE(cache->change(sizes(3, 20), kForgotten));
  rig.scheduler->wait_idle();
  EXPECT_EQ(rig.match(*cache, keys(1, 8), 0).blocks.size(), 8u);
  EXPECT_EQ(present_in(*cache, Tier::disk).size(), 5u);
  expect_intact(rig, *cache, keys(1, 8));
}

// Eviction keeps a prefix while its continuation lies in another tier. Here it has no room.
TEST(Change, ShrinkingMayCutAPrefix) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4, .disk = 2}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2), .tier = Tier::disk}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(3, 1), .parent = key(2)}));
  const auto shrunk = cache->change(sizes({}, 1), kForgotten);
  ASSERT_TRUE(shrunk) << shrunk.error().detail;
  EXPECT_EQ(capacity(*cache, Tier::disk), 1u);
  EXPECT_THAT(present_in(*cache, Tier::disk), UnorderedElementsAreArray({key(1)}));
  expect_intact(rig, *cache, {key(1), key(3)});
}

class ChangedMemory : public ::testing::TestWithParam<unsigned> {
 protected:
  // Waits until the pages are populated, if the tier is populated before first use.
  static void wait_for_pages(const Cache& cache, std::uint32_t blocks) {
    const auto populated = [&] {
      return cache.stats().tiers[index_of(Tier::pinned)].populated_bytes;
    };
    while (populated() && *populated() < blocks * cache.block_bytes()) std::this_thread::yield();
  }
};

TEST_P(ChangedMemory, ShrunkTierReturnsItsMemory) {
  BlockManagerOptions options;
  options.populate_threads = GetParam();
  Rig rig({.options = options});
  CacheConfig config = small_cache({.pinned = 64});
  config.shape.inner_dim = 16 * 1024;  // 256 KiB per block
  const auto cache = rig.cache(config);
  ASSERT_EQ(GetParam() > 0,
            cache->stats().tiers[index_of(Tier::pinned)].populated_bytes.has_value());
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 64)}));
  const auto resident = [&] {
    const int fd = cache->layout(Tier::pinned)->owned().front().shared_fd();
    struct ::stat status {};
    return ::fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
  };
  wait_for_pages(*cache, 64);
  const std::uint64_t before = resident();
  ASSERT_TRUE(cache->change(sizes(16), kForgotten));
  wait_for_pages(*cache, 16);
  EXPECT_LE(resident(), before / 4 + 4096);
  ASSERT_TRUE(cache->change(sizes(64), kForgotten));
  wait_for_pages(*cache, 64);
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(101, 48)}));
  for (const BlockKey& each : present_in(*cache, Tier::pinned)) {
    EXPECT_EQ(rig.read(*cache, each).value(), bytes_of(each, cache->block_bytes()));
  }
}

INSTANTIATE_TEST_SUITE_P(PopulateThreads, ChangedMemory, ::testing::Values(0, 2));

// The server dies at each place of a change. The next one finds the old or the new size.
class ResizeCrash : public ::testing::TestWithParam<const char*> {};

TEST_P(ResizeCrash, CrashAtAnyPointLosesNothingThatFits) {
  for (const std::uint32_t size : {24u, 6u}) {
    fakes::TempDir copy;
    CacheConfig config = small_cache({.disk = 12});
    CacheConfig remembered = config;
    CacheConfig at_crash = config;
    bool crashed = false;
    std::filesystem::path folder;
    Rig::Parts parts{.options = by_hand()};
    parts.options.failpoint = [&](std::string_view place) {
      if (place != GetParam() || crashed) return;
      crashed = true;
      at_crash = remembered;
      std::filesystem::copy(folder, copy.path(), std::filesystem::copy_options::recursive);
    };
    Rig rig(std::move(parts));
    folder = rig.dir.path();
    const auto cache = rig.cache(config);
    for (std::uint64_t n = 1; n <= 12; ++n) {
      ASSERT_TRUE(rig.put(*cache, {.keys = keys(n, 1), .tier = Tier::disk}));
    }
    const auto remember = [&](const CacheConfig& wanted) {
      remembered = wanted;
      return Result<>();
    };
    ASSERT_TRUE(cache->change(sizes({}, size), remember));
    rig.scheduler->wait_idle();
    if (!crashed) continue;  // growing and shrinking pass different places

    BlockManagerOptions options = by_hand();
    options.data_dir = copy.path();
    BlockManager after(*rig.runtime, *rig.scheduler, rig.clock, *rig.log, options);
    const auto back = after.create_cache(at_crash);
    ASSERT_TRUE(back) << back.error().detail;
    const auto there = present_in(*back->cache, Tier::disk);
    EXPECT_THAT(there, IsSupersetOf(keys(7, 6))) << size;
    EXPECT_EQ(there.size(), size == 24u ? 12u : std::max<std::size_t>(6, there.size()));
    for (const BlockKey& each : there) {
      EXPECT_EQ(rig.read(*back->cache, each).value(), bytes_of(each));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, ResizeCrash,
                         ::testing::Values("resize.grown", "resize.remembered", "resize.written",
                                           "resize.noted", "resize.labelled", "resize.cut"),
                         [](const auto& place) {
                           std::string name = place.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST_F(DiskRestart, ResizedTierKeepsItsBlocksAndSize) {
  put(keys(1, 10));
  for (const std::uint32_t size : {30u, 8u}) {
    config_.tiers[index_of(Tier::disk)]->num_blocks = size;
    ASSERT_TRUE(cache_->change(sizes({}, size), kForgotten));
    rig_.scheduler->wait_idle();
    crash_and_restart();
    EXPECT_THAT(there(), UnorderedElementsAreArray(present_in(*cache_, Tier::disk)));
    expect_whole(there());
    EXPECT_EQ(back_->stats().tiers[index_of(Tier::disk)].capacity_blocks, size);
  }
}

TEST_F(DiskRestart, FewerSlotsFollowTheEvictionOrder) {
  for (std::uint64_t n = 1; n <= 12; ++n) put(keys(n, 1));
  for (std::uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(rig_.read(*cache_, key(n)));
  rig_.manager->checkpoint();  // it stores the uses
  crash();
  config_.tiers[index_of(Tier::disk)]->num_blocks = 5;
  restart();
  EXPECT_EQ(back_->config().tiers[index_of(Tier::disk)]->num_blocks, 5u);
  EXPECT_EQ(back_->stats().tiers[index_of(Tier::disk)].capacity_blocks, 5u);
  EXPECT_THAT(there(), UnorderedElementsAreArray({key(1), key(2), key(3), key(11), key(12)}));
  expect_whole(there());
}

// Found by the simulation: after a shrink and a kill the index still had entries beyond the end.
// When the tier grew again, the next start restored them, erased or not.
TEST_F(DiskRestart, BlocksCutOffByAShrinkStayGone) {
  for (std::uint64_t n = 1; n <= 8; ++n) put(keys(n, 1));
  const std::vector<std::filesystem::path> files = {crash() / "test"};
  {
    // Leaves the file as a shrink does whose wait timed out.
    const auto file =
        open_slot_file({.paths = files, .owner = "test", .shape = tier_shape(config_, Tier::disk)});
    ASSERT_TRUE(file) << file.error().detail;
    ASSERT_TRUE(label_slot_file(files, file->layout, 4));
  }
  config_.tiers[index_of(Tier::disk)]->num_blocks = 4;
  restart();
  const auto before = there();
  ASSERT_EQ(before.size(), 4U);
  ASSERT_TRUE(back_->change(sizes({}, 16), kForgotten));
  rig_.scheduler->wait_idle();
  fakes::TempDir again;
  std::filesystem::copy(copy_->path(), again.path(), std::filesystem::copy_options::recursive);
  config_.tiers[index_of(Tier::disk)]->num_blocks = 16;
  BlockManagerOptions options = by_hand();
  options.data_dir = again.path();
  BlockManager third(*rig_.runtime, *rig_.scheduler, rig_.clock, *rig_.log, options);
  const auto cache = third.create_cache(config_).value().cache;
  EXPECT_THAT(present_in(*cache, Tier::disk), UnorderedElementsAreArray(before));
}

TEST(Drain, CopiesEveryBlockToTheLowestTier) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.device = 4, .pinned = 6, .disk = 16}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4), .tier = Tier::device}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(11, 6), .tier = Tier::pinned}));
  const auto id = cache->drain({});
  ASSERT_TRUE(id);
  rig.scheduler->wait_idle();
  EXPECT_EQ(rig.manager->transfer(*id)->state, TransferState::done);
  EXPECT_EQ(present_in(*cache, Tier::disk).size(), 10u);
  // There is nothing left to do.
  const auto again = cache->drain(Tier::disk);
  ASSERT_TRUE(again);
  EXPECT_EQ(rig.manager->transfer(*again)->state, TransferState::done);
}

TEST(Drain, RefusesMoreThanTheTierHolds) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 6, .disk = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 6)}));
  EXPECT_EQ(cache->drain({}).error().code, ErrorCode::no_capacity);
}

}  // namespace
}  // namespace cairn::testing
