// Long requests that let others run between their steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <iostream>
#include <numeric>
#include <random>
#include <thread>

#include "blockmgr/index/lease_quota.hpp"
#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

constexpr std::size_t kLong = 1'000;  // several steps of each verb

template <class T, class Call>
Result<T> waited(Call&& call) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  auto answer = promise->get_future();
  call(Done<T>([promise](Result<T> result) { promise->set_value(std::move(result)); }));
  return answer.get();
}

std::vector<CommitBlock> blocks_of(const Allocation& slots, const std::vector<BlockKey>& keys) {
  std::vector<CommitBlock> blocks;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    CommitBlock& block =
        blocks.emplace_back(CommitBlock{.handle = slots.blocks[i], .key = keys[i]});
    if (i > 0) block.parent = keys[i - 1];
  }
  return blocks;
}

Result<Allocation> allocate(Cache& cache, std::size_t count, std::uint32_t lease_ms = 30'000) {
  return waited<Allocation>([&](Done<Allocation> done) {
    cache.allocate(
        {.count = static_cast<std::uint32_t>(count), .tier = Tier::pinned, .lease_ms = lease_ms},
        std::move(done));
  });
}

Result<std::vector<CommitStatus>> commit(Cache& cache, const LeaseId& lease,
                                         std::vector<CommitBlock> blocks, CommitTerms terms = {}) {
  return waited<std::vector<CommitStatus>>([&](Done<std::vector<CommitStatus>> done) {
    cache.commit(lease, std::move(blocks), std::move(done), terms);
  });
}

std::uint64_t leased(const Cache& cache) {
  return cache.stats().tiers[index_of(Tier::pinned)].leased_blocks;
}

void store(Cache& cache, const std::vector<BlockKey>& chain) {
  const auto slots = allocate(cache, chain.size());
  ASSERT_TRUE(slots);
  ASSERT_TRUE(commit(cache, slots->lease, blocks_of(*slots, chain), {.release = true}));
}

TEST(StepsTest, LongReleaseEndsBeforeItReturns) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2 * kLong}));
  store(*cache, keys(0, kLong));
  const MatchResult found = rig.match(*cache, keys(0, kLong));
  ASSERT_EQ(found.blocks.size(), kLong);
  EXPECT_EQ(leased(*cache), kLong);
  ASSERT_TRUE(cache->release(*found.lease));
  EXPECT_EQ(leased(*cache), 0u);
}

TEST(StepsTest, LongTransferCopiesEveryKey) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.device = 2 * kLong, .pinned = 2 * kLong}));
  store(*cache, keys(0, kLong));
  EXPECT_EQ(rig.transfer(*cache, {.keys = keys(0, kLong), .to = Tier::device}).blocks_done, kLong);
  EXPECT_EQ(count(*cache, Tier::device, SlotState::evictable), kLong);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::evictable), kLong);
}

TEST(StepsTest, UnknownKeyInALongTransferLeavesNothingPinned) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.device = 2 * kLong, .pinned = 2 * kLong}));
  store(*cache, keys(0, kLong));
  const auto refused = cache->transfer({.keys = keys(1, kLong), .to = Tier::device});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unknown_key);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::evictable), kLong);
  EXPECT_TRUE(rig.manager->transfers({.limit = 1}).transfers.empty());
  EXPECT_EQ(rig.transfer(*cache, {.keys = keys(0, kLong), .to = Tier::device}).blocks_done, kLong);
}

TEST(StepsTest, RefusedLongTransferKeepsTheEvictionOrder) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.device = kLong - 1, .pinned = kLong}));
  store(*cache, keys(0, kLong));
  const auto refused = cache->transfer({.keys = keys(0, kLong), .to = Tier::device});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::no_capacity);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::evictable), kLong);
  // The chain's end still goes first.
  ASSERT_TRUE(allocate(*cache, 1));
  EXPECT_EQ(cache->contains(views(keys(kLong - 1, 1))), std::vector<bool>(1, false));
}

TEST(StepsTest, LongDrainCopiesEveryBlock) {
  Rig rig;
  const auto cache =
      rig.cache(small_cache({.device = 2 * kLong, .pinned = 2 * kLong}, OffloadMode::never));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(0, kLong), .tier = Tier::device}));
  ASSERT_TRUE(cache->drain(Tier::pinned));
  rig.scheduler->wait_idle();
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::evictable), kLong);
  EXPECT_EQ(count(*cache, Tier::device, SlotState::evictable), kLong);
}

