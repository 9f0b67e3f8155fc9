// What clients ask for blocks that they do not use now: prefetch, demote, retain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/gated_disk_io.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

const auto kOwner = std::make_shared<const std::string>("a");
const auto kOther = std::make_shared<const std::string>("b");

class PrefetchTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kSlots = 16;
  static constexpr std::uint32_t kQuarter = kSlots / 4;

  PrefetchTest() : rig_({.disk = gate_.wrap(), .workers = 1}) {
    cache_ = rig_.cache(small_cache({.pinned = kSlots, .disk = 2 * kSlots}));
  }
  ~PrefetchTest() override {
    gate_->open();
    rig_.manager.reset();
    rig_.scheduler.reset();
  }

  void store(const std::vector<BlockKey>& list, Tier tier) {
    const auto done = rig_.put(*cache_, {.keys = list, .tier = tier});
    ASSERT_TRUE(done) << done.error().detail;
  }
  PrefetchStart prefetch(const std::vector<BlockKey>& list) {
    PrefetchStart start = cache_->prefetch({.keys = list}).value();
    if (!closed_) rig_.scheduler->wait_idle();
    return start;
  }
  DemoteStart demote(const std::vector<BlockKey>& list, const LeaseHolder& holder = {},
                     bool spares_shared = false) {
    DemoteStart start =
        cache_->demote({.keys = list, .spares_shared = spares_shared, .holder = holder}).value();
    rig_.scheduler->wait_idle();
    return start;
  }
  // With one token there is nobody to take from.
  void both_use_it() {
    ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(900, 1), .holder = kOwner}));
    ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(901, 1), .holder = kOther}));
  }
  void close() {
    gate_->close();
    closed_ = true;
  }
  void open() {
    gate_->open();
    closed_ = false;
    rig_.scheduler->wait_idle();
  }
  std::uint64_t counted(PrefetchResult result) {
    return cache_->stats().prefetched[static_cast<std::size_t>(result)];
  }
  std::vector<BlockKey> in(Tier tier, const std::vector<BlockKey>& list) {
    std::vector<BlockKey> there;
    for (const BlockKey& each : list) {
      if (is_in(*cache_, tier, each)) there.push_back(each);
    }
    return there;
  }
  LeaseId lease_on(const std::vector<BlockKey>& list) {
    return rig_.match(*cache_, list, 30'000).lease.value();
  }

  fakes::FakedDisk<fakes::GatedDiskIo> gate_;
  Rig rig_;
  std::shared_ptr<Cache> cache_;
  bool closed_ = false;
};

TEST_F(PrefetchTest, BringsBlocksUpBeforeTheirRequest) {
  store(keys(1, 3), Tier::disk);
  const PrefetchStart start = prefetch(keys(1, 4));
  EXPECT_TRUE(start.transfer);
  EXPECT_EQ(start.blocks, 3);
  EXPECT_THAT(start.missing, ElementsAreArray({key(4)}));
  EXPECT_THAT(in(Tier::pinned, keys(1, 3)), ElementsAreArray(keys(1, 3)));
  EXPECT_EQ(counted(PrefetchResult::used), 0);
  const MatchResult match = rig_.match(*cache_, keys(1, 3), 0);
  ASSERT_EQ(match.blocks.size(), 3);
  EXPECT_EQ(match.blocks[0].tier, Tier::pinned);
  EXPECT_EQ(counted(PrefetchResult::used), 3);
  rig_.match(*cache_, keys(1, 3), 0);
  EXPECT_EQ(counted(PrefetchResult::used), 3) << "each counts once";
}

TEST_F(PrefetchTest, OfBlocksThatAreThereCopiesNothing) {
  store(keys(1, 3), Tier::pinned);
  const PrefetchStart start = prefetch(keys(1, 3));
  EXPECT_FALSE(start.transfer);
  EXPECT_EQ(start.blocks, 3);
}

TEST_F(PrefetchTest, IsWastedIfItsBlocksLeaveUnused) {
  store(keys(1, 2), Tier::disk);
  prefetch(keys(1, 2));
  ASSERT_TRUE(rig_.evict(*cache_, keys(1, 2), Tier::pinned));
  EXPECT_EQ(counted(PrefetchResult::wasted), 2);
  EXPECT_EQ(counted(PrefetchResult::used), 0);
}

