// Transfers, onboarding, eviction by request, write-through and pressure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "tests/blockmgr/rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/gated_disk_io.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;

const TierSizes kThree{.device = 4, .pinned = 4, .disk = 8};

std::uint64_t evicted(const Cache& cache, Tier tier, EvictionReason reason) {
  return cache.stats().tiers[index_of(tier)].evictions[static_cast<std::size_t>(reason)];
}

// A request that writes many blocks keeps its writers to its end. Once it waited without end for
// staging that it held itself, and blocked all other requests.
TEST(Writers, ReleaseStagingWhenFinished) {
  BlockManagerOptions options;
  options.staging_bytes = 1;
  Rig rig({.options = options});
  const auto cache = rig.cache(small_cache({.pinned = 4, .disk = 16}));
  const Allocation slots = rig.allocate(*cache, {.count = 16, .tier = Tier::disk}).value();
  std::vector<BlockWriter> writers;
  for (const BlockHandle& block : slots.blocks) {
    writers.push_back(cache->write({.lease = slots.lease, .block = block}).value());
    BlockWriter& writer = writers.back();
    const auto room =
        rig.await<std::span<const iovec>>([&](auto done) { writer.room(std::move(done)); });
    ASSERT_TRUE(room) << writers.size() << ": " << room.error().detail;
    ASSERT_TRUE(rig.await<void>([&](auto done) { writer.finish(std::move(done)); }));
  }
}

TEST(Transfer, CopiesAndMovesThroughEveryTier) {
  Rig rig;
  const auto cache = rig.cache(small_cache(kThree));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2), .tier = Tier::device}));
  EXPECT_EQ(rig.transfer(*cache, {.keys = keys(1, 2), .to = Tier::disk}).state,
            TransferState::done);
  EXPECT_TRUE(is_in(*cache, Tier::device, key(1)));
  EXPECT_TRUE(is_in(*cache, Tier::disk, key(1)));
  // The blocks are there already: the move ends at once and drops the copies above.
  const TransferStatus moved =
      rig.transfer(*cache, {.keys = keys(1, 2), .to = Tier::disk, .move = true});
  EXPECT_EQ(moved.blocks_done, 2u);
  EXPECT_EQ(moved.bytes, 0u);
  EXPECT_FALSE(is_in(*cache, Tier::device, key(1)));
  const TransferStatus up =
      rig.transfer(*cache, {.keys = keys(1, 2), .to = Tier::pinned, .move = true});
  EXPECT_EQ(up.bytes, 128u);
  EXPECT_FALSE(is_in(*cache, Tier::disk, key(1)));
  EXPECT_EQ(rig.read(*cache, key(2)).value(), bytes_of(key(2)));
  const auto route = cache->stats().routes[index_of(Tier::disk)][index_of(Tier::pinned)];
  EXPECT_EQ(route.blocks[static_cast<std::size_t>(TransferOutcome::done)], 2u);
  EXPECT_EQ(route.bytes, 128u);
}

TEST(Transfer, ACopyThatMovesDuringAReadGoesAfterIt) {
  Rig rig;
  const auto cache = rig.cache(small_cache(kThree));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1)}));
  std::optional<BlockReader> reader(cache->read(key(1), {}).value());
  rig.transfer(*cache, {.keys = keys(1, 1), .to = Tier::disk, .move = true});
  EXPECT_TRUE(is_in(*cache, Tier::pinned, key(1)));
  reader.reset();
  EXPECT_FALSE(is_in(*cache, Tier::pinned, key(1)));
  EXPECT_TRUE(is_in(*cache, Tier::disk, key(1)));
}

// Regression: the block was lost if its copy below had been evicted before the read ended.
TEST(Transfer, ACopyThatMovesDuringAReadStaysIfItIsTheLastOne) {
  Rig rig;
  const auto cache = rig.cache(small_cache(kThree));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1)}));
  std::optional<BlockReader> reader(cache->read(key(1), {}).value());
  rig.transfer(*cache, {.keys = keys(1, 1), .to = Tier::disk, .move = true});
  ASSERT_TRUE(rig.evict(*cache, keys(1, 1), Tier::disk));
  EXPECT_FALSE(is_in(*cache, Tier::disk, key(1)));
  reader.reset();
  EXPECT_EQ(rig.read(*cache, key(1)).value(), bytes_of(key(1)));
}

