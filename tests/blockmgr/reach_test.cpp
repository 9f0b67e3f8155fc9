// Blocks that no match reaches never displace blocks that one finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "blockmgr/cache/cache_copy.hpp"
#include "blockmgr/cache/ingest.hpp"
#include "tests/blockmgr/copying_engine.hpp"
#include "tests/blockmgr/disk_restart.hpp"
#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;

constexpr std::uint32_t kSlots = 64;
constexpr std::size_t kPrompt = 200;

std::vector<BlockKey> prompt() { return keys(1'000, kPrompt); }

std::size_t found(Rig& rig, Cache& cache, const std::vector<BlockKey>& all = prompt()) {
  return rig.match(cache, all, 0).blocks.size();
}

CacheConfig ordered(EvictionKind eviction, TierSizes sizes,
                    OffloadMode offload = OffloadMode::on_evict) {
  CacheConfig config = small_cache(sizes, offload);
  config.eviction = eviction;
  return config;
}

// Stores the prompt in order, `at_a_time` blocks per request. Each block is the parent of the next.
void store_in_order(Rig& rig, Cache& cache, std::size_t at_a_time, Tier tier = Tier::pinned,
                    std::size_t from = 0, std::size_t to = kPrompt) {
  for (std::size_t first = from; first < to; first += at_a_time) {
    Rig::Put what{.keys = keys(1'000 + first, std::min(at_a_time, to - first)), .tier = tier};
    if (first > 0) what.parent = key(1'000 + first - 1);
    const auto put = rig.put(cache, what);
    ASSERT_TRUE(put) << put.error().detail;
  }
}

class PromptLargerThanItsCache : public ::testing::TestWithParam<EvictionKind> {};

TEST_P(PromptLargerThanItsCache, KeepsItsBeginning) {
  for (const std::size_t at_a_time : {std::size_t{1}, std::size_t{3}, std::size_t{4}}) {
    Rig rig;
    const auto cache = rig.cache(ordered(GetParam(), {.pinned = kSlots}));
    store_in_order(rig, *cache, at_a_time);
    EXPECT_GE(found(rig, *cache), kSlots - at_a_time) << at_a_time << " blocks at a time";
  }
}

TEST_P(PromptLargerThanItsCache, KeepsItsBeginningWhileItIsRead) {
  Rig rig;
  const auto cache = rig.cache(ordered(GetParam(), {.pinned = kSlots}));
  for (std::size_t at = 0; at < kPrompt; ++at) {
    store_in_order(rig, *cache, 1, Tier::pinned, at, at + 1);
    ASSERT_TRUE(rig.read(*cache, key(1'000 + at)));
    rig.clock.advance_ms(10);
  }
  EXPECT_GE(found(rig, *cache), kSlots - 1);
}

TEST_P(PromptLargerThanItsCache, EvictsOthersFirst) {
  Rig rig;
  const auto cache = rig.cache(ordered(GetParam(), {.pinned = kSlots}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, kSlots)}));
  store_in_order(rig, *cache, 4);
  EXPECT_GE(found(rig, *cache), kSlots - 4);
  EXPECT_EQ(found(rig, *cache, keys(1, kSlots)), 0u);
}

TEST_P(PromptLargerThanItsCache, WriteThroughRefusesNoBlock) {
  for (const std::size_t at_a_time : {std::size_t{1}, std::size_t{4}, std::size_t{16}}) {
    Rig rig;
    const auto cache =
        rig.cache(ordered(GetParam(), {.pinned = 16, .disk = kSlots}, OffloadMode::on_commit));
    store_in_order(rig, *cache, at_a_time);
    EXPECT_GE(found(rig, *cache), kSlots - at_a_time) << at_a_time << " blocks at a time";
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, PromptLargerThanItsCache,
                         ::testing::Values(EvictionKind::lru, EvictionKind::class_hazard),
                         [](const auto& test) { return std::string(to_string(test.param)); });

class PromptOnDisk : public DiskRestart {};

TEST_F(PromptOnDisk, KeepsItsBeginningOverARestart) {
  store_in_order(rig_, *cache_, 4, Tier::disk, 0, 100);
  crash_and_restart();
  EXPECT_GE(rig_.match(*back_, prompt(), 0).blocks.size(), 12u);
  store_in_order(rig_, *back_, 4, Tier::disk, 100);
  EXPECT_GE(rig_.match(*back_, prompt(), 0).blocks.size(), 12u);
}

// A restart may restore a block before its parent. Such a block still counts as reachable.
TEST_F(PromptOnDisk, CompletePromptIsEvictedByUseAfterARestart) {
  put(keys(1, 8));
  put(keys(101, 8));
  crash_and_restart();
  ASSERT_TRUE(rig_.put(*back_, {.keys = keys(201, 4), .tier = Tier::disk}));
  EXPECT_EQ(rig_.match(*back_, keys(1, 8), 0).blocks.size(), 4u)
      << "the prompt stored first loses its end";
  EXPECT_EQ(rig_.match(*back_, keys(101, 8), 0).blocks.size(), 8u);
}

// --- other ways to store

class PromptOfAnAgent : public ::testing::TestWithParam<std::size_t> {};

TEST_P(PromptOfAnAgent, KeepsItsBeginning) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = kSlots}));
  const Engine scheduler;
  ASSERT_TRUE(rig.manager->engine_memories().put(scheduler.config(), {.lease_ms = 1'000}));
  for (std::size_t first = 0; first < kPrompt; first += GetParam()) {
    const std::size_t count = std::min(GetParam(), kPrompt - first);
    EngineStoreRequest request;
    request.cache = cache;
    request.keys = keys(1'000 + first, count);
    request.blocks.resize(count);
    std::iota(request.blocks.begin(), request.blocks.end(), 0u);
    for (std::size_t i = 0; i < count; ++i) {
      request.parents.push_back(first + i == 0 ? std::nullopt
                                               : std::optional(key(1'000 + first + i - 1)));
    }
    const auto id = rig.manager->engine_memories().store("engine", std::move(request));
    ASSERT_TRUE(id) << id.error().detail;
    rig.scheduler->wait_idle();
    const TransferStatus status = rig.manager->transfer(*id).value();
    // Blocks without room fail with no_capacity.
    EXPECT_EQ(status.blocks_done + status.failures.size(), count);
    EXPECT_TRUE(std::ranges::all_of(status.failures, [](const auto& failure) {
      return failure.error.code == ErrorCode::no_capacity;
    }));
    if (GetParam() <= 4) {
      EXPECT_EQ(status.state, TransferState::done);
    }
  }
  EXPECT_GE(found(rig, *cache), kSlots - 4);
  EXPECT_EQ(cache->stats().leases, 0u);
}

class PromptOfAnotherCache : public ::testing::TestWithParam<std::size_t> {};

TEST_P(PromptOfAnotherCache, KeepsItsBeginning) {
  Rig rig;
  CacheConfig other = small_cache({.pinned = kPrompt});
  other.name = "other";
  const auto from = rig.cache(other);
  const auto cache = rig.cache(small_cache({.pinned = kSlots}));
  ASSERT_TRUE(rig.put(*from, {.keys = prompt()}));
  for (std::size_t first = 0; first < kPrompt; first += GetParam()) {
    const auto id =
        copy_between_caches({.from = from,
                             .into = cache,
                             .keys = keys(1'000 + first, std::min(GetParam(), kPrompt - first)),
                             .to = Tier::pinned});
    ASSERT_TRUE(id) << id.error().detail;
    rig.scheduler->wait_idle();
  }
  EXPECT_GE(found(rig, *cache), kSlots - 4);
  EXPECT_EQ(found(rig, *from), kPrompt);
  EXPECT_EQ(from->stats().leases + cache->stats().leases, 0u);
}

// Uploads blocks as clients do: all of them or none.
Result<> upload(Rig& rig, const std::shared_ptr<Cache>& cache, std::size_t first,
                std::size_t count) {
  Ingest ingest(cache, {});
  for (std::size_t i = first; i < first + count; ++i) {
    ingest.add({.handle = {},
                .key = key(1'000 + i),
                .parent = i == 0 ? std::nullopt : std::optional(key(1'000 + i - 1))});
  }
  CAIRN_TRY(ingest.hold_present());
  CAIRN_TRY(rig.await<void>(
      [&](auto done) { ingest.allocate({.tier = Tier::pinned}, std::move(done)); }));
  for (const std::size_t item : ingest.granted()) {
    const auto room =
        rig.await<std::span<const iovec>>([&](auto done) { ingest.room(item, std::move(done)); });
    if (!room) return room.error();
    for (const iovec& piece : *room) std::memset(piece.iov_base, 1, piece.iov_len);
    CAIRN_TRY(rig.await<void>([&](auto done) { ingest.finish(item, std::move(done)); }));
  }
  return rig.await<void>([&](auto done) { ingest.commit(Ingest::Then::release, std::move(done)); });
}

class PromptOfUploads : public ::testing::TestWithParam<std::size_t> {};

TEST_P(PromptOfUploads, KeepsItsBeginning) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = kSlots}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, kSlots)}));
  for (std::size_t first = 0; first < kPrompt; first += GetParam()) {
    const auto stored = upload(rig, cache, first, std::min(GetParam(), kPrompt - first));
    // An upload that would displace the prompt's own beginning is refused.
    if (!stored) {
      EXPECT_EQ(stored.error().code, ErrorCode::no_capacity) << stored.error().detail;
    }
    if (GetParam() <= 4 || first < kSlots) {
      EXPECT_TRUE(stored) << first;
    }
  }
  EXPECT_GE(found(rig, *cache), kSlots - 4);
  EXPECT_EQ(found(rig, *cache, keys(1, kSlots)), 0u) << "other prompts go first";
  EXPECT_EQ(cache->stats().leases, 0u);
}

// Evicted blocks move to the next tier, so nothing is refused.
TEST(PromptLargerThanItsTier, MovesToTheNextTier) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = kSlots, .disk = kPrompt}));
  for (std::size_t first = 0; first < kPrompt; first += 16) {
    const auto stored = upload(rig, cache, first, std::min<std::size_t>(16, kPrompt - first));
    ASSERT_TRUE(stored) << stored.error().detail;
    rig.scheduler->wait_idle();
  }
  EXPECT_EQ(found(rig, *cache), kPrompt);
}

// Stores unreachable blocks if they displace few others, and refuses them otherwise.
TEST(PromptWithoutABeginning, DisplacesFewBlocks) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = kSlots}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, kSlots)}));
  EXPECT_TRUE(upload(rig, cache, 100, 4));
  const auto refused = upload(rig, cache, 120, 16);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::no_capacity);
  EXPECT_EQ(found(rig, *cache, keys(1, kSlots)), kSlots - 4);
  // Free slots can be used without limit.
  ASSERT_TRUE(cache->clear(std::nullopt));
  EXPECT_TRUE(upload(rig, cache, 120, 16));
}

