// Pins: blocks that clients keep from eviction until a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/disk_restart.hpp"
#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

constexpr std::uint32_t kTtlMs = 10'000;
const auto kA = std::make_shared<const std::string>("a");
const auto kB = std::make_shared<const std::string>("b");

class PinsTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kSlots = 16;

  PinsTest() { use({.pinned = kSlots}); }

  void use(TierSizes sizes) {
    CacheConfig config = small_cache(sizes);
    config.name = "pins" + std::to_string(++caches_);
    config.pins = {.max_share = 0.5, .max_share_of_token = 0.25};
    cache_ = rig_.cache(config);
  }
  // One prefix.
  void store(const std::vector<BlockKey>& list, Tier tier = Tier::pinned) {
    const auto done = rig_.put(*cache_, {.keys = list, .tier = tier});
    ASSERT_TRUE(done) << done.error().detail;
  }
  PinResult pin(const std::vector<BlockKey>& list, const LeaseHolder& holder = {},
                bool refresh_on_hit = false) {
    return cache_
        ->pin({.keys = list, .ttl_ms = kTtlMs, .refresh_on_hit = refresh_on_hit, .holder = holder})
        .value();
  }
  // Stores as many other blocks as fit ten times into the tier.
  void flood(Tier tier = Tier::pinned) {
    for (std::uint32_t i = 0; i < 10 * kSlots; ++i) store({key(next_++)}, tier);
  }
  void pass(std::int64_t ms) {
    rig_.clock.advance_ms(ms);
    rig_.manager->tick();
  }
  // Which of the keys are in the tier.
  std::vector<BlockKey> in(Tier tier, const std::vector<BlockKey>& list) {
    std::vector<BlockKey> there;
    for (const BlockKey& each : list) {
      if (is_in(*cache_, tier, each)) there.push_back(each);
    }
    return there;
  }

  Rig rig_;
  std::shared_ptr<Cache> cache_;
  int caches_ = 0;
  std::uint64_t next_ = 1'000;
};

TEST_F(PinsTest, SurviveAFloodOfTenCapacities) {
  const auto list = keys(1, 6);
  store(list);
  const PinResult pinned = pin(list);
  EXPECT_EQ(pinned.blocks, 6);
  flood();
  EXPECT_THAT(in(Tier::pinned, list), ElementsAreArray(list));
  for (const BlockKey& each : list) EXPECT_EQ(rig_.read(*cache_, each).value(), bytes_of(each));
}

// Regression: the end of a read took the copy that a pin held, because a move had begun before.
TEST_F(PinsTest, KeepTheCopyThatAMoveLeavesDuringARead) {
  for (const bool is_pinned_before : {false, true}) {
    use({.pinned = kSlots, .disk = kSlots});
    const auto list = keys(1, 1);
    store(list);
    if (is_pinned_before) {
      EXPECT_EQ(pin(list, kA).blocks, 1);
    }
    std::optional<BlockReader> reader(cache_->read(key(1), {}).value());
    rig_.transfer(*cache_, {.keys = list, .to = Tier::disk, .move = true});
    EXPECT_EQ(pin(list, kB).blocks, 1);
    flood(Tier::disk);
    reader.reset();
    flood();
    EXPECT_THAT(in(Tier::pinned, list), ElementsAreArray(list)) << is_pinned_before;
  }
}

TEST_F(PinsTest, EndWithTheirTime) {
  const auto list = keys(1, 6);
  store(list);
  EXPECT_TRUE(pin(list).pin);
  pass(kTtlMs - 1);
  flood();
  EXPECT_THAT(in(Tier::pinned, list), ElementsAreArray(list));
  pass(1);
  EXPECT_THAT(cache_->pins({}).pins, IsEmpty());
  flood();
  EXPECT_THAT(in(Tier::pinned, list), IsEmpty());
}