TEST(Transfer, MoveLeavesLeasedBlocks) {
  Rig rig;
  const auto cache = rig.cache(small_cache(kThree));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2)}));
  const MatchResult leased = rig.match(*cache, keys(1, 1));
  rig.transfer(*cache, {.keys = keys(1, 2), .to = Tier::disk, .move = true});
  EXPECT_TRUE(is_in(*cache, Tier::pinned, key(1)));
  EXPECT_FALSE(is_in(*cache, Tier::pinned, key(2)));
}

TEST(Transfer, RefusesUnknownKeysTiersAndTooMuch) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4, .disk = 1}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2)}));
  EXPECT_EQ(cache->transfer({.keys = keys(2, 2), .to = Tier::disk}).error().code,
            ErrorCode::unknown_key);
  EXPECT_EQ(cache->transfer({.keys = keys(1, 1), .to = Tier::device}).error().code,
            ErrorCode::unknown_tier);
  EXPECT_EQ(cache->transfer({.keys = keys(1, 2), .to = Tier::disk}).error().code,
            ErrorCode::no_capacity);
  EXPECT_EQ(rig.manager->transfer(TransferId{9}).error().code, ErrorCode::unknown_transfer);
}

TEST(Onboard, CopiesAndHoldsWhatFits) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.device = 2, .pinned = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3)}));
  const MatchResult matched = rig.match(*cache, keys(1, 3));
  const auto wanted = keys(1, 3);
  const auto names = views(wanted);
  const auto id = cache->onboard({.lease = *matched.lease, .keys = names, .tier = Tier::device});
  ASSERT_TRUE(id->has_value());
  rig.scheduler->wait_idle();
  EXPECT_EQ(rig.manager->transfer(**id).value().state, TransferState::done);
  EXPECT_EQ(rig.match(*cache, wanted, 0).blocks[1].tier, Tier::device);
  EXPECT_EQ(rig.match(*cache, wanted, 0).blocks[2].tier, Tier::pinned);
  EXPECT_EQ(cache->stats().tiers[index_of(Tier::device)].leased_blocks, 2u);
  EXPECT_EQ(*cache->onboard({.lease = *matched.lease, .keys = names, .tier = Tier::device}),
            std::nullopt)
      << "the tier is full";
  EXPECT_EQ(cache->release(*matched.lease, {}).value(), 5u);
}

TEST(Evict, OffloadsAndCounts) {
  Rig rig;
  const auto cache = rig.cache(small_cache(kThree));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3)}));
  const MatchResult leased = rig.match(*cache, keys(1, 1));
  const auto result = rig.evict(*cache, keys(1, 4), Tier::pinned).value();
  EXPECT_EQ(result.evicted, 2u);
  EXPECT_EQ(result.offloaded, 2u);
  EXPECT_EQ(result.leased, 1u);
  EXPECT_EQ(result.missing, 1u);
  EXPECT_EQ(rig.read(*cache, key(3)).value(), bytes_of(key(3)));
  const auto everywhere = rig.evict(*cache, keys(1, 3), {}).value();
  EXPECT_EQ(everywhere.evicted, 2u);
  EXPECT_EQ(everywhere.leased, 1u);
  EXPECT_EQ(evicted(*cache, Tier::disk, EvictionReason::request), 2u);
}

TEST(Clear, KeepsAndCountsLeasedBlocks) {
  Rig rig;
  const auto cache = rig.cache(small_cache(kThree));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  const MatchResult leased = rig.match(*cache, {key(1), key(2)});
  EXPECT_EQ(cache->erase(key(1)).error().code, ErrorCode::leased);
  const EvictResult result = cache->clear({}).value();
  EXPECT_EQ(result.evicted, 2u);
  EXPECT_EQ(result.leased, 2u);
  EXPECT_EQ(result.offloaded, 0u);
}

TEST(WriteThrough, ACommittedBlockIsCopiedToEveryLowerTier) {
  Rig rig;
  const auto cache = rig.cache(small_cache(kThree, OffloadMode::on_commit));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3), .tier = Tier::device}));
  for (Tier tier : kTiers) EXPECT_EQ(present_in(*cache, tier).size(), 3u);
  ASSERT_TRUE(cache->clear(Tier::device));
  ASSERT_TRUE(cache->clear(Tier::pinned));
  EXPECT_EQ(rig.read(*cache, key(3)).value(), bytes_of(key(3)));
  // Blocks with a copy below are dropped at once.
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(11, 4), .tier = Tier::device}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(21, 4), .tier = Tier::device}));
  EXPECT_EQ(evicted(*cache, Tier::device, EvictionReason::capacity), 4u);
}