TEST_F(PrefetchTest, IsJoinedByTheRequestThatComesMeanwhile) {
  store(keys(1, 2), Tier::disk);
  close();
  prefetch(keys(1, 2));
  gate_->wait_for_calls(1);
  const LeaseId lease = lease_on(keys(1, 2));
  const auto wanted = keys(1, 2);
  const auto onboarded =
      cache_->onboard({.lease = lease, .keys = views(wanted), .tier = Tier::pinned}).value();
  ASSERT_TRUE(onboarded);
  open();
  EXPECT_EQ(rig_.manager->transfer(*onboarded)->state, TransferState::done);
  const auto up = cache_->stats().routes[index_of(Tier::disk)][index_of(Tier::pinned)];
  EXPECT_EQ(up.blocks[static_cast<std::size_t>(TransferOutcome::done)], 2) << "copied once";
  EXPECT_EQ(counted(PrefetchResult::late), 2);
  rig_.match(*cache_, keys(1, 2), 0);
  EXPECT_EQ(counted(PrefetchResult::used), 0) << "a late block is not counted again";
}

TEST_F(PrefetchTest, LeavesMostOfATierToBlocksThatWereAskedFor) {
  store(keys(1, 12), Tier::disk);
  const PrefetchStart start = prefetch(keys(1, 12));
  EXPECT_EQ(start.blocks, kQuarter);
  EXPECT_EQ(start.beyond, 12 - kQuarter);
  EXPECT_EQ(prefetch(keys(1, 12)).beyond, 12 - kQuarter) << "until they are used";
  rig_.match(*cache_, keys(1, kQuarter), 0);
  EXPECT_EQ(prefetch(keys(1, 12)).blocks, 2 * kQuarter);
}

TEST_F(PrefetchTest, UnderWayCountsToo) {
  store(keys(1, 12), Tier::disk);
  close();
  EXPECT_EQ(prefetch(keys(1, 12)).blocks, kQuarter);
  EXPECT_EQ(prefetch(keys(1 + kQuarter, 4)).blocks, 0);
  open();
}

// A twentieth of these tiers is less than two blocks.
TEST_F(PrefetchTest, OfOneTokenLeaveRoomForThoseOfOthers) {
  store(keys(1, 12), Tier::disk);
  const auto blocks_of = [&](const LeaseHolder& holder) {
    const PrefetchStart start = cache_->prefetch({.keys = keys(1, 12), .holder = holder}).value();
    rig_.scheduler->wait_idle();
    return start.blocks;
  };
  both_use_it();
  EXPECT_EQ(blocks_of(kOwner), 1);
  EXPECT_EQ(blocks_of(kOwner), 1) << "the same block";
  EXPECT_EQ(blocks_of(kOther), 2) << "one that is there, and one of its own";
  rig_.match(*cache_, keys(1, 2), 0);
  EXPECT_EQ(blocks_of(kOwner), 3) << "after their use";
}

TEST_F(PrefetchTest, OfTheOnlyTokenHasTheShareOfAll) {
  store(keys(1, 12), Tier::disk);
  EXPECT_EQ(cache_->prefetch({.keys = keys(1, 12), .holder = kOwner})->blocks, kQuarter);
}

TEST_F(PrefetchTest, HasRoomForSomeOfTheMissing) {
  store(keys(1, 2), Tier::disk);
  PrefetchStart start = prefetch(keys(1, 12));
  EXPECT_EQ(start.blocks, 2);
  EXPECT_EQ(start.missing.size(), 10);
  EXPECT_EQ(start.may_come, kQuarter - 2);
  EXPECT_EQ(prefetch(keys(20, 4)).may_come, 0) << "while the first may still fetch";
  start.room.reset();
  EXPECT_EQ(prefetch(keys(20, 4)).may_come, kQuarter - 2);
}

TEST_F(PrefetchTest, HasRoomForAtMostItsMaximum) {
  store(keys(1, 2), Tier::disk);
  const PrefetchStart start = cache_->prefetch({.keys = keys(1, 12), .max_blocks = 3}).value();
  rig_.scheduler->wait_idle();
  EXPECT_EQ(start.may_come, 1);
}

TEST_F(PrefetchTest, ThatIsCancelledIsLate) {
  store(keys(1, 2), Tier::disk);
  close();
  prefetch(keys(1, 1));
  gate_->wait_for_calls(1);
  const PrefetchStart waiting = prefetch(keys(2, 1));
  const auto cancelled = rig_.manager->cancel_transfer(*waiting.transfer);
  ASSERT_TRUE(cancelled);
  EXPECT_EQ(cancelled->state, TransferState::cancelled);
  EXPECT_EQ(counted(PrefetchResult::late), 1);
  open();
  EXPECT_THAT(in(Tier::pinned, keys(1, 2)), ElementsAreArray(keys(1, 1)));
}