TEST_F(PinsTest, OfATierKeepAShareOfIt) {
  const auto list = keys(1, 12);
  store(list);
  const PinResult pinned = pin(list);
  EXPECT_EQ(pinned.blocks, kSlots / 2);
  EXPECT_EQ(pinned.budget, 12 - kSlots / 2);
  flood();
  // The beginning of the prefix: a match finds it.
  EXPECT_THAT(in(Tier::pinned, list), ElementsAreArray(keys(1, kSlots / 2)));
}

TEST_F(PinsTest, OfOneTokenKeepASmallerShare) {
  store(keys(1, 12));
  EXPECT_EQ(pin(keys(1, 12), kA).blocks, kSlots / 4);
  EXPECT_EQ(pin(keys(1, 12), kA).blocks, kSlots / 4) << "the same blocks count once";
  EXPECT_EQ(pin(keys(5, 8), kA).blocks, 0);
  EXPECT_EQ(pin(keys(5, 8), kB).blocks, kSlots / 4) << "another token has its own share";
}

// An adversary pins all that it stores, again and again. The others keep three quarters.
TEST_F(PinsTest, OfOneTokenLeaveTheOthersTheirBlocks) {
  for (std::uint64_t first = 1; first < 200; first += 8) {
    store(keys(first, 8));
    pin(keys(first, 8), kA);
  }
  const auto others = keys(500, 3 * kSlots / 4);
  store(others);
  EXPECT_THAT(in(Tier::pinned, others), ElementsAreArray(others));
  EXPECT_EQ(rig_.match(*cache_, others, 0).blocks.size(), others.size());
}

// Otherwise one pin would keep a prefix of any length, beyond every bound.
TEST_F(PinsTest, KeepOnlyTheBlocksThatTheyName) {
  const auto list = keys(1, 8);
  store(list);
  EXPECT_EQ(pin({list.back()}).blocks, 1);
  flood();
  EXPECT_THAT(in(Tier::pinned, list), ElementsAreArray({list.back()}));
}

TEST_F(PinsTest, GoDownWithTheirBlocks) {
  use({.pinned = kSlots, .disk = kSlots});
  const auto list = keys(1, 4);
  store(list);
  EXPECT_EQ(pin(list).blocks, 4);
  rig_.transfer(*cache_, {.keys = list, .to = Tier::disk, .move = true});
  EXPECT_THAT(in(Tier::pinned, list), IsEmpty());
  const CacheStats stats = cache_->stats();
  EXPECT_EQ(stats.tiers[index_of(Tier::pinned)].protected_blocks, 0);
  EXPECT_EQ(stats.tiers[index_of(Tier::disk)].protected_blocks, 4);
  flood(Tier::disk);
  EXPECT_THAT(in(Tier::disk, list), ElementsAreArray(list));
}

// Regression: a pin that a client made during a demotion lost the block at the end of it.
TEST_F(PinsTest, KeepTheCopyOfABlockForWhichTheOtherTierHasNoShare) {
  use({.pinned = kSlots, .disk = 4});
  const auto list = keys(1, 4);
  store(list);
  EXPECT_EQ(pin(list).blocks, 4);
  rig_.transfer(*cache_, {.keys = list, .to = Tier::disk, .move = true});
  const CacheStats stats = cache_->stats();
  EXPECT_EQ(stats.tiers[index_of(Tier::disk)].protected_blocks, 2);
  EXPECT_EQ(stats.tiers[index_of(Tier::pinned)].protected_blocks, 2);
  EXPECT_EQ(cache_->pins({}).pins.at(0).blocks, 4);
  EXPECT_EQ(in(Tier::pinned, list).size(), 2);
  EXPECT_THAT(in(Tier::disk, list), ElementsAreArray(list));
}

TEST_F(PinsTest, LetDeletedBlocksGo) {
  const auto list = keys(1, 8);
  store(list);
  EXPECT_EQ(pin(list).blocks, 8);
  ASSERT_TRUE(cache_->erase(list[7]));
  EXPECT_EQ(count(*cache_, Tier::pinned, SlotState::free), kSlots - 7);
  EXPECT_EQ(cache_->pins({}).pins.at(0).blocks, 7);
  store({key(50)});
  EXPECT_EQ(pin({key(50)}).blocks, 1) << "the deleted block's share is free";
}