TEST(Allocation, ServesTwoThatWaitForOffloads) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4, .disk = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  std::atomic<int> granted{0};  // two scheduler threads may respond at once
  for (int i = 0; i < 2; ++i) {
    cache->allocate({.count = 2, .tier = Tier::pinned},
                    [&](Result<Allocation> result) { granted += result ? 1 : 0; });
  }
  rig.scheduler->wait_idle();
  EXPECT_EQ(granted, 2);
  EXPECT_EQ(present_in(*cache, Tier::disk).size(), 4u);
}

// Once the cache checked a victim that could not leave in a loop while another was leaving.
TEST(Allocation, WaitsForTheOnlyVictimThatCanLeave) {
  fakes::FakedDisk<fakes::GatedDiskIo> gate;
  Rig rig({.disk = gate.wrap()});
  const auto cache = rig.cache(small_cache({.device = 2, .disk = 4}));
  const BlockKey root = key(1);  // on disk, cannot go before its leased child
  const BlockKey held = key(2);
  const BlockKey other = key(3);   // leaves the device
  const BlockKey needed = key(4);  // in the device, cannot go before its leased child on disk
  const BlockKey tail = key(5);
  ASSERT_TRUE(rig.put(*cache, {.keys = {root, held}, .tier = Tier::disk}));
  ASSERT_TRUE(rig.put(*cache, {.keys = {other}, .tier = Tier::device}));
  ASSERT_TRUE(rig.put(*cache, {.keys = {needed}, .tier = Tier::device}));
  ASSERT_TRUE(rig.put(*cache, {.keys = {tail}, .tier = Tier::disk, .parent = needed}));
  const MatchResult first = rig.match(*cache, {held});
  const MatchResult second = rig.match(*cache, {tail});
  gate->close();
  std::vector<bool> granted;
  for (int i = 0; i < 2; ++i) {
    cache->allocate({.count = 1, .tier = Tier::device},
                    [&](Result<Allocation> result) { granted.push_back(result.has_value()); });
  }
  gate->wait_for_calls(1);
  gate->open();
  rig.scheduler->wait_idle();
  EXPECT_THAT(granted, ElementsAre(true, true));
  EXPECT_EQ(rig.read(*cache, tail).value(), bytes_of(tail));
  EXPECT_TRUE(cache->contains(views({needed}))[0]);
  rig.manager.reset();
  rig.scheduler.reset();
}

// Once both were dropped: either all victims found room below or none did.
TEST(Allocation, KeepsTheVictimThatFindsRoomBelow) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2, .disk = 3}));
  for (const std::uint64_t parent : {1U, 2U}) {  // on disk, it cannot go before its child
    ASSERT_TRUE(rig.put(*cache, {.keys = {key(parent)}, .tier = Tier::disk}));
    ASSERT_TRUE(rig.put(*cache, {.keys = {key(10 + parent)}, .parent = key(parent)}));
  }
  EXPECT_TRUE(rig.allocate(*cache, {.count = 2, .tier = Tier::pinned}));
  EXPECT_THAT(cache->contains(views(keys(11, 2))), ElementsAre(false, true));
}

// Once the cache returned the one free slot below, since it needed two, and then asked for all of
// them again. With most numbers of victims it did so without end, under the lock.
TEST(Allocation, EndsWhenTheLowerTierHasOneFreeSlot) {
  for (std::uint32_t chains = 2; chains < 6; ++chains) {
    fakes::FakedDisk<fakes::GatedDiskIo> gate;
    Rig rig({.disk = gate.wrap()});
    const auto cache = rig.cache(small_cache({.pinned = chains + 1, .disk = 3 * chains + 2}));
    ASSERT_TRUE(rig.put(*cache, {.keys = {key(1)}}));
    for (std::uint64_t chain = 1; chain <= chains; ++chain) {
      const BlockKey root = key(10 * chain);  // on disk, it cannot go before its leased child
      const BlockKey held = key(10 * chain + 1);
      ASSERT_TRUE(rig.put(*cache, {.keys = {root, held}, .tier = Tier::disk}));
      const BlockKey needed = key(10 * chain + 2);  // nor be dropped before its child on disk
      const BlockKey tail = key(10 * chain + 3);
      ASSERT_TRUE(rig.put(*cache, {.keys = {needed}}));
      ASSERT_TRUE(rig.put(*cache, {.keys = {tail}, .tier = Tier::disk, .parent = needed}));
      ASSERT_TRUE(rig.match(*cache, {held}).lease);
      ASSERT_TRUE(rig.match(*cache, {tail}).lease);
    }
    gate->close();
    std::vector<bool> granted;
    for (const std::uint32_t count : {1U, chains}) {
      cache->allocate({.count = count, .tier = Tier::pinned},
                      [&](Result<Allocation> result) { granted.push_back(result.has_value()); });
    }
    gate->open();
    rig.scheduler->wait_idle();
    EXPECT_THAT(granted, ElementsAre(true, chains == 2)) << chains << " victims, room for two";
    for (std::uint64_t chain = 1; chain <= chains; ++chain) {
      const BlockKey needed = key(10 * chain + 2);
      EXPECT_EQ(rig.read(*cache, needed).value(), bytes_of(needed)) << chains << " victims";
    }
    rig.manager.reset();
    rig.scheduler.reset();
  }
}

