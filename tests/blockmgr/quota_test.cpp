#include <gtest/gtest.h>

#include "blockmgr/cache/cache_copy.hpp"
#include "blockmgr/index/block_quota.hpp"
#include "tests/blockmgr/rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/gated_disk_io.hpp"

namespace cairn::testing {
namespace {

class QuotaTest : public ::testing::Test {
 protected:
  // Stores a block under the quota. Returns the error code if refused.
  std::optional<ErrorCode> store(std::uint64_t n) {
    auto allocation = rig.allocate(*cache, {.count = 1, .tier = Tier::pinned, .quota = quota});
    if (!allocation) return allocation.error().code;
    auto done =
        rig.commit(*cache, allocation->lease, {{.handle = allocation->blocks[0], .key = key(n)}});
    if (!done) return done.error().code;
    EXPECT_TRUE(cache->release(allocation->lease, {}));
    return std::nullopt;
  }

  Rig rig;
  std::shared_ptr<Cache> cache = rig.cache(small_cache({.pinned = 4, .disk = 8}));
  const std::shared_ptr<BlockQuota> quota =
      std::make_shared<BlockQuota>(BlockQuota::Limits{0, 3, BlockQuota::kNoLimit});
};

TEST_F(QuotaTest, CountsCopiesInEachTier) {
  EXPECT_EQ(store(1), std::nullopt);
  EXPECT_EQ(store(1), std::nullopt) << "a duplicate";
  EXPECT_EQ(store(2), std::nullopt);
  EXPECT_EQ(quota->used(Tier::pinned), 2u);
  EXPECT_EQ(rig.transfer(*cache, {.keys = {key(1)}, .to = Tier::disk}).state, TransferState::done);
  EXPECT_EQ(quota->used(Tier::pinned), 2u);
  EXPECT_EQ(quota->used(Tier::disk), 1u);
  EXPECT_EQ(rig.transfer(*cache, {.keys = {key(2)}, .to = Tier::disk, .move = true}).state,
            TransferState::done);
  EXPECT_EQ(quota->used(Tier::pinned), 1u);
  EXPECT_EQ(quota->used(Tier::disk), 2u);
  EXPECT_TRUE(cache->erase(key(1)));
  EXPECT_EQ(quota->used(Tier::pinned), 0u);
  EXPECT_EQ(quota->used(Tier::disk), 1u);
}

TEST_F(QuotaTest, LimitsOnlyItsOwner) {
  for (std::uint64_t n = 1; n <= 3; ++n) EXPECT_EQ(store(n), std::nullopt);
  EXPECT_EQ(store(4), ErrorCode::no_capacity);
  EXPECT_TRUE(rig.put(*cache, {.keys = {key(5)}}));
  EXPECT_EQ(quota->used(Tier::pinned), 3u);
  EXPECT_TRUE(cache->erase(key(2)));
  EXPECT_EQ(store(4), std::nullopt);
}

// A block that others push to the next tier counts there.
TEST_F(QuotaTest, FollowsOffloadedBlocks) {
  for (std::uint64_t n = 1; n <= 3; ++n) EXPECT_EQ(store(n), std::nullopt);
  EXPECT_TRUE(rig.put(*cache, {.keys = keys(10, 4)}));
  EXPECT_EQ(quota->used(Tier::pinned) + quota->used(Tier::disk), 3u);
  EXPECT_EQ(quota->used(Tier::pinned), 0u);
}

// Once blocks stored on disk, without a limit, could be moved to a tier with one.
TEST_F(QuotaTest, LimitsItsOwnersTransfers) {
  for (std::uint64_t n = 1; n <= 4; ++n) {
    EXPECT_EQ(store(n), std::nullopt);
    EXPECT_EQ(rig.transfer(*cache, {.keys = {key(n)}, .to = Tier::disk, .move = true}).state,
              TransferState::done);
  }
  TransferRequest up{.keys = keys(1, 4), .to = Tier::pinned, .quota = quota};
  const auto refused = cache->transfer(up);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::no_capacity);
  EXPECT_EQ(quota->used(Tier::pinned), 0u);
  up.keys = keys(1, 3);
  EXPECT_EQ(rig.transfer(*cache, up).state, TransferState::done);
  EXPECT_EQ(rig.transfer(*cache, up).state, TransferState::done) << "they are present";
  EXPECT_EQ(quota->used(Tier::pinned), 3u);
  ASSERT_TRUE(rig.put(*cache, {.keys = {key(9)}, .tier = Tier::disk}));
  up.keys = {key(9)};
  EXPECT_EQ(rig.transfer(*cache, up).state, TransferState::done) << "another owner's block";
}

TEST_F(QuotaTest, LimitsItsOwnersOnboarding) {
  for (std::uint64_t n = 1; n <= 4; ++n) {
    EXPECT_EQ(store(n), std::nullopt);
    EXPECT_EQ(rig.transfer(*cache, {.keys = {key(n)}, .to = Tier::disk, .move = true}).state,
              TransferState::done);
  }
  const MatchResult matched = rig.match(*cache, keys(1, 4));
  const auto list = keys(1, 4);
  const auto id = cache->onboard(
      {.lease = *matched.lease, .keys = views(list), .tier = Tier::pinned, .quota = quota});
  ASSERT_TRUE(id && *id);
  rig.scheduler->wait_idle();
  EXPECT_EQ(rig.manager->transfer(**id).value().blocks_total, 3u);
  EXPECT_EQ(quota->used(Tier::pinned), 3u);
}

TEST_F(QuotaTest, EndsWithItsCache) {
  EXPECT_EQ(store(1), std::nullopt);
  EXPECT_TRUE(rig.manager->drop_cache(cache->config().name, true));
  cache.reset();
  rig.scheduler->wait_idle();
  EXPECT_EQ(quota->used(Tier::pinned), 0u);
}

class LeaseQuotaTest : public ::testing::Test {
 protected:
  // Matches the keys and returns the lease.
  Result<LeaseId> match(const std::vector<BlockKey>& keys) {
    MatchResult result;
    const auto wanted = views(keys);
    CAIRN_TRY(cache->match(wanted, 1000, result, pins));
    return *result.lease;
  }
  std::optional<ErrorCode> refusal(const std::vector<BlockKey>& keys) {
    const auto lease = match(keys);
    if (!lease) return lease.error().code;
    EXPECT_TRUE(cache->release(*lease, {}));
    return std::nullopt;
  }