TEST_F(PinsTest, AreNotEvictedOnRequest) {
  const auto list = keys(1, 4);
  store(list);
  EXPECT_EQ(pin(list).blocks, 4);
  EXPECT_EQ(rig_.evict(*cache_, list, std::nullopt)->leased, 4);
  EXPECT_EQ(cache_->clear(std::nullopt)->leased, 4);
  EXPECT_THAT(in(Tier::pinned, list), ElementsAreArray(list));
}

TEST_F(PinsTest, OfTheSameBlockEndOneByOne) {
  store({key(1)});
  const PinResult first = pin({key(1)});
  pass(kTtlMs / 2);
  const PinResult second = pin({key(1)});
  ASSERT_TRUE(first.pin && second.pin);
  EXPECT_EQ(cache_->stats().tiers[index_of(Tier::pinned)].protected_blocks, 1);
  EXPECT_EQ(cache_->end_pin(*first.pin, std::nullopt), 1);
  flood();
  EXPECT_THAT(in(Tier::pinned, {key(1)}), ElementsAreArray({key(1)}));
  EXPECT_EQ(cache_->end_pin(*second.pin, std::nullopt), 1);
  EXPECT_EQ(cache_->end_pin(*second.pin, std::nullopt), std::nullopt);
  flood();
  EXPECT_THAT(in(Tier::pinned, {key(1)}), IsEmpty());
}

TEST_F(PinsTest, AreRefreshedByAHitWhereAsked) {
  store({key(1)});
  store({key(2)});
  EXPECT_TRUE(pin({key(1)}, {}, true).pin);
  EXPECT_TRUE(pin({key(2)}).pin);
  pass(kTtlMs - 1);
  rig_.match(*cache_, {key(1)}, 0);
  rig_.match(*cache_, {key(2)}, 0);
  pass(kTtlMs - 1);
  flood();
  EXPECT_THAT(in(Tier::pinned, keys(1, 2)), ElementsAreArray({key(1)}));
  pass(1);
  EXPECT_THAT(cache_->pins({}).pins, IsEmpty());
}

TEST_F(PinsTest, OfOneTokenAreTakenOffByItAlone) {
  store(keys(1, 2));
  EXPECT_EQ(pin(keys(1, 2), kA).blocks, 2);
  EXPECT_EQ(cache_->unpin(keys(1, 2), kB).value(), 0);
  EXPECT_EQ(cache_->unpin(keys(1, 1), kA).value(), 1);
  EXPECT_EQ(cache_->pins({}).pins.at(0).blocks, 1);
  EXPECT_EQ(cache_->unpin(keys(1, 2), kA).value(), 1);
  EXPECT_THAT(cache_->pins({}).pins, IsEmpty());
  flood();
  EXPECT_THAT(in(Tier::pinned, keys(1, 2)), IsEmpty());
}

TEST_F(PinsTest, AreListedToTheirToken) {
  store(keys(1, 2));
  const PinResult of_a = pin(keys(1, 2), kA);
  EXPECT_TRUE(pin(keys(1, 1), kB).pin);
  const PinList list = cache_->pins({.holder = *kA});
  ASSERT_EQ(list.pins.size(), 1);
  EXPECT_EQ(list.pins[0].pin, *of_a.pin);
  EXPECT_EQ(list.pins[0].blocks, 2);
  EXPECT_EQ(list.pins[0].bytes, 2 * cache_->block_bytes());
  EXPECT_EQ(list.pins[0].expires_at_unix_ms, rig_.clock.unix_ms() + kTtlMs);
  const PinList first = cache_->pins({.limit = 1});
  EXPECT_EQ(first.pins.size(), 1);
  const PinList second = cache_->pins({.limit = 1, .cursor = first.next_cursor});
  EXPECT_EQ(second.pins.size(), 1);
  EXPECT_EQ(second.next_cursor, 0);
  EXPECT_EQ(cache_->end_pin(*of_a.pin, LeaseHolder(kB)), std::nullopt);
  EXPECT_EQ(cache_->end_pin(*of_a.pin, LeaseHolder(kA)), 2);
}