TEST(Pending, ListsWaitingBlocksAndTheirAge) {
  fakes::FakedDisk<fakes::GatedDiskIo> gate;
  Rig rig({.disk = gate.wrap()});
  const auto cache = rig.cache(small_cache({.pinned = 3, .disk = 8}));
  for (const std::uint64_t n : {1U, 2U, 3U}) ASSERT_TRUE(rig.put(*cache, {.keys = {key(n)}}));
  gate->close();
  const auto ignored = [](const Result<Allocation>&) {};
  cache->allocate({.count = 1, .tier = Tier::pinned}, ignored);
  rig.clock.advance(std::chrono::seconds(5));
  cache->allocate({.count = 1, .tier = Tier::pinned}, ignored);
  const auto listed = [&](const PendingRequest& request) {
    std::vector<std::pair<BlockKey, std::uint64_t>> blocks;
    for (const PendingBlock& block : cache->pending(request).blocks) {
      EXPECT_EQ(block.from, Tier::pinned);
      EXPECT_EQ(block.to, Tier::disk);
      blocks.emplace_back(block.key, block.age_ms);
    }
    return blocks;
  };
  EXPECT_THAT(listed({}), ElementsAre(std::pair(key(1), 5'000U), std::pair(key(2), 0U)));
  const std::uint64_t cursor = cache->pending({.limit = 1}).next_cursor;
  EXPECT_NE(cursor, 0U);
  EXPECT_THAT(listed({.cursor = cursor}), ElementsAre(std::pair(key(2), 0U)));
  gate->open();
  rig.scheduler->wait_idle();
  EXPECT_THAT(listed({}), ElementsAre());
  rig.manager.reset();
  rig.scheduler.reset();
}

// Each way in which a client asks for a movement.
TEST(Pending, ListsWhatRequestsWaitFor) {
  enum class By : std::uint8_t { copy, move, drain, onboard };
  for (const By by : {By::copy, By::move, By::drain, By::onboard}) {
    fakes::FakedDisk<fakes::GatedDiskIo> gate;
    Rig rig{Rig::Parts{.disk = gate.wrap()}};
    const auto cache = rig.cache(small_cache({.pinned = 8, .disk = 8}));
    const Tier from = by == By::onboard ? Tier::disk : Tier::pinned;
    const Tier to = by == By::onboard ? Tier::pinned : Tier::disk;
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3), .tier = from}));
    const MatchResult held = rig.match(*cache, keys(1, 3));
    gate->close();
    const auto names = keys(1, 3);
    const auto asked = views(names);
    if (by == By::drain) {
      ASSERT_TRUE(cache->drain({}));
    } else if (by == By::onboard) {
      ASSERT_TRUE(cache->onboard({.lease = *held.lease, .keys = asked, .tier = to}));
    } else {
      ASSERT_TRUE(cache->transfer({.keys = names, .to = to, .move = by == By::move}));
    }
    gate->wait_for_calls(1);
    rig.clock.advance_ms(70);
    const auto list = cache->pending({});
    EXPECT_EQ(list.next_cursor, 0u);
    // Not an assertion that returns: the gate must open again.
    EXPECT_EQ(list.blocks.size(), 3u) << static_cast<int>(by);
    for (std::size_t i = 0; i < list.blocks.size(); ++i) {
      EXPECT_EQ(list.blocks[i].key, names[i]);
      EXPECT_EQ(list.blocks[i].from, from);
      EXPECT_EQ(list.blocks[i].to, to);
      EXPECT_EQ(list.blocks[i].age_ms, 70u);
    }
    // A second request for one of them brings nothing of its own.
    ASSERT_TRUE(cache->transfer({.keys = keys(2, 1), .to = to}));
    EXPECT_EQ(cache->pending({}).blocks.size(), 3u);
    gate->open();
    rig.scheduler->wait_idle();
    EXPECT_TRUE(cache->pending({}).blocks.empty());
    rig.manager.reset();
    rig.scheduler.reset();
  }
}