TEST_F(PrefetchTest, DemoteFreesTheTierAbove) {
  store(keys(1, 4), Tier::pinned);
  const DemoteStart start = demote(keys(1, 5));
  EXPECT_EQ(start.blocks, 4);
  EXPECT_EQ(start.missing, 1);
  EXPECT_EQ(start.transfers.size(), 1);
  EXPECT_THAT(in(Tier::pinned, keys(1, 4)), IsEmpty());
  EXPECT_THAT(in(Tier::disk, keys(1, 4)), ElementsAreArray(keys(1, 4)));
}

TEST_F(PrefetchTest, DemoteLeavesWhatOthersHavePinned) {
  store(keys(1, 2), Tier::pinned);
  EXPECT_EQ(cache_->pin({.keys = keys(1, 1), .ttl_ms = 10'000, .holder = kOther})->blocks, 1);
  const DemoteStart start = demote(keys(1, 2), kOwner);
  EXPECT_EQ(start.blocks, 1);
  EXPECT_EQ(start.spared, 1);
  EXPECT_THAT(in(Tier::pinned, keys(1, 2)), ElementsAreArray(keys(1, 1)));
}

// A conversation's blocks begin with a system prompt that others use.
TEST_F(PrefetchTest, DemoteOfAConversationSparesWhatOthersNeed) {
  store(keys(1, 4), Tier::pinned);
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(10, 2), .parent = key(2)}));
  const DemoteStart start = demote(keys(1, 4), {}, true);
  EXPECT_EQ(start.blocks, 2);
  EXPECT_EQ(start.spared, 2);
  EXPECT_THAT(in(Tier::pinned, keys(1, 4)), ElementsAreArray(keys(1, 2)));
}

TEST_F(PrefetchTest, RetainKeepsBlocksLonger) {
  for (const std::uint64_t n : {1u, 2u, 3u}) store({key(n)}, Tier::disk);
  const std::vector<BlockKey> first = keys(1, 1);
  const auto retained = cache_->retain({.keys = first, .priority = 80, .ttl_ms = 60'000});
  EXPECT_EQ(retained->blocks, 1);
  for (std::uint64_t n = 100; n < 100 + 4 * kSlots; ++n) store({key(n)}, Tier::disk);
  EXPECT_THAT(in(Tier::disk, keys(1, 3)), ElementsAreArray(first));
}

TEST_F(PrefetchTest, RetainForLongKeepsBlocksLonger) {
  for (const std::uint64_t n : {1u, 2u, 3u}) store({key(n)}, Tier::disk);
  EXPECT_TRUE(cache_->retain({.keys = keys(1, 1), .ttl_ms = 86'400'000}));
  for (std::uint64_t n = 100; n < 100 + 2 * kSlots - 1; ++n) store({key(n)}, Tier::disk);
  EXPECT_THAT(in(Tier::disk, keys(1, 3)), ElementsAreArray(keys(1, 1)));
}

TEST_F(PrefetchTest, RetainRaisesPrioritiesWithinTheTokensShare) {
  const auto over = [&](const LeaseHolder& holder) {
    return cache_->retain({.keys = keys(1, 12), .priority = 80, .ttl_ms = 60'000, .holder = holder})
        ->budget;
  };
  both_use_it();
  store(keys(1, 12), Tier::disk);
  EXPECT_EQ(over(kOwner), 11);
  EXPECT_EQ(over(kOther), 10) << "the owner's is raised already";
  // The beginning of the prefix.
  for (std::uint64_t n = 100; n < 100 + 4 * kSlots; ++n) store({key(n)}, Tier::disk);
  EXPECT_THAT(in(Tier::disk, keys(1, 12)), ElementsAreArray(keys(1, 2)));
  for (const BlockKey& each : keys(1, 2)) ASSERT_TRUE(cache_->erase(each.view()));
  store(keys(1, 12), Tier::disk);
  EXPECT_EQ(over(kOther), 11) << "their share is free again";
  EXPECT_EQ(over(nullptr), 0) << "without a token";
}

TEST_F(PrefetchTest, RetainExtendsATimeToLive) {
  ASSERT_TRUE(rig_.put(*cache_, {.keys = {key(1)}, .ttl_ms = 1'000}));
  ASSERT_TRUE(rig_.put(*cache_, {.keys = {key(2)}, .ttl_ms = 1'000}));
  EXPECT_EQ(cache_->retain({.keys = keys(1, 1), .ttl_ms = 5'000})->blocks, 1);
  rig_.clock.advance_ms(4'999);
  rig_.manager->tick();
  EXPECT_THAT(in(Tier::pinned, keys(1, 2)), ElementsAreArray(keys(1, 1)));
  rig_.clock.advance_ms(1);
  rig_.manager->tick();
  EXPECT_THAT(in(Tier::pinned, keys(1, 2)), IsEmpty());
}

}  // namespace
}  // namespace cairn::testing