INSTANTIATE_TEST_SUITE_P(AtATime, PromptOfUploads, ::testing::Values(1, 4, 16, 64));
// A few at a time, as many as there are slots, and all at once.
INSTANTIATE_TEST_SUITE_P(AtATime, PromptOfAnAgent, ::testing::Values(4, 16, 64, 200));
INSTANTIATE_TEST_SUITE_P(AtATime, PromptOfAnotherCache, ::testing::Values(4, 16, 64, 200));

// --- blocks that are cut off, and blocks that are reachable again

class CutOff : public ::testing::Test {
 protected:
  void put(const std::vector<BlockKey>& list, std::optional<BlockKey> parent = {},
           std::uint8_t priority = 50, std::optional<std::uint64_t> ttl_ms = {}) {
    const auto done =
        rig_.put(*cache_, {.keys = list, .parent = parent, .priority = priority, .ttl_ms = ttl_ms});
    ASSERT_TRUE(done) << done.error().detail;
  }
  std::vector<bool> there(const std::vector<BlockKey>& list) {
    return cache_->contains(views(list));
  }
  std::size_t left(const std::vector<BlockKey>& list) {
    const auto present = there(list);
    return static_cast<std::size_t>(std::ranges::count(present, true));
  }

  Rig rig_;
  std::shared_ptr<Cache> cache_ = rig_.cache(small_cache({.pinned = 8}));
};