  Rig rig;
  std::shared_ptr<Cache> cache = rig.cache(small_cache({.device = 4, .pinned = 8}));
  const std::shared_ptr<LeaseQuota> pins = std::make_shared<LeaseQuota>(3);
};

TEST_F(LeaseQuotaTest, CountsPresentKeysOnly) {
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  EXPECT_EQ(refusal(keys(1, 3)), std::nullopt);
  EXPECT_EQ(refusal(keys(1, 4)), ErrorCode::lease_quota);
  EXPECT_EQ(refusal(keys(2, 100)), std::nullopt) << "three are present";
  EXPECT_EQ(pins->used(), 0u);
}

TEST_F(LeaseQuotaTest, CountsUntilTheLeaseEnds) {
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  const auto twice = match(keys(1, 2));
  ASSERT_TRUE(twice);
  EXPECT_EQ(pins->used(), 2u);
  EXPECT_EQ(refusal(keys(1, 2)), ErrorCode::lease_quota) << "a block counts as often as it is held";
  MatchResult held;
  const auto one = keys(3, 1);
  ASSERT_TRUE(cache->match(views(one), 1000, held, pins));
  EXPECT_TRUE(cache->release(*held.lease, {.blocks = held.blocks}));
  EXPECT_EQ(pins->used(), 2u);
  rig.clock.advance_ms(2000);
  rig.manager->tick();
  EXPECT_EQ(pins->used(), 0u) << "the leases expired";
}

TEST_F(LeaseQuotaTest, LimitsAllocationsUntilReleased) {
  const AllocateRequest three{.count = 3, .tier = Tier::pinned, .pins = pins};
  const auto held = rig.allocate(*cache, three);
  ASSERT_TRUE(held);
  EXPECT_EQ(pins->used(), 3u);
  const auto more = rig.allocate(*cache, {.count = 1, .tier = Tier::pinned, .pins = pins});
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, ErrorCode::lease_quota);
  EXPECT_TRUE(rig.allocate(*cache, {.count = 1, .tier = Tier::pinned})) << "another owner";
  // A duplicate's slot is released.
  ASSERT_TRUE(rig.put(*cache, {.keys = {key(1)}}));
  ASSERT_TRUE(rig.commit(*cache, held->lease, {{.handle = held->blocks[0], .key = key(1)}}));
  EXPECT_EQ(pins->used(), 2u);
  EXPECT_TRUE(cache->release(held->lease, {}));
  EXPECT_EQ(pins->used(), 0u);
}