TEST_F(PinsTest, OfATierThatShrinksStay) {
  store(keys(100, 8));
  const auto list = keys(1, 4);
  store(list);  // in slots that will be beyond the end
  EXPECT_EQ(pin(list).blocks, 4);
  CacheChange change;
  change.num_blocks[index_of(Tier::pinned)] = 3;
  const auto kept = [](const CacheConfig&) { return Result<>(); };
  const auto refused = cache_->change(change, kept);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::leased);
  change.num_blocks[index_of(Tier::pinned)] = 6;
  ASSERT_TRUE(cache_->change(change, kept));
  for (std::uint32_t i = 0; i < 10 * kSlots; ++i) store({key(next_++)});
  EXPECT_THAT(in(Tier::pinned, list), ElementsAreArray(list));
  EXPECT_EQ(rig_.read(*cache_, list[0]).value(), bytes_of(list[0]));
}

TEST_F(PinsTest, SayWhatIsMissing) {
  store(keys(1, 2));
  const PinResult some = pin(keys(1, 5));
  EXPECT_EQ(some.blocks, 2);
  EXPECT_EQ(some.missing, 3);
  const PinResult none = pin(keys(10, 2));
  EXPECT_FALSE(none.pin);
  EXPECT_EQ(none.missing, 2);
}

class PinsRestart : public DiskRestart {
 protected:
  static constexpr std::uint32_t kPinnedMs = 60'000;

  PinsRestart() {
    config_.name = "restarted";
    config_.pins.max_share = 0.5;
    cache_ = rig_.cache(config_);
    put(keys(1, 4));
    pinned_ =
        cache_->pin({.keys = keys_, .ttl_ms = kPinnedMs, .holder = kA, .session = "chat"}).value();
    rig_.manager->checkpoint();
  }
  void flood_after() {
    for (std::uint64_t i = 0; i < 100; ++i) {
      ASSERT_TRUE(rig_.put(*back_, {.keys = {key(1'000 + i)}, .tier = Tier::disk}));
    }
  }

  std::vector<BlockKey> keys_ = keys(1, 1);
  PinResult pinned_;
};

TEST_F(PinsRestart, OutliveARestartOnDisk) {
  rig_.clock.advance_ms(1'000);
  crash_and_restart();
  const PinList list = back_->pins({});
  ASSERT_EQ(list.pins.size(), 1);
  EXPECT_EQ(list.pins[0].pin, *pinned_.pin);
  EXPECT_EQ(*list.pins[0].holder, *kA);
  EXPECT_EQ(list.pins[0].session, "chat");
  EXPECT_EQ(list.pins[0].blocks, 1);
  EXPECT_EQ(list.pins[0].expires_at_unix_ms, pinned_.expires_at_unix_ms);
  flood_after();
  EXPECT_TRUE(is_in(*back_, Tier::disk, key(1)));
  EXPECT_FALSE(is_in(*back_, Tier::disk, key(2)));
}

TEST_F(PinsRestart, EndAsBefore) {
  rig_.clock.advance_ms(kPinnedMs);
  crash_and_restart();
  EXPECT_THAT(back_->pins({}).pins, IsEmpty());
  flood_after();
  EXPECT_FALSE(is_in(*back_, Tier::disk, key(1)));
}

TEST_F(PinsRestart, ADamagedFileLosesOnlyThePins) {
  const std::filesystem::path path = crash() / "restarted~pins";
  ASSERT_TRUE(std::filesystem::exists(path));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  restart();
  EXPECT_THAT(back_->pins({}).pins, IsEmpty());
  expect_whole(keys(1, 4));
}

}  // namespace
}  // namespace cairn::testing