TEST_F(CutOff, BlockWithoutItsParentGoesFirst) {
  put(keys(1, 4), {}, 0);
  put(keys(11, 4), key(10), 100);
  put(keys(21, 2));
  EXPECT_EQ(left(keys(1, 4)), 4u);
  EXPECT_THAT(there(keys(11, 4)), ElementsAre(true, true, false, false));
}

TEST_F(CutOff, DescendantsOfADeletedKeyGoFirst) {
  put(keys(1, 4));
  put(keys(11, 4));
  ASSERT_TRUE(cache_->erase(key(12)));
  put(keys(21, 3));
  EXPECT_EQ(left(keys(1, 4)), 4u);
  EXPECT_THAT(there(keys(11, 4)), ElementsAre(true, false, false, false));
}

TEST_F(CutOff, DescendantsOfAnExpiredKeyGoFirst) {
  put(keys(1, 2));
  put(keys(11, 1), {}, 50, 100);
  put(keys(12, 4), key(11));
  rig_.clock.advance_ms(100);
  rig_.manager->tick();
  put(keys(21, 4));
  EXPECT_EQ(left(keys(1, 2)), 2u);
  EXPECT_EQ(left(keys(12, 4)), 2u);
}

TEST_F(CutOff, EveryBranchGoesFirst) {
  put(keys(11, 1));
  put(keys(21, 2), key(11));
  put(keys(31, 2), key(11));
  put(keys(1, 3));
  ASSERT_TRUE(cache_->erase(key(11)));
  put(keys(41, 5));
  EXPECT_EQ(left(keys(1, 3)), 3u);
  EXPECT_EQ(left(keys(21, 2)) + left(keys(31, 2)), 0u);
}