TEST_F(LeaseQuotaTest, CacheQuotaCountsAllHolders) {
  const auto remember = [](const CacheConfig&) { return Result<>(); };
  const auto limit = [&](std::optional<std::uint32_t> blocks) {
    return cache->change({.quota = CacheQuota{.max_leased_blocks = blocks}}, remember);
  };
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  const AllocateRequest one{.count = 1, .tier = Tier::pinned};
  const auto mine = rig.allocate(*cache, one);
  ASSERT_TRUE(mine);
  pins->set_limit(100);
  ASSERT_TRUE(limit(3));
  EXPECT_EQ(refusal(keys(1, 3)), ErrorCode::lease_quota);
  EXPECT_EQ(refusal(keys(3, 100)), std::nullopt) << "two are present";
  const auto two = match(keys(1, 2));
  ASSERT_TRUE(two);
  const auto more = rig.allocate(*cache, one);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, ErrorCode::lease_quota);
  EXPECT_TRUE(cache->release(mine->lease, {}));
  EXPECT_TRUE(rig.allocate(*cache, one));
  ASSERT_TRUE(limit({}));
  EXPECT_EQ(refusal(keys(1, 4)), std::nullopt) << "no limit any more";
}

TEST_F(LeaseQuotaTest, LimitsOnboarding) {
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2)}));
  const auto wanted = keys(1, 2);
  const auto lease = match(wanted);
  ASSERT_TRUE(lease);
  const auto names = views(wanted);
  const auto transfer = cache->onboard({.lease = *lease, .keys = names, .tier = Tier::device});
  ASSERT_TRUE(transfer);
  rig.scheduler->wait_idle();
  EXPECT_EQ(count(*cache, Tier::device, SlotState::committed), 1u);
  EXPECT_EQ(pins->used(), 3u);
}

TEST_F(LeaseQuotaTest, LimitsReadsUntilTheyEnd) {
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  const auto read = [&](const std::vector<BlockKey>& list) {
    return cache->read_prefix(views(list), {}, pins);
  };
  const auto refused = read(keys(1, 4));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::lease_quota);
  EXPECT_EQ(pins->used(), 0u);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::evictable), 4u) << "no block is pinned";
  auto readers = read(keys(1, 3));
  ASSERT_TRUE(readers);
  EXPECT_EQ(pins->used(), 3u);
  EXPECT_EQ(cache->read(key(4), {}, {}, pins).error().code, ErrorCode::lease_quota);
  EXPECT_EQ(cache->lend(key(4), pins).error().code, ErrorCode::lease_quota);
  EXPECT_EQ(refusal(keys(4, 1)), ErrorCode::lease_quota) << "a lease counts together with reads";
  readers->pop_back();
  EXPECT_EQ(pins->used(), 2u);
  {
    const auto one = cache->read(key(4), {}, {}, pins);
    EXPECT_TRUE(one);
    EXPECT_EQ(pins->used(), 3u);
  }
  readers->clear();
  EXPECT_EQ(pins->used(), 0u);
  EXPECT_TRUE(cache->lend(key(4), pins));
  EXPECT_EQ(pins->used(), 0u);
}

