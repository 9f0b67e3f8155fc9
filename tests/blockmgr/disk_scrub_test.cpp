// The scrub finds damage on disk before a client reads it.
#include <gmock/gmock.h>

#include <fstream>

#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::UnorderedElementsAreArray;

constexpr std::uint64_t kBlockBytes = 64;

class DiskScrub : public ::testing::Test {
 protected:
  DiskScrub() : DiskScrub(4 * kBlockBytes) {}
  explicit DiskScrub(std::uint64_t bytes_per_s) : rig_({.options = scrubbing(bytes_per_s)}) {
    const auto put = rig_.put(*cache_, {.keys = keys(1, 8), .tier = Tier::disk});
    EXPECT_TRUE(put) << put.error().detail;
  }
  static BlockManagerOptions scrubbing(std::uint64_t bytes_per_s) {
    BlockManagerOptions options;
    options.disk.checkpoint_period_ms = 0;
    options.disk.scrub_bytes_per_s = bytes_per_s;
    options.disk.direct = false;  // the tests write to the file too
    return options;
  }
  void tick() {
    rig_.manager->tick();
    rig_.scheduler->wait_idle();
  }
  // Flips a bit of the block's bytes in the file.
  void damage(std::uint32_t slot) {
    std::fstream file(rig_.dir.path() / "disk/test",
                      std::ios::in | std::ios::out | std::ios::binary);
    const std::uint64_t at = 8192 + slot * 8192 + 4096 + 17;
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
  }
  DiskScrubStats stats() { return cache_->stats().disk_scrub; }

  Rig rig_;
  std::shared_ptr<Cache> cache_ = rig_.cache(small_cache({.pinned = 4, .disk = 16}));
};

class DiskScrubOff : public DiskScrub {
 protected:
  DiskScrubOff() : DiskScrub(0) {}
};

TEST_F(DiskScrubOff, ReadsNothing) {
  tick();
  EXPECT_EQ(stats().blocks, 0u);
}

TEST_F(DiskScrub, ReadsAsMuchAsItsRateAllows) {
  tick();
  EXPECT_EQ(stats().blocks, 4u);
  tick();
  EXPECT_EQ(stats().blocks, 4u);
  rig_.clock.advance(milliseconds(500));
  tick();
  EXPECT_EQ(stats().blocks, 6u);
  EXPECT_EQ(stats().bytes, 6 * kBlockBytes);
}

TEST_F(DiskScrub, BeginsAgainAtTheEnd) {
  for (int i = 0; i < 4; ++i) {
    tick();
    rig_.clock.advance(milliseconds(1000));
  }
  EXPECT_EQ(stats().passes, 2u);
  EXPECT_EQ(stats().blocks, 16u);
  EXPECT_EQ(stats().wrong, 0u);
}

TEST_F(DiskScrub, DropsAndCountsOnlyDamagedBlocks) {
  damage(1);
  damage(6);
  for (int i = 0; i < 2; ++i) {
    tick();
    rig_.clock.advance(milliseconds(1000));
  }
  EXPECT_EQ(stats().wrong, 2u);
  EXPECT_EQ(rig_.manager->totals().checksum_failures[index_of(Tier::disk)], 2u);
  EXPECT_EQ(present_in(*cache_, Tier::disk).size(), 6u);
  for (const BlockKey& each : present_in(*cache_, Tier::disk)) {
    EXPECT_EQ(*rig_.read(*cache_, each), bytes_of(each));
  }
}

TEST_F(DiskScrub, CountOutlivesADroppedCache) {
  const auto wrong = [&] { return rig_.manager->totals().checksum_failures[index_of(Tier::disk)]; };
  damage(1);
  tick();
  EXPECT_EQ(wrong(), 1u);
  cache_.reset();
  ASSERT_TRUE(rig_.manager->drop_cache("test", true));
  EXPECT_EQ(wrong(), 1u);
}

// The second read began while the block was there.
TEST_F(DiskScrubOff, DamageFoundByTwoReadersCountsOnce) {
  damage(1);
  auto first = cache_->read(key(2), {});
  auto second = cache_->read(key(2), {});
  for (Result<BlockReader>* reader : {&first, &second}) {
    const auto read =
        rig_.await<std::span<const iovec>>([&](auto done) { (*reader)->fetch(std::move(done)); });
    EXPECT_EQ(read.error().code, ErrorCode::checksum_mismatch);
  }
  EXPECT_EQ(rig_.manager->totals().checksum_failures[index_of(Tier::disk)], 1u);
}

TEST_F(DiskScrub, SkipsFreeSlots) {
  for (const BlockKey& each : keys(1, 6)) ASSERT_TRUE(cache_->erase(each));
  tick();
  EXPECT_EQ(stats().blocks, 2u);
  EXPECT_THAT(present_in(*cache_, Tier::disk), UnorderedElementsAreArray(keys(7, 2)));
}

TEST_F(DiskScrub, LeavesLeasedBlocksAndTheOrderOfEvictionAlone) {
  const MatchResult held = rig_.match(*cache_, keys(1, 3));
  tick();
  EXPECT_EQ(count(*cache_, Tier::disk, SlotState::committed), 3u);
  ASSERT_TRUE(cache_->release(*held.lease, {}));
  const auto last_use = [&] {
    std::vector<std::int64_t> times;
    for (const auto& block : cache_->list({.tier = Tier::disk}).value().blocks) {
      times.push_back(block.last_use_unix_ms);
    }
    return times;
  };
  const auto before = last_use();
  rig_.clock.advance(milliseconds(1000));
  tick();
  EXPECT_EQ(last_use(), before);
}

}  // namespace
}  // namespace cairn::testing