TEST(StepsTest, LongOnboardCopiesAndHoldsEveryKey) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.device = 2 * kLong, .pinned = 2 * kLong}));
  store(*cache, keys(0, kLong));
  const auto chain = keys(0, kLong);
  const MatchResult found = rig.match(*cache, chain);
  const std::vector<KeyView> names = views(chain);
  ASSERT_TRUE(cache->onboard({.lease = *found.lease, .keys = names}));
  rig.scheduler->wait_idle();
  EXPECT_EQ(cache->stats().tiers[index_of(Tier::device)].leased_blocks, kLong);
  ASSERT_TRUE(cache->release(*found.lease));
  EXPECT_EQ(cache->stats().tiers[index_of(Tier::device)].leased_blocks, 0u);
}

// One commit waits for the other's keys and restarts once they are committed. Once another thread
// restarted it while it was still releasing its own keys.
TEST(StepsTest, TwoLongCommitsOfTheSameKeysBothEnd) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.disk = 2 * kLong}));
  for (int round = 0; round < 8; ++round) {
    std::vector<BlockKey> chain = keys(static_cast<std::uint64_t>(round) * kLong, kLong);
    const auto commit_all = [&](std::vector<BlockKey> order) {
      const auto slots = waited<Allocation>([&](Done<Allocation> done) {
        cache->allocate({.count = kLong, .tier = Tier::disk}, std::move(done));
      });
      std::vector<CommitBlock> blocks;
      for (std::size_t i = 0; i < order.size(); ++i) {
        blocks.push_back({.handle = slots.value().blocks[i], .key = order[i]});
      }
      return commit(*cache, slots.value().lease, std::move(blocks), {.release = true}).has_value();
    };
    auto one = std::async(std::launch::async, commit_all, chain);
    std::ranges::reverse(chain);
    EXPECT_TRUE(commit_all(chain));
    EXPECT_TRUE(one.get());
    EXPECT_EQ(cache->contains(views(chain)), std::vector<bool>(kLong, true));
    EXPECT_EQ(count(*cache, Tier::disk, SlotState::evictable), kLong);
    ASSERT_TRUE(cache->clear(Tier::disk));
  }
}

// Each victim finds no room below and must stay for its children. Once a step that ended before
// that was known made the next step start again, until a lease ran out.
TEST(StepsTest, RefusesAllocationWhenNoVictimCanLeave) {
  BlockManagerOptions options;
  options.lock_step = 4;
  Rig rig({.options = options});
  const auto cache = rig.cache(small_cache({.device = 8, .pinned = 8, .disk = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(0, 8), .tier = Tier::device}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(8, 8), .tier = Tier::pinned, .parent = key(7)}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(16, 8), .tier = Tier::disk, .parent = key(15)}));
  const MatchResult held = rig.match(*cache, keys(16, 8));
  ASSERT_EQ(held.blocks.size(), 8u);
  const auto refused = rig.allocate(*cache, {.count = 1, .tier = Tier::device});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::no_capacity);
}

TEST(StepsTest, AnAllocationOfEverySlotEvictsEveryBlock) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = kLong}, OffloadMode::never));
  store(*cache, keys(0, kLong));
  const auto slots = allocate(*cache, kLong);
  ASSERT_TRUE(slots);
  EXPECT_EQ(slots->blocks.size(), kLong);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::allocated), kLong);
}

TEST(StepsTest, LongExpiredLeaseMakesRoom) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = kLong}, OffloadMode::never));
  ASSERT_TRUE(allocate(*cache, kLong, 10));
  rig.clock.advance_ms(11);
  EXPECT_TRUE(allocate(*cache, kLong));
}

TEST(StepsTest, MatchOverItsQuotaHoldsNothing) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2 * kLong}));
  const auto chain = keys(0, kLong);
  store(*cache, chain);
  const auto quota = std::make_shared<LeaseQuota>(kLong - 1);
  MatchResult found;
  const auto refused = cache->match(views(chain), 30'000, found, quota);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::lease_quota);
  EXPECT_EQ(leased(*cache), 0u);
  EXPECT_EQ(quota->used(), 0u);
  EXPECT_EQ(cache->stats().leases, 0u);
}

