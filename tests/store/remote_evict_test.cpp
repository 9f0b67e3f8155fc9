// A cache writes blocks into a store when it evicts them.
#include <gmock/gmock.h>

#include "tests/store/remote_host.hpp"

namespace cairn::testing {
namespace {

using Write = RemoteTierConfig::Write;

// Each prefix is evicted from its tail.
TEST(SharedEvict, WritesABlockWhenItLeavesTheCache) {
  MemoryStore store;
  Host one(store, {.write = Write::on_evict}, {.pinned = 4});
  one.put(keys(1, 4));
  EXPECT_TRUE(store.values.empty());
  one.put(keys(100, 2));
  EXPECT_EQ(one.matched(keys(1, 4)), 2u);
  EXPECT_EQ(store.values.size(), 2u);
  Host other(store);
  EXPECT_EQ(other.look(keys(3, 2)).blocks, 2u);
  for (const BlockKey& one_key : keys(3, 2)) {
    EXPECT_EQ(other.rig.read(*other.cache, one_key).value(), bytes_of(one_key));
  }
  EXPECT_EQ(other.cache->parent(key(4)), key(3));
  EXPECT_EQ(one.tier->stats().stored_blocks, 2u);
  EXPECT_EQ(one.tier->stats().waiting_blocks, 0u);
}

// Events of the shared tier only. The event of the block's eviction from the cache comes before or
// after.
TEST(SharedEvict, PublishesStoredEventsForEvictedBlocks) {
  MemoryStore store;
  Host one(store, {.write = Write::on_evict}, {.pinned = 2});
  const EventRing& ring = one.rig.manager->events();
  const std::uint64_t first = ring.next_id();
  one.put(keys(1, 2));
  one.put(keys(100, 1));
  std::array<BlockEvent, 16> events;
  std::vector<BlockKey> found;
  for (std::size_t i = 0; i < ring.read(first, events).count; ++i) {
    if (events[i].tier != EventTier::shared) continue;
    EXPECT_EQ(events[i].kind, BlockEventKind::stored);
    EXPECT_EQ(events[i].parent, key(1));
    found.push_back(*events[i].key);
  }
  EXPECT_THAT(found, ::testing::ElementsAre(key(2)));
}

TEST(SharedEvict, OneAllocationMayEvictAWholePrefix) {
  MemoryStore store;
  Host one(store, {.write = Write::on_evict}, {.pinned = 8});
  one.put(keys(1, 8));
  one.put(keys(100, 8));
  EXPECT_EQ(store.values.size(), 8u);
  EXPECT_EQ(one.matched(keys(100, 8)), 8u);
}

TEST(SharedEvict, DoesNotWriteABlockThatOnlyChangesItsTier) {
  MemoryStore store;
  Host one(store, {.write = Write::on_evict}, {.pinned = 2, .disk = 4});
  one.put(keys(1, 2));
  one.put(keys(10, 2));
  EXPECT_TRUE(store.values.empty());
  one.put(keys(20, 2));
  EXPECT_TRUE(store.values.empty());
  one.put(keys(30, 2));
  EXPECT_EQ(store.values.size(), 2u);
  EXPECT_EQ(one.matched(keys(30, 2)), 2u);
}

TEST(SharedEvict, DoesNotWriteABlockThatTheStoreHas) {
  MemoryStore store;
  Host one(store);
  one.put(keys(1, 2));
  Host other(store, {.write = Write::on_evict}, {.pinned = 2});
  EXPECT_EQ(other.look(keys(1, 2)).blocks, 2u);
  other.put(keys(100, 2));
  EXPECT_EQ(other.matched(keys(1, 2)), 0u);
  EXPECT_EQ(other.tier->stats().there_already, 2u);
  EXPECT_EQ(other.tier->stats().stored_blocks, 0u);
}

TEST(SharedEvict, MakesRoomIfTheStoreIsDown) {
  MemoryStore store;
  Host one(store, {.write = Write::on_evict}, {.pinned = 4});
  one.put(keys(1, 4));
  store.is_down = true;
  one.put(keys(100, 4));
  EXPECT_EQ(one.matched(keys(100, 4)), 4u);
  EXPECT_EQ(one.tier->stats().dropped_failed, 4u);
  EXPECT_EQ(one.cache->stats().leases, 0u);
}

// Eight prefixes, so that all blocks may go at once.
TEST(SharedEvict, AnAllocationWaitsOnlyForWritesUnderWay) {
  MemoryStore store;
  Host one(store, {.write = Write::on_evict}, {.pinned = 8});
  for (std::uint64_t n = 1; n <= 8; ++n) one.put(keys(10 * n, 1));
  store.holds_writes = true;
  std::optional<Result<Allocation>> slots;
  one.cache->allocate({.count = 8, .tier = Tier::pinned},
                      [&](Result<Allocation> got) { slots.emplace(std::move(got)); });
  EXPECT_FALSE(slots);
  EXPECT_EQ(store.held.size(), 4u);
  // A block that waits for its write can still be found.
  EXPECT_EQ(one.matched(keys(80, 1)), 1u);
  one.rig.clock.advance(std::chrono::seconds(1));
  one.tiers.poll();
  EXPECT_EQ(store.held.size(), 4u);
  EXPECT_EQ(one.matched(keys(80, 1)), 0u);
  EXPECT_FALSE(slots);
  store.holds_writes = false;
  store.let_go();
  ASSERT_TRUE(slots);
  EXPECT_TRUE(*slots);
  EXPECT_EQ(store.values.size(), 4u);
  EXPECT_EQ(one.tier->stats().dropped_full, 4u);
}

TEST(SharedEvict, ALongWaitDropsBlocksWithoutStoringThem) {
  MemoryStore store;
  Host one(store, {.write = Write::on_evict}, {.pinned = 8});
  one.put(keys(1, 8));
  store.holds_writes = true;
  std::optional<Result<Allocation>> slots;
  one.cache->allocate({.count = 8, .tier = Tier::pinned},
                      [&](Result<Allocation> got) { slots.emplace(std::move(got)); });
  EXPECT_EQ(store.held.size(), 1u);
  one.rig.clock.advance(std::chrono::seconds(1));
  store.let_go();
  ASSERT_TRUE(slots);
  EXPECT_TRUE(*slots);
  EXPECT_EQ(store.values.size(), 1u);
  EXPECT_EQ(one.tier->stats().dropped_full, 7u);
}

TEST(SharedEvict, KeepsABlockThatIsLeasedMeanwhile) {
  MemoryStore store;
  Host one(store, {.write = Write::on_evict}, {.pinned = 4});
  one.put(keys(1, 4));
  store.holds_writes = true;
  std::optional<Result<Allocation>> slots;
  one.cache->allocate({.count = 1, .tier = Tier::pinned},
                      [&](Result<Allocation> got) { slots.emplace(std::move(got)); });
  const MatchResult held = one.rig.match(*one.cache, keys(1, 4));
  EXPECT_EQ(held.blocks.size(), 4u);
  store.holds_writes = false;
  store.let_go();
  ASSERT_TRUE(slots);
  EXPECT_FALSE(*slots);
  EXPECT_EQ(one.rig.read(*one.cache, key(4)).value(), bytes_of(key(4)));
  ASSERT_TRUE(one.cache->release(*held.lease));
}

TEST(SharedEvict, DroppingTheCacheMeanwhileFailsTheAllocation) {
  MemoryStore store;
  Host one(store, {.write = Write::on_evict}, {.pinned = 2});
  one.put(keys(1, 2));
  store.holds_writes = true;
  std::optional<Result<Allocation>> slots;
  one.cache->allocate({.count = 2, .tier = Tier::pinned},
                      [&](Result<Allocation> got) { slots.emplace(std::move(got)); });
  ASSERT_TRUE(one.rig.manager->drop_cache(one.cache->config().name, true));
  ASSERT_TRUE(slots);
  EXPECT_FALSE(*slots);
  one.tiers.poll();
  store.holds_writes = false;
  store.let_go();
}

// Eviction by a watermark continues if more blocks must go than may be under way at once.
TEST(SharedEvict, WritesAllBlocksEvictedUnderPressure) {
  MemoryStore store;
  PressureConfig pressure;
  pressure.elevated = 0.9;
  pressure.reactions[static_cast<std::size_t>(PressureLevel::elevated)] = {
      .kind = PressureReaction::Kind::shrink, .target_use = 0.25};
  Host one(store, {.write = Write::on_evict}, {.pinned = 32}, {}, pressure);
  store.holds_writes = true;
  for (std::uint64_t n = 1; n <= 29; ++n) one.put(keys(n, 1));
  while (!store.held.empty()) store.let_go();
  EXPECT_EQ(store.values.size(), 29u - 8u);
  EXPECT_EQ(count(*one.cache, Tier::pinned, SlotState::evictable), 8u);
}

TEST(SharedEvict, ShrinkingATierDoesNotWaitForTheStore) {
  MemoryStore store;
  Host one(store, {.write = Write::on_evict}, {.pinned = 16});
  one.put(keys(1, 16));
  store.holds_writes = true;
  CacheChange change;
  change.num_blocks[index_of(Tier::pinned)] = 4;
  ASSERT_TRUE(one.cache->change(change, [](const CacheConfig&) { return Result<>(); }));
  EXPECT_EQ(one.matched(keys(1, 16)), 4u);
  EXPECT_EQ(one.tier->stats().dropped_full, 12u);
}

TEST(SharedEvict, MakesRoomWhicheverCallFails) {
  for (int failing = 1;; ++failing) {
    MemoryStore store;
    Host one(store, {.write = Write::on_evict}, {.pinned = 4});
    store.failing_call = failing;
    for (std::uint64_t n = 1; n <= 12; ++n) one.put(keys(n, 1));
    EXPECT_EQ(one.matched(keys(9, 4)), 4u) << failing;
    EXPECT_EQ(one.cache->stats().leases, 0u) << failing;
    const auto stats = one.tier->stats();
    const bool failed = store.calls >= failing;
    EXPECT_EQ(stats.stored_blocks, failed ? 7u : 8u) << failing;
    EXPECT_EQ(stats.dropped_failed, failed ? 1u : 0u) << failing;
    EXPECT_EQ(stats.waiting_blocks, 0u) << failing;
    store.failing_call = 0;
    Host other(store);
    for (std::uint64_t n = 1; n <= 8; ++n) {
      other.look(keys(n, 1));
      const auto back = other.rig.read(*other.cache, key(n));
      if (back) {
        EXPECT_EQ(*back, bytes_of(key(n)));
      }
    }
    EXPECT_EQ(other.tier->stats().fetched_blocks, stats.stored_blocks) << failing;
    if (!failed) break;
  }
}

}  // namespace
}  // namespace cairn::testing