// A block is no longer pinned once it is in staging memory.
TEST_F(LeaseQuotaTest, StagedBlockNoLongerCounts) {
  CacheConfig config = small_cache({.disk = 4});
  config.name = "disk";
  const auto disk = rig.cache(config);
  ASSERT_TRUE(rig.put(*disk, {.keys = keys(1, 3), .tier = Tier::disk}));
  const auto list = keys(1, 3);
  auto readers = disk->read_prefix(views(list), {}, pins);
  ASSERT_TRUE(readers);
  EXPECT_EQ(pins->used(), 3u);
  const auto bytes = rig.await<std::span<const iovec>>(
      [&](Done<std::span<const iovec>> done) { readers->front().fetch(std::move(done)); });
  ASSERT_TRUE(bytes);
  EXPECT_EQ(pins->used(), 2u);
}

TEST_F(LeaseQuotaTest, CacheQuotaLimitsPrefixReads) {
  const auto remember = [](const CacheConfig&) { return Result<>(); };
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  ASSERT_TRUE(cache->change({.quota = CacheQuota{.max_leased_blocks = 3}}, remember));
  const auto four = keys(1, 4);
  const auto three = keys(1, 3);
  const auto refused = cache->read_prefix(views(four));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::lease_quota);
  {
    const auto held = cache->read_prefix(views(three));
    ASSERT_TRUE(held);
    EXPECT_FALSE(cache->lend(key(4)));
    EXPECT_TRUE(cache->read(key(4), {})) << "a single read is not limited";
  }
  EXPECT_TRUE(cache->lend(key(4)));
  EXPECT_TRUE(cache->read_prefix(views(three)));
}

TEST_F(LeaseQuotaTest, LimitsTransfersUntilTheyEnd) {
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  const auto refused = cache->transfer({.keys = keys(1, 4), .to = Tier::device, .pins = pins});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::lease_quota);
  EXPECT_EQ(rig.transfer(*cache, {.keys = keys(1, 3), .to = Tier::device, .pins = pins}).state,
            TransferState::done);
  EXPECT_EQ(pins->used(), 0u);
  EXPECT_FALSE(cache->transfer({.keys = keys(7, 1), .to = Tier::device, .pins = pins}));
  EXPECT_EQ(pins->used(), 0u) << "refused for another reason";

  CacheConfig config = cache->config();
  config.name = "other";
  const auto other = rig.cache(config);
  EXPECT_EQ(
      copy_between_caches(
          {.from = cache, .into = other, .keys = keys(1, 4), .to = Tier::pinned, .pins = pins})
          .error()
          .code,
      ErrorCode::lease_quota);
  ASSERT_TRUE(copy_between_caches(
      {.from = cache, .into = other, .keys = keys(1, 3), .to = Tier::pinned, .pins = pins}));
  rig.scheduler->wait_idle();
  EXPECT_EQ(pins->used(), 0u);
}

// Each request is within the limit, but both together are not.
TEST_F(LeaseQuotaTest, CountsAWaitingAllocation) {
  fakes::FakedDisk<fakes::GatedDiskIo> gate;
  Rig gated({.disk = gate.wrap()});
  const auto small = gated.cache(small_cache({.pinned = 4, .disk = 8}));
  ASSERT_TRUE(gated.put(*small, {.keys = keys(1, 4)}));
  gate->close();
  std::vector<Result<Allocation>> answers;
  const AllocateRequest two{.count = 2, .tier = Tier::pinned, .pins = pins};
  for (int i = 0; i < 2; ++i) {
    small->allocate(two, [&](Result<Allocation> answer) { answers.push_back(std::move(answer)); });
  }
  ASSERT_EQ(answers.size(), 1U) << "the first waits for blocks to be offloaded";
  ASSERT_FALSE(answers[0]);
  EXPECT_EQ(answers[0].error().code, ErrorCode::lease_quota);
  gate->open();
  gated.scheduler->wait_idle();
  ASSERT_EQ(answers.size(), 2U);
  ASSERT_TRUE(answers[1]);
  EXPECT_EQ(pins->used(), 2U);
  EXPECT_TRUE(small->release(answers[1]->lease, {}));
  EXPECT_EQ(pins->used(), 0U);
}

TEST_F(LeaseQuotaTest, DroppedCacheReleasesItsLeases) {
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2)}));
  ASSERT_TRUE(match(keys(1, 2)));
  ASSERT_TRUE(rig.manager->drop_cache(cache->config().name, true));
  EXPECT_EQ(pins->used(), 0u);
}

}  // namespace
}  // namespace cairn::testing