TEST(StepsTest, RefusedDuplicatePublishesNoKey) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2 * kLong}));
  const auto chain = keys(0, kLong);
  store(*cache, {chain.back()});
  const auto slots = allocate(*cache, kLong);
  ASSERT_TRUE(slots);
  auto blocks = blocks_of(*slots, chain);
  for (CommitBlock& block : blocks) block.refuse_duplicate = true;
  const auto refused = commit(*cache, slots->lease, blocks);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::exists);
  EXPECT_EQ(present_in(*cache, Tier::pinned), std::vector{chain.back()});
  // The refused commit left no trace: the same slots can be committed without that condition.
  for (CommitBlock& block : blocks) block.refuse_duplicate = false;
  EXPECT_TRUE(commit(*cache, slots->lease, blocks));
}

TEST(StepsTest, LongCommitFreesSlotsOfDuplicates) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2 * kLong}));
  const auto chain = keys(0, kLong);
  store(*cache, chain);
  const auto slots = allocate(*cache, kLong);
  ASSERT_TRUE(slots);
  const auto statuses = commit(*cache, slots->lease, blocks_of(*slots, chain));
  ASSERT_TRUE(statuses);
  EXPECT_EQ(*statuses, std::vector(kLong, CommitStatus::duplicate));
  EXPECT_EQ(leased(*cache), 0u);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::free), kLong);
}

// Every other block of a lease in reverse order, unlike the lease's own order.
std::vector<BlockHandle> every_other(const std::vector<BlockHandle>& blocks) {
  std::vector<BlockHandle> some;
  for (std::size_t i = 0; i < blocks.size(); i += 2) some.push_back(blocks[i]);
  std::ranges::reverse(some);
  return some;
}

TEST(StepsTest, LongPartialReleaseKeepsTheRest) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2 * kLong}));
  store(*cache, keys(0, kLong));
  const MatchResult found = rig.match(*cache, keys(0, kLong));
  const auto some = every_other(found.blocks);
  const auto released = cache->release(*found.lease, {.blocks = some});
  ASSERT_TRUE(released);
  EXPECT_EQ(*released, some.size());
  EXPECT_EQ(leased(*cache), kLong - some.size());
  // Releasing them again fails and releases nothing else.
  std::vector<BlockHandle> all = found.blocks;
  const auto again = cache->release(*found.lease, {.blocks = all});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::foreign_lease);
  EXPECT_EQ(leased(*cache), kLong - some.size());
  ASSERT_TRUE(cache->release(*found.lease));
  EXPECT_EQ(leased(*cache), 0u);
}

TEST(StepsTest, BlockHeldTwiceNeedsTwoReleases) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2 * kLong}));
  const auto chain = keys(0, kLong);
  store(*cache, chain);
  std::vector<KeyView> twice = views(chain);
  twice.insert(twice.end(), twice.begin(), twice.end());
  const auto held = cache->hold(twice, {.lease_ms = 30'000});
  ASSERT_TRUE(held);
  const MatchResult found = rig.match(*cache, chain);
  ASSERT_TRUE(cache->release(*found.lease));
  ASSERT_TRUE(cache->release(*held->lease, {.blocks = every_other(found.blocks)}));
  EXPECT_EQ(leased(*cache), kLong);
  ASSERT_TRUE(cache->release(*held->lease, {.blocks = every_other(found.blocks)}));
  EXPECT_EQ(leased(*cache), kLong / 2);
}

TEST(StepsTest, LongPartOfALeaseMovesToAnother) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2 * kLong}));
  const auto from = allocate(*cache, kLong);
  const auto to = allocate(*cache, 1);
  ASSERT_TRUE(from && to);
  const auto some = every_other(from->blocks);
  ASSERT_TRUE(cache->release(from->lease, {.blocks = some, .to_lease = to->lease}));
  EXPECT_EQ(leased(*cache), kLong + 1);
  ASSERT_TRUE(cache->release(from->lease));
  EXPECT_EQ(leased(*cache), some.size() + 1);
  // The other lease can commit the uncommitted blocks.
  std::vector<CommitBlock> blocks;
  for (const BlockHandle& block : some) {
    blocks.push_back({.handle = block, .key = keys(blocks.size(), 1).front()});
  }
  EXPECT_TRUE(commit(*cache, to->lease, blocks));
}

TEST(StepsTest, WholeLongLeaseMovesToAnother) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2 * kLong}));
  const auto from = allocate(*cache, kLong);
  const auto to = allocate(*cache, 1);
  ASSERT_TRUE(from && to);
  const auto released = cache->release(from->lease, {.to_lease = to->lease});
  ASSERT_TRUE(released);
  EXPECT_EQ(*released, kLong);
  EXPECT_EQ(leased(*cache), kLong + 1);
  EXPECT_EQ(cache->release(from->lease).error().code, ErrorCode::unknown_lease);
  ASSERT_TRUE(cache->release(to->lease));
  EXPECT_EQ(leased(*cache), 0u);
}