// They are looked at in steps, and each is listed once.
TEST(Pending, ListsMoreThanOneStep) {
  fakes::FakedDisk<fakes::GatedDiskIo> gate;
  Rig rig{Rig::Parts{.disk = gate.wrap()}};
  const auto cache = rig.cache(small_cache({.pinned = 1000, .disk = 1000}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1000)}));
  gate->close();
  ASSERT_TRUE(cache->drain({}));
  gate->wait_for_calls(1);
  EXPECT_EQ(cache->pending({.limit = 2000}).blocks.size(), 1000u);
  std::set<BlockKey, std::less<>> listed;
  std::uint64_t cursor = 0;
  do {
    const PendingList page = cache->pending({.limit = 300, .cursor = cursor});
    for (const PendingBlock& block : page.blocks) EXPECT_TRUE(listed.insert(block.key).second);
    cursor = page.next_cursor;
  } while (cursor != 0);
  EXPECT_EQ(listed.size(), 1000u);
  gate->open();
  rig.scheduler->wait_idle();
  EXPECT_TRUE(cache->pending({}).blocks.empty());
  rig.manager.reset();
  rig.scheduler.reset();
}

TEST(Allocation, LowerPrioritiesGoFirst) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1), .priority = 60}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(2, 1), .priority = 40}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(3, 1)}));
  EXPECT_THAT(cache->contains(views(keys(1, 3))), ElementsAre(true, false, true));
}

TEST(Pressure, ATierShrinksToItsTarget) {
  BlockManagerOptions options;
  auto& reactions = options.pressure[index_of(Tier::pinned)].reactions;
  reactions[static_cast<std::size_t>(PressureLevel::warning)] = {PressureReaction::Kind::shrink,
                                                                 0.5};
  Rig rig({.options = options});
  const auto cache = rig.cache(small_cache({.pinned = 10, .disk = 20}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 8)}));
  EXPECT_EQ(cache->stats().tiers[index_of(Tier::pinned)].pressure, PressureLevel::normal);
  EXPECT_EQ(present_in(*cache, Tier::pinned).size(), 8u);
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(11, 1)}));
  rig.scheduler->wait_idle();
  EXPECT_EQ(present_in(*cache, Tier::pinned).size(), 5u);
  EXPECT_EQ(present_in(*cache, Tier::disk).size(), 4u);
  EXPECT_EQ(evicted(*cache, Tier::pinned, EvictionReason::pressure), 4u);
  EXPECT_EQ(cache->stats().tiers[index_of(Tier::pinned)].pressure, PressureLevel::normal);
}

TEST(Pressure, TheCallbackRunsWithoutLocksAndNamesTheLevel) {
  BlockManagerOptions options;
  for (auto& reaction : options.pressure[index_of(Tier::pinned)].reactions) {
    reaction.kind = PressureReaction::Kind::callback;
  }
  std::vector<PressureLevel> levels;
  std::shared_ptr<Cache> cache;
  options.on_pressure = [&](const PressureEvent& event) {
    levels.push_back(event.to);
    EXPECT_EQ(event.cache, "test");
    EXPECT_EQ(cache->stats().tiers[index_of(event.tier)].capacity_blocks, 10u);
  };
  Rig rig({.options = options});
  cache = rig.cache(small_cache({.pinned = 10}));
  const auto first = rig.allocate(*cache, {.count = 8, .tier = Tier::pinned}).value();
  ASSERT_TRUE(rig.allocate(*cache, {.count = 2, .tier = Tier::pinned}));
  ASSERT_TRUE(cache->release(first.lease, {}));
  EXPECT_THAT(levels, ElementsAre(PressureLevel::elevated, PressureLevel::out_of_memory,
                                  PressureLevel::normal));
}

}  // namespace
}  // namespace cairn::testing
