// A cache writes blocks into a store and reads them back unchanged.
#include <gmock/gmock.h>

#include "tests/store/remote_host.hpp"

namespace cairn::testing {
namespace {

using Write = RemoteTierConfig::Write;

std::string& value_of(MemoryStore& store, std::size_t number) {
  return std::next(store.values.begin(), static_cast<std::ptrdiff_t>(number))->second;
}

TEST(RemoteTier, AHostFindsBlocksThatAnotherCommitted) {
  MemoryStore store;
  Host one(store);
  Host other(store);
  one.put(keys(1, 5));
  EXPECT_EQ(store.values.size(), 5u);
  const auto beyond = other.look(keys(1, 8));
  EXPECT_EQ(beyond.blocks, 5u);
  ASSERT_THAT(beyond.transfers, ::testing::SizeIs(1));
  EXPECT_EQ(other.rig.manager->transfer(beyond.transfers.back()).value().state,
            TransferState::done);
  EXPECT_EQ(other.matched(keys(1, 8)), 5u);
  for (const BlockKey& one_key : keys(1, 5)) {
    EXPECT_EQ(other.rig.read(*other.cache, one_key).value(), bytes_of(one_key));
  }
  EXPECT_EQ(other.cache->parent(key(3)), key(2));
  EXPECT_EQ(other.tier->stats().fetched_blocks, 5u);
  EXPECT_EQ(one.tier->stats().stored_blocks, 5u);
}

TEST(RemoteTier, AProbeWithoutFetchingReportsTheBlocks) {
  MemoryStore store;
  Host one(store);
  Host other(store);
  one.put(keys(1, 3));
  const auto asked = keys(1, 3);
  const auto asked_views = views(asked);
  RemoteTier::Beyond found;
  other.tier->probe_remote({.keys = asked_views, .to = Tier::pinned, .fetches = false},
                           [&](RemoteTier::Beyond beyond) { found = beyond; });
  EXPECT_EQ(found.blocks, 3u);
  EXPECT_TRUE(found.transfers.empty());
  other.settle();
  EXPECT_EQ(other.matched(keys(1, 3)), 0u);
}

TEST(RemoteTier, AProbeReportsBlocksThatAreLocalByNow) {
  MemoryStore store;
  Host one(store);
  Host other(store);
  one.put(keys(1, 5));
  other.put(keys(1, 3));
  const auto some = other.look(keys(1, 6));
  EXPECT_EQ(some.blocks, 5u);
  EXPECT_EQ(some.here, 3u);
  EXPECT_FALSE(some.transfers.empty());
  const auto all = other.look(keys(1, 6));
  EXPECT_EQ(all.blocks, 5u);
  EXPECT_EQ(all.here, 5u);
  EXPECT_TRUE(all.transfers.empty());
}

// A longer prompt comes while the blocks of a shorter one are being fetched. Its match must wait
// for both fetches: it once waited only for the last, which could end before the first.
TEST(RemoteTier, AProbeReturnsEveryFetchOfItsBlocks) {
  MemoryStore store;
  Host one(store);
  Host other(store);
  one.put(keys(1, 5));
  store.holds_reads = true;
  const auto first = other.look(keys(1, 3)).transfers;
  ASSERT_THAT(first, ::testing::SizeIs(1));
  const auto second = other.look(keys(1, 5)).transfers;
  ASSERT_THAT(second, ::testing::SizeIs(2));
  EXPECT_EQ(second.front(), first.front());
  EXPECT_EQ(other.look(keys(1, 5)).transfers, second);
  store.holds_reads = false;
  store.let_go();
  other.settle();
  EXPECT_EQ(other.matched(keys(1, 5)), 5u);
}

TEST(RemoteTier, WritesABlockOnce) {
  MemoryStore store;
  Host one(store);
  Host other(store);
  one.put(keys(1, 3));
  other.put(keys(1, 3));
  EXPECT_EQ(other.tier->stats().there_already, 3u);
  EXPECT_EQ(other.tier->stats().stored_blocks, 0u);
  one.settle();
  EXPECT_EQ(one.tier->stats().stored_blocks, 3u);
}

TEST(RemoteTier, WritesUnknownBlocksWithoutATouch) {
  MemoryStore store;
  Host one(store);
  one.put(keys(1, 3));
  EXPECT_EQ(store.values.size(), 3u);
  EXPECT_EQ(store.touches, 0);
}

TEST(RemoteTier, KeepsTheChecksumOfAStoredBlock) {
  MemoryStore store;
  Host one(store);
  one.put(keys(1, 1));
  const auto reader = one.cache->peek(key(1).view());
  ASSERT_TRUE(reader);
  EXPECT_TRUE(reader->checksum());
}

TEST(RemoteTier, RenewsTheTtlOfABlockThatAnotherHostStored) {
  MemoryStore store;
  Host one(store, {.ttl_ms = 60'000});
  Host other(store, {.ttl_ms = 60'000});
  one.put(keys(1, 3));
  other.put(keys(1, 3));
  EXPECT_EQ(store.touches, 3);
  EXPECT_EQ(other.tier->stats().there_already, 3u);
}

TEST(RemoteTier, TouchesUsedBlocksOncePerInterval) {
  for (const std::uint64_t ttl_ms : {std::uint64_t{0}, std::uint64_t{86'400'000}}) {
    MemoryStore store;
    Host one(store, {.ttl_ms = ttl_ms});
    one.put(keys(1, 3));
    const auto found = keys(1, 3);
    const auto use_after = [&](std::chrono::milliseconds time) {
      one.rig.clock.advance(time);
      one.tier->matched(views(found));
      one.settle();
      return store.touches;
    };
    EXPECT_EQ(use_after(RemoteTierOptions{}.touch_interval), 0);
    EXPECT_EQ(use_after(std::chrono::milliseconds(1)), 3);
    EXPECT_EQ(use_after(RemoteTierOptions{}.touch_interval), 3);
    EXPECT_EQ(use_after(std::chrono::milliseconds(1)), 6);
  }
}

TEST(RemoteTier, StoresAUsedBlockAgainIfTheStoreDroppedIt) {
  MemoryStore store;
  Host one(store);
  one.put(keys(1, 3));
  store.values.clear();
  one.rig.clock.advance(RemoteTierOptions{}.touch_interval + std::chrono::milliseconds(1));
  const auto found = keys(1, 3);
  one.tier->matched(views(found));
  one.settle();
  EXPECT_EQ(store.values.size(), 3u);
}

// It followed a missing block, so the store no longer counted it as used.
TEST(RemoteTier, TouchesABlockComputedAgainAlthoughStored) {
  MemoryStore store;
  Host one(store);
  one.put(keys(1, 3));
  one.cache->evict(keys(1, 3), std::nullopt, [](auto&&) {});
  one.settle();
  one.rig.clock.advance(std::chrono::seconds(2));
  one.put(keys(1, 3));
  EXPECT_EQ(store.touches, 3);
  EXPECT_EQ(one.tier->stats().stored_blocks, 3u);
}

TEST(RemoteTier, StoresDroppedBlocksThatAreComputedAgain) {
  MemoryStore store;
  Host one(store);
  one.put(keys(1, 4));
  const auto whole = store.values;
  store.values.erase(std::next(store.values.begin()), store.values.end());
  one.cache->evict(keys(1, 4), std::nullopt, [](auto&&) {});
  one.settle();
  EXPECT_LE(one.look(keys(1, 4)).blocks, 1u);
  one.put(keys(1, 4));
  EXPECT_EQ(store.values, whole);
}

TEST(RemoteTier, DoesNotWriteBackFetchedBlocks) {
  MemoryStore store;
  Host one(store);
  Host other(store);
  one.put(keys(1, 3));
  EXPECT_EQ(other.look(keys(1, 3)).blocks, 3u);
  const int touches = store.touches;
  other.settle();
  EXPECT_EQ(store.touches, touches);
}

TEST(RemoteTier, SecondUseWritesABlockWhenAMatchFindsIt) {
  MemoryStore store;
  Host one(store, {.write = Write::second_use});
  one.put(keys(1, 3));
  EXPECT_TRUE(store.values.empty());
  const auto found = keys(1, 2);
  one.tier->matched(views(found));
  one.settle();
  EXPECT_EQ(store.values.size(), 2u);
}

TEST(RemoteTier, KeepsNamespacesApart) {
  MemoryStore store;
  Host one(store);
  Host other(store, {.name_space = "elsewhere"});
  one.put(keys(1, 3));
  EXPECT_EQ(other.look(keys(1, 3)).blocks, 0u);
}

TEST(RemoteTier, DoesNotProbeAJustAbsentBlockAgain) {
  MemoryStore store;
  Host one(store);
  EXPECT_EQ(one.look(keys(1, 3)).blocks, 0u);
  EXPECT_EQ(one.look(keys(1, 3)).blocks, 0u);
  EXPECT_EQ(store.probes, 1);
  EXPECT_EQ(one.tier->stats().probes_spared, 1u);
  one.rig.clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(one.look(keys(1, 3)).blocks, 0u);
  EXPECT_EQ(store.probes, 2);
}

TEST(RemoteTier, TheNextMatchProbesBlocksThatWereLate) {
  MemoryStore store;
  Host one(store);
  Host other(store);
  one.put(keys(1, 5));
  store.known_in_time = 2;
  EXPECT_EQ(other.look(keys(1, 5)).blocks, 2u);
  EXPECT_EQ(other.look(keys(3, 3)).blocks, 2u);
  EXPECT_EQ(other.tier->stats().probes_late, 2u);
  EXPECT_EQ(other.tier->stats().probes_spared, 0u);
}

// A store is asked about 512 keys at a time. A long prompt was once found in its first 512 blocks
// only.
TEST(RemoteTier, AMatchFindsEveryBlockOfALongPrompt) {
  MemoryStore store;
  Host one(store, {}, {.pinned = 1'400});
  Host other(store, {}, {.pinned = 1'400});
  one.put(keys(1, 1'300));
  ASSERT_EQ(store.values.size(), 1'300u);
  EXPECT_EQ(other.look(keys(1, 1'302)).blocks, 1'300u);
  EXPECT_EQ(store.probes, 3);
  EXPECT_EQ(other.matched(keys(1, 1'302)), 1'300u);
  // The first key that the store lacks is not asked for again for a moment.
  EXPECT_EQ(other.look(keys(1'301, 2)).blocks, 0u);
  EXPECT_EQ(store.probes, 3);
}

TEST(RemoteTier, ALongPromptIsLookedUpUntilTheDeadline) {
  MemoryStore store;
  Host one(store, {}, {.pinned = 1'400});
  Host other(store, {}, {.pinned = 1'400});
  one.put(keys(1, 1'300));
  store.before_answer = [&] { other.rig.clock.advance(std::chrono::milliseconds(1)); };
  const auto long_prompt = keys(1, 1'300);
  EXPECT_EQ(other.look(long_prompt).blocks, 1'024u);
  EXPECT_THAT(store.asked_within,
              ::testing::ElementsAre(std::chrono::milliseconds(2), std::chrono::milliseconds(1)));
  EXPECT_EQ(other.matched(long_prompt), 1'024u);
  // The next match goes on there.
  EXPECT_EQ(other.look(keys(1'025, 276)).blocks, 276u);
  // No prefill waits for this one.
  const auto asked = views(long_prompt);
  RemoteTier::Beyond found;
  store.asked_within.clear();
  other.tier->probe_remote({.keys = asked, .to = Tier::pinned, .patience = std::chrono::seconds(1)},
                           [&](RemoteTier::Beyond beyond) { found = std::move(beyond); });
  EXPECT_EQ(found.blocks, 1'300u);
  EXPECT_THAT(store.asked_within, ::testing::Each(std::chrono::milliseconds(50)));
}

TEST(RemoteTier, SparesALateStoreForAMoment) {
  MemoryStore store;
  Host one(store);
  store.known_in_time = 0;
  EXPECT_EQ(one.look(keys(1, 3)).blocks, 0u);
  EXPECT_EQ(one.look(keys(1, 3)).blocks, 0u);
  EXPECT_EQ(store.probes, 1);
  one.rig.clock.advance(std::chrono::milliseconds(100));
  EXPECT_EQ(one.look(keys(1, 3)).blocks, 0u);
  EXPECT_EQ(store.probes, 2);
}

// Every byte of a value is checked.
TEST(RemoteTier, AFlippedBitIsAMissAndErasesTheValue) {
  MemoryStore clean;
  Host writer(clean);
  writer.put(keys(1, 1));
  const std::string name = clean.values.begin()->first;
  const std::string good = clean.values.begin()->second;
  for (std::size_t at = 0; at < good.size(); ++at) {
    MemoryStore store;
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    store.values[name] = bad;
    Host reader(store);
    const auto beyond = reader.look(keys(1, 1));
    EXPECT_EQ(reader.rig.manager->transfer(beyond.transfers.back()).value().state,
              TransferState::failed);
    EXPECT_EQ(reader.matched(keys(1, 1)), 0u) << at;
    EXPECT_TRUE(store.values.empty()) << at;
  }
}

TEST(RemoteTier, CountsTruncatedAndSwappedValuesByReason) {
  MemoryStore store;
  Host one(store);
  one.put(keys(1, 3));
  Host other(store);
  value_of(store, 0).pop_back();
  std::swap(value_of(store, 1), value_of(store, 2));
  EXPECT_EQ(other.look(keys(1, 1)).blocks, 1u);
  EXPECT_EQ(other.look(keys(2, 1)).blocks, 1u);
  other.settle();
  EXPECT_EQ(other.matched(keys(1, 3)), 0u);
  const auto stats = other.tier->stats();
  EXPECT_EQ(stats.wrong[static_cast<std::size_t>(WrongValue::length)], 1u);
  EXPECT_EQ(stats.wrong[static_cast<std::size_t>(WrongValue::key)], 1u);
}

TEST(RemoteTier, AWrongValueKeepsThePrefixBeforeIt) {
  MemoryStore store;
  Host one(store);
  one.put(keys(1, 5));
  value_of(store, 2).back() ^= 1;
  Host other(store);
  const auto beyond = other.look(keys(1, 5));
  EXPECT_EQ(beyond.blocks, 5u);
  EXPECT_EQ(other.matched(keys(1, 5)), 2u);
  const auto status = other.rig.manager->transfer(beyond.transfers.back()).value();
  EXPECT_EQ(status.state, TransferState::failed);
  EXPECT_EQ(status.blocks_done, 2u);
}

// The first blocks kept their staging until the last one ended, and the last one waited for it.
TEST(RemoteTier, AWrongValueReturnsItsStagingToTheBlocksBehindIt) {
  MemoryStore store;
  Host one(store);
  one.put(keys(1, 3));
  value_of(store, 0).back() ^= 1;
  value_of(store, 1).back() ^= 1;
  BlockManagerOptions options = with_store();
  options.staging_bytes = 1;  // two blocks, the least
  Host other(store, {}, {.disk = 8}, {}, {}, options);
  const auto beyond = other.look(keys(1, 3));
  EXPECT_EQ(beyond.blocks, 3u);
  EXPECT_EQ(other.rig.manager->transfer(beyond.transfers.back()).value().state,
            TransferState::failed);
  EXPECT_EQ(other.cache->stats().leases, 0u);
}

TEST(RemoteTier, AStoreThatIsDownIsAMissAndDropsWrites) {
  MemoryStore store;
  Host one(store);
  store.is_down = true;
  EXPECT_EQ(one.look(keys(1, 3)).blocks, 0u);
  one.put(keys(1, 3));
  EXPECT_EQ(one.tier->stats().dropped_failed, 3u);
  EXPECT_EQ(one.matched(keys(1, 3)), 3u);
  EXPECT_EQ(one.tier->stats().waiting_blocks, 0u);
}

TEST(RemoteTier, AFetchEvictsUnusedBlocks) {
  MemoryStore store;
  Host one(store, {}, {.pinned = 16});
  one.put(keys(1, 16));
  Host other(store, {}, {.pinned = 4});
  other.put(keys(100, 4));
  EXPECT_EQ(other.look(keys(1, 4)).blocks, 4u);
  EXPECT_EQ(other.matched(keys(1, 4)), 4u);
  EXPECT_EQ(other.matched(keys(100, 4)), 0u);
}

TEST(RemoteTier, AFetchWithoutRoomFailsAndLeavesNoLease) {
  MemoryStore store;
  Host one(store, {}, {.pinned = 16});
  one.put(keys(1, 8));
  Host other(store, {}, {.pinned = 4});
  const auto slots = other.rig.allocate(*other.cache, {.count = 4, .tier = Tier::pinned}).value();
  const auto beyond = other.look(keys(1, 4));
  EXPECT_EQ(beyond.blocks, 4u);
  EXPECT_EQ(other.rig.manager->transfer(beyond.transfers.back()).value().state,
            TransferState::failed);
  ASSERT_TRUE(other.cache->release(slots.lease));
  EXPECT_EQ(other.cache->stats().leases, 0u);
}

TEST(RemoteTier, RequiresAStore) {
  Rig rig;
  CacheConfig config = small_cache({.pinned = 4});
  config.shared = RemoteTierConfig{};
  const auto refused = rig.manager->create_cache(config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::impossible);
  EXPECT_THAT(refused.error().detail, ::testing::HasSubstr("shared store"));
}

}  // namespace
}  // namespace cairn::testing