TEST(StepsTest, HoldsAndLookupsCoverEveryStep) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2 * kLong}));
  const auto chain = keys(0, kLong);
  store(*cache, chain);
  EXPECT_EQ(cache->contains(views(chain)), std::vector<bool>(kLong, true));
  const auto held = cache->hold(views(chain), {.lease_ms = 30'000});
  ASSERT_TRUE(held);
  EXPECT_EQ(leased(*cache), kLong);
  EXPECT_EQ(cache->read_prefix(views(chain)).value().size(), kLong);
  ASSERT_TRUE(cache->release(*held->lease));
  const auto gone = rig.evict(*cache, chain, Tier::pinned);
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->evicted, kLong);
}

// Several threads make long requests while leases end during them.
class LongStorm : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(LongStorm, LeavesNothingHeldAndCountsRight) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 40;
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 3 * kLong, .disk = GetParam()}));
  // Every lease of this test ends earlier.
  const std::int64_t end_of_time = rig.clock.unix_ms() + 3'600'000;
  const std::uint64_t seed = std::random_device{}();
  std::cout << "seed " << seed << "\n";
  const auto client = [&](std::uint64_t number) {
    std::mt19937_64 random(seed + number);
    for (int round = 0; round < kRounds; ++round) {
      const auto chain = keys(random() % 6 * kLong, kLong);
      const auto lease_ms = static_cast<std::uint32_t>(1 + random() % 100);
      switch (random() % 7) {
        case 0:
        case 1: {
          const auto slots = allocate(*cache, kLong, lease_ms);
          if (!slots) break;
          auto blocks = blocks_of(*slots, chain);
          blocks.back().refuse_duplicate = random() % 2 == 0;
          (void)commit(*cache, slots->lease, std::move(blocks), {.release = random() % 2 == 0});
          break;
        }
        case 2:
        case 3: {
          MatchResult found;
          if (!cache->match(views(chain), random() % 3 == 0 ? 0 : lease_ms, found)) break;
          if (!found.lease || random() % 2 == 0) break;
          const std::size_t some = 1 + random() % found.blocks.size();
          if (random() % 2 == 0) std::ranges::shuffle(found.blocks, random);
          ReleaseRequest part{.blocks = std::span(found.blocks).first(some)};
          MatchResult other;
          if (random() % 2 == 0 && cache->match(views(chain), lease_ms, other)) {
            part.to_lease = other.lease;
          }
          (void)cache->release(*found.lease, part);
          break;
        }
        case 4:
          (void)waited<EvictResult>(
              [&](Done<EvictResult> done) { cache->evict(chain, Tier::pinned, std::move(done)); });
          break;
        case 5: {
          // A lease that is still being filled must not be listed.
          const auto list = cache->leases({});
          ASSERT_TRUE(list);
          for (const LeaseInfo& lease : list->leases) {
            EXPECT_LT(lease.expires_at_unix_ms, end_of_time);
          }
          break;
        }
        default:
          rig.clock.advance_ms(static_cast<std::int64_t>(random() % 50));
          rig.manager->tick();
      }
    }
  };
  {
    std::vector<std::jthread> clients;
    for (int i = 0; i < kThreads; ++i) clients.emplace_back(client, i);
  }
  rig.clock.advance_ms(1'000);
  rig.manager->tick();
  rig.scheduler->wait_idle();
  EXPECT_EQ(leased(*cache), 0u);
  EXPECT_EQ(cache->stats().leases, 0u);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::allocated), 0u);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::committed), 0u);
  // Every slot can be allocated, so nothing holds a slot that no count shows.
  EXPECT_TRUE(allocate(*cache, 3 * kLong));
}

INSTANTIATE_TEST_SUITE_P(DiskBlocks, LongStorm, ::testing::Values(0, 4 * kLong));

// --- no hold of the lock does more than one step, however much there is to do