TEST_F(CutOff, LateParentReconnectsItsChildren) {
  put(keys(12, 3), key(11));
  put(keys(11, 1));
  put(keys(1, 4));
  put(keys(21, 4));
  EXPECT_EQ(left(keys(21, 4)), 4u);
  EXPECT_EQ(left(keys(11, 4)), 0u) << "the least recently used reachable blocks";
  EXPECT_EQ(left(keys(1, 4)), 4u);
}

TEST_F(CutOff, RestoredKeyReconnectsItsDescendants) {
  put(keys(1, 4));
  ASSERT_TRUE(cache_->erase(key(2)));
  put(keys(2, 1), key(1));
  EXPECT_EQ(rig_.match(*cache_, keys(1, 4), 0).blocks.size(), 4u);
  put(keys(11, 4));
  put(keys(21, 2));
  EXPECT_EQ(rig_.match(*cache_, keys(1, 4), 0).blocks.size(), 2u) << "its end was evicted";
  EXPECT_EQ(left(keys(11, 4)), 4u);
}

TEST_F(CutOff, ParentMayLieInAnotherTier) {
  CacheConfig config = small_cache({.pinned = 4, .disk = 4}, OffloadMode::never);
  config.name = "tiers";
  const auto cache = rig_.cache(config);
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(1, 1), .tier = Tier::disk}));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(11, 2)}));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(2, 2), .parent = key(1)}));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(21, 2)}));
  EXPECT_EQ(rig_.match(*cache, keys(1, 3), 0).blocks.size(), 3u);
  EXPECT_TRUE(rig_.match(*cache, keys(11, 2), 0).blocks.empty());
}

TEST_F(CutOff, BlocksDisplaceNothingInALowerTier) {
  CacheConfig config = small_cache({.pinned = 4, .disk = 4});
  config.name = "tiers";
  const auto cache = rig_.cache(config);
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(1, 4), .tier = Tier::disk}));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(11, 4), .parent = key(10)}));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(21, 4)}));
  rig_.scheduler->wait_idle();
  EXPECT_EQ(rig_.match(*cache, keys(1, 4), 0).blocks.size(), 4u);
  EXPECT_EQ(rig_.match(*cache, keys(21, 4), 0).blocks.size(), 4u);
  // With room for one block, only one moves down.
  ASSERT_TRUE(cache->clear(Tier::disk));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(31, 3), .parent = key(30)}));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(41, 3)}));
  rig_.scheduler->wait_idle();
  EXPECT_EQ(rig_.match(*cache, keys(21, 4), 0).blocks.size(), 4u);
  EXPECT_EQ(rig_.match(*cache, keys(41, 3), 0).blocks.size(), 3u);
  EXPECT_EQ(present_in(*cache, Tier::disk).size(), 4u);
}

TEST_F(CutOff, LeasedBlocksStayUntilReleased) {
  put(keys(11, 3), key(10));
  const MatchResult held = rig_.match(*cache_, keys(11, 3));
  ASSERT_EQ(held.blocks.size(), 3u);
  put(keys(1, 5));
  put(keys(21, 1));
  EXPECT_EQ(left(keys(11, 3)), 3u);
  ASSERT_TRUE(cache_->release(*held.lease));
  put(keys(31, 3));
  EXPECT_EQ(left(keys(11, 3)), 0u);
}

// Longer than one step handles.
TEST_F(CutOff, AllOfALongPrefixGoesFirst) {
  constexpr std::size_t kLong = 5'000;
  CacheConfig config = small_cache({.pinned = kLong + 100});
  config.name = "long";
  const auto cache = rig_.cache(config);
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(1, 50)}));
  ASSERT_TRUE(rig_.put(*cache, {.keys = keys(1'000, 1)}));
  for (std::size_t first = 1; first < kLong; first += 100) {
    ASSERT_TRUE(rig_.put(*cache, {.keys = keys(1'000 + first, 100), .parent = key(999 + first)}));
  }
  ASSERT_TRUE(cache->erase(key(1'000)));
  for (std::size_t first = 0; first < kLong; first += 100) {
    ASSERT_TRUE(rig_.put(*cache, {.keys = keys(100'000 + first, 100)}));
  }
  EXPECT_EQ(rig_.match(*cache, keys(1, 50), 0).blocks.size(), 50u);
}

}  // namespace
}  // namespace cairn::testing