std::uint64_t holds(const Cache& cache, LockUse use) {
  const auto counts = cache.stats().lock_holds.of(use).counts;
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

// A generous limit for the work of one hold, far below the total.
constexpr std::uint64_t kStep = 256;
constexpr std::uint64_t kMany = 4'096;

TEST(StepsTest, ManyKeysExpireInSteps) {
  for (const bool is_chain : {true, false}) {
    Rig rig;
    const auto cache = rig.cache(small_cache({.pinned = kMany}));
    if (is_chain) {
      ASSERT_TRUE(rig.put(*cache, {.keys = keys(0, kMany), .ttl_ms = 1'000}));
    } else {
      for (std::uint64_t k = 0; k < kMany; ++k) {
        ASSERT_TRUE(rig.put(*cache, {.keys = keys(k, 1), .ttl_ms = 1'000}));
      }
    }
    rig.clock.advance_ms(1'000);
    const std::uint64_t before = holds(*cache, LockUse::upkeep);
    rig.manager->tick();
    EXPECT_GE(holds(*cache, LockUse::upkeep) - before, kMany / kStep);
    EXPECT_EQ(count(*cache, Tier::pinned, SlotState::free), kMany);
  }
}

TEST(StepsTest, ManyLeasesEndInSteps) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  for (std::uint64_t i = 0; i < kMany; ++i) rig.match(*cache, keys(1, 4), 1'000);
  ASSERT_EQ(cache->stats().leases, kMany);
  rig.clock.advance_ms(1'000);
  const std::uint64_t before = holds(*cache, LockUse::upkeep);
  rig.manager->tick();
  EXPECT_GE(holds(*cache, LockUse::upkeep) - before, kMany / kStep);
  EXPECT_EQ(cache->stats().leases, 0u);
  EXPECT_EQ(cache->stats().lease_expirations, kMany);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::evictable), 4u);
}

TEST(StepsTest, RefusesOneOfManyExpiredLeases) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  std::optional<LeaseId> last;
  for (std::uint64_t i = 0; i < kMany; ++i) last = rig.match(*cache, keys(1, 4), 1'000).lease;
  rig.clock.advance_ms(1'000);
  EXPECT_EQ(cache->renew(*last, 1'000).error().code, ErrorCode::lease_expired);
  EXPECT_EQ(cache->release(*last).error().code, ErrorCode::lease_expired);
}

TEST(StepsTest, ACacheWithManyLeasesIsRemovedInSteps) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  for (std::uint64_t i = 0; i < kMany; ++i) rig.match(*cache, keys(1, 4), 30'000);
  const std::uint64_t before = holds(*cache, LockUse::upkeep);
  EXPECT_EQ(rig.manager->drop_cache(cache->config().name, true).value(), kMany);
  EXPECT_GE(holds(*cache, LockUse::upkeep) - before, kMany / kStep);
  EXPECT_EQ(cache->stats().leases, 0u);
}

TEST(StepsTest, DeletedKeyUpdatesItsDescendantsInSteps) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = kMany + 64}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1)}));
  // Some descendants form a chain; most are siblings.
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(2, kMany / 4), .parent = key(1)}));
  for (std::uint64_t k = kMany; k < kMany + kMany / 2; ++k) {
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(k, 1), .parent = key(1)}));
  }
  const std::uint64_t before = holds(*cache, LockUse::evict);
  ASSERT_TRUE(cache->erase(key(1)));
  EXPECT_GE(holds(*cache, LockUse::evict) - before, kMany / 2 / kStep);
}

TEST(StepsTest, ATierLosesManySlotsInSteps) {
  constexpr std::uint32_t kSlots = 200'000;
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = kSlots}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 8)}));
  const std::uint64_t before = holds(*cache, LockUse::upkeep);
  CacheChange change;
  change.num_blocks[index_of(Tier::pinned)] = 64;
  ASSERT_TRUE(cache->change(change, [](const CacheConfig&) { return Result<>(); }));
  EXPECT_GE(holds(*cache, LockUse::upkeep) - before, 10u);
  EXPECT_EQ(cache->stats().tiers[index_of(Tier::pinned)].capacity_blocks, 64u);
  EXPECT_EQ(rig.match(*cache, keys(1, 8), 0).blocks.size(), 8u);
}

TEST(StepsTest, ListsManyBlocksInSteps) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = kMany}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, kMany)}));
  std::uint64_t before = holds(*cache, LockUse::look);
  EXPECT_EQ(cache->list({.limit = kMany})->blocks.size(), kMany);
  EXPECT_GE(holds(*cache, LockUse::look) - before, kMany / kStep);
  before = holds(*cache, LockUse::look);
  EXPECT_TRUE(cache->list({.state = SlotState::allocated, .limit = 10})->blocks.empty());
  EXPECT_GE(holds(*cache, LockUse::look) - before, 2u);
}

}  // namespace
}  // namespace cairn::testing
