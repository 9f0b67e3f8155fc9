// Clients' hints about future use. They change only the order of eviction.
#include <gtest/gtest.h>

#include "blockmgr/reuse/sessions.hpp"
#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

constexpr ReuseHint kNever{.kind = ReuseHint::Kind::never};
constexpr ReuseHint kLater{.kind = ReuseHint::Kind::later};
constexpr ReuseHint kSoon{.kind = ReuseHint::Kind::soon};
constexpr std::int64_t kSoonMs = 120'000;

const auto kA = std::make_shared<const std::string>("a");
const auto kB = std::make_shared<const std::string>("b");

struct Use {
  LeaseHolder holder = {};
  RequestHint hint = {};
  std::uint8_t priority = 50;
};

class Hints : public ::testing::TestWithParam<EvictionKind> {
 protected:
  static constexpr std::uint32_t kBlocks = 16;

  Hints() : cache_(rig_.cache(config_of(GetParam()))) {}

  static CacheConfig config_of(EvictionKind eviction) {
    CacheConfig config = small_cache({.pinned = kBlocks});
    config.eviction = eviction;
    return config;
  }

  // Stores a prefix: each block is the parent of the next.
  void store(const std::vector<BlockKey>& list, const Use& by = {}) {
    auto allocation = rig_.allocate(*cache_, {.count = static_cast<std::uint32_t>(list.size()),
                                              .tier = Tier::pinned,
                                              .priority = by.priority,
                                              .holder = by.holder});
    ASSERT_TRUE(allocation) << allocation.error().detail;
    std::vector<CommitBlock> blocks;
    for (std::size_t i = 0; i < list.size(); ++i) {
      blocks.push_back({.handle = allocation->blocks[i], .key = list[i]});
      if (i > 0) blocks.back().parent = list[i - 1];
    }
    const auto done = rig_.await<std::vector<CommitStatus>>([&](auto answer) {
      cache_->commit(allocation->lease, std::move(blocks), std::move(answer),
                     {.release = true, .hint = by.hint});
    });
    ASSERT_TRUE(done) << done.error().detail;
  }
  LeaseId match(const std::vector<BlockKey>& list, const Use& by = {}) {
    MatchResult result;
    EXPECT_TRUE(cache_->match(views(list), 30'000, result, nullptr, by.holder, by.hint));
    EXPECT_EQ(result.blocks.size(), list.size());
    return result.lease.value_or(LeaseId{});
  }
  void use(const std::vector<BlockKey>& list, const Use& by = {}) {
    EXPECT_TRUE(cache_->release(match(list, by)));
  }
  HintResult hint(const std::vector<BlockKey>& list, ReuseHint reuse,
                  const LeaseHolder& holder = {}) {
    const auto names = views(list);
    return cache_->hint({.keys = names, .reuse = reuse, .holder = holder}).value();
  }
  HintResult hint_session(std::string_view session, ReuseHint reuse,
                          const LeaseHolder& holder = {}) {
    return cache_->hint({.session = session, .reuse = reuse, .holder = holder}).value();
  }
  // Fills the cache with blocks without hints, used later than the present ones.
  void fill() {
    const auto free = static_cast<std::size_t>(count(*cache_, Tier::pinned, SlotState::free));
    for (const BlockKey& each : keys(next_, free)) store({each});
    next_ += free;
  }
  // The order in which these blocks are evicted.
  std::vector<BlockKey> order_of(std::vector<BlockKey> list) {
    fill();
    std::vector<BlockKey> gone;
    for (std::uint32_t i = 0; i < 2 * kBlocks && !list.empty(); ++i) {
      store({key(next_++)});
      const std::vector<bool> present = cache_->contains(views(list));
      for (std::size_t k = list.size(); k-- > 0;) {
        if (present[k]) continue;
        gone.push_back(list[k]);
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(k));
      }
    }
    return gone;
  }

  Rig rig_;
  std::shared_ptr<Cache> cache_;
  std::uint64_t next_ = 1000;
};

INSTANTIATE_TEST_SUITE_P(Orders, Hints,
                         ::testing::Values(EvictionKind::lru, EvictionKind::class_hazard),
                         [](const auto& order) { return std::string(to_string(order.param)); });

using Keys = std::vector<BlockKey>;

TEST_P(Hints, NeverGoesFirst) {
  store({key(1)});
  store({key(2)});
  store({key(3)}, {.hint = {.reuse = kNever}});
  EXPECT_EQ(order_of({key(1), key(2), key(3)}).front(), key(3));
}

TEST_P(Hints, LaterGoesAfterNeverAndBeforeTheRest) {
  store({key(1)});
  store({key(2)}, {.hint = {.reuse = kLater}});
  store({key(3)}, {.hint = {.reuse = kNever}});
  const Keys gone = order_of({key(1), key(2), key(3)});
  EXPECT_EQ((Keys{gone[0], gone[1]}), (Keys{key(3), key(2)}));
}

TEST_P(Hints, SoonStays) {
  store({key(1)}, {.hint = {.reuse = kSoon}});
  EXPECT_EQ(order_of({key(1)}), Keys());
}

TEST_P(Hints, ReleaseAppliesItsHint) {
  store({key(1)});
  store({key(2)});
  const LeaseId lease = match({key(2)});
  ASSERT_TRUE(cache_->release(lease, {.hint = {.reuse = kNever}}));
  EXPECT_EQ(order_of({key(1), key(2)}).front(), key(2));
}

TEST_P(Hints, PartialReleaseAppliesItsHint) {
  store({key(1)});
  store({key(2)});
  MatchResult result;
  ASSERT_TRUE(cache_->match(views({key(2)}), 30'000, result));
  ASSERT_TRUE(cache_->release(*result.lease, {.blocks = result.blocks, .hint = {.reuse = kNever}}));
  EXPECT_EQ(order_of({key(1), key(2)}).front(), key(2));
}

TEST_P(Hints, MatchHintAppliesWhenItsLeaseEnds) {
  store({key(1)});
  store({key(2)});
  const LeaseId lease = match({key(2)}, {.hint = {.reuse = kNever}});
  rig_.clock.advance_ms(30'001);  // the lease expires
  EXPECT_FALSE(cache_->release(lease));
  EXPECT_EQ(order_of({key(1), key(2)}).front(), key(2));
}

TEST_P(Hints, MatchWithoutALeaseAppliesItsHintAtOnce) {
  store({key(1)});
  store({key(2)});
  MatchResult result;
  ASSERT_TRUE(cache_->match(views({key(2)}), 0, result, nullptr, {}, {.reuse = kNever}));
  EXPECT_EQ(order_of({key(1), key(2)}).front(), key(2));
}

TEST_P(Hints, UseCancelsAHint) {
  store({key(1)}, {.hint = {.reuse = kNever}});
  store({key(2)}, {.hint = {.reuse = kLater}});
  use({key(1)});
  EXPECT_EQ(order_of({key(1), key(2)}).front(), key(2));
  // A match without a lease is a use too.
  store({key(3)}, {.hint = {.reuse = kNever}});
  store({key(4)}, {.hint = {.reuse = kLater}});
  MatchResult result;
  ASSERT_TRUE(cache_->match(views({key(3)}), 0, result));
  EXPECT_EQ(order_of({key(3), key(4)}).front(), key(4));
}

TEST_P(Hints, SharedPrefixIsNotLowered) {
  store({key(1), key(2), key(3)});
  store({key(9)});
  // Another prompt of the same token continues from the second block.
  use({key(1), key(2)});
  auto allocation = rig_.allocate(*cache_, {.count = 1, .tier = Tier::pinned});
  ASSERT_TRUE(rig_.commit(*cache_, allocation->lease,
                          {{.handle = allocation->blocks[0], .key = key(4), .parent = key(2)}}));
  ASSERT_TRUE(cache_->release(allocation->lease));
  ASSERT_TRUE(cache_->release(match({key(1), key(2), key(3)}), {.hint = {.reuse = kNever}}));
  const Keys gone = order_of({key(1), key(2), key(3), key(4), key(9)});
  EXPECT_EQ(gone[0], key(3));
  if (GetParam() == EvictionKind::lru) {
    EXPECT_EQ(gone[1], key(9)) << "then the least recently used";
  }
}

// One lease holds the blocks the request found, another those it stored.
TEST_P(Hints, BothLeasesOfARequestApplyTheHint) {
  store({key(9)});
  store({key(1), key(2)});
  const LeaseId found = match({key(1), key(2)});
  auto allocation = rig_.allocate(*cache_, {.count = 1, .tier = Tier::pinned});
  ASSERT_TRUE(rig_.commit(*cache_, allocation->lease,
                          {{.handle = allocation->blocks[0], .key = key(3), .parent = key(2)}}));
  ASSERT_TRUE(cache_->release(allocation->lease, {.hint = {.reuse = kNever}}));
  ASSERT_TRUE(cache_->release(found, {.hint = {.reuse = kNever}}));
  EXPECT_EQ(order_of({key(1), key(2), key(3), key(9)}), (Keys{key(3), key(2), key(1), key(9)}));
}

// Another prompt replaces the only child of key 1.
TEST_P(Hints, HintOfAnErasedTailDoesNotAffectTheNext) {
  store({key(1), key(2)});
  EXPECT_EQ(hint({key(2)}, kNever).blocks, 1U);
  ASSERT_TRUE(cache_->erase(key(2)));
  auto allocation = rig_.allocate(*cache_, {.count = 1, .tier = Tier::pinned});
  ASSERT_TRUE(rig_.commit(*cache_, allocation->lease,
                          {{.handle = allocation->blocks[0], .key = key(4), .parent = key(1)}}));
  ASSERT_TRUE(cache_->release(allocation->lease));
  EXPECT_EQ(hint({key(1)}, kNever).shared, 1U);
  EXPECT_EQ(hint({key(4)}, kNever).blocks, 1U);
  use({key(1), key(4)});
  EXPECT_EQ(hint({key(1)}, kNever).shared, 1U);
  EXPECT_EQ(hint({key(1), key(4)}, kLater).blocks, 2U);
}

TEST_P(Hints, BlockUsedByAnotherTokenIsNotLowered) {
  store({key(1)}, {.holder = kA});
  store({key(2)}, {.holder = kA});
  use({key(2)}, {.holder = kB});
  const HintResult result = hint({key(2)}, kNever, kA);
  EXPECT_EQ(result.blocks, 0U);
  EXPECT_EQ(result.shared, 1U);
  // Neither token can lower it through a lease.
  use({key(2)}, {.holder = kA, .hint = {.reuse = kNever}});
  EXPECT_EQ(hint({key(2)}, kLater, kB).shared, 1U);
  if (GetParam() == EvictionKind::lru) {
    EXPECT_EQ(order_of({key(1), key(2)}).front(), key(1));
  }
}

TEST_P(Hints, ReadsAndDuplicatesAreUsesByAnotherToken) {
  store(keys(1, 1), {.holder = kA});
  store(keys(2, 1), {.holder = kA});
  store(keys(3, 1), {.holder = kA});
  { ASSERT_TRUE(cache_->read(key(1), std::nullopt, kB)); }
  store(keys(2, 1), {.holder = kB});
  { EXPECT_EQ(cache_->read_prefix(views({key(3)}), kB).value().size(), 1U); }
  for (std::uint64_t n = 1; n <= 3; ++n) EXPECT_EQ(hint(keys(n, 1), kNever, kA).shared, 1U) << n;
}

TEST_P(Hints, TokenCannotLowerABlockItNeverUsed) {
  store({key(1)}, {.holder = kA});
  EXPECT_EQ(hint({key(1)}, kNever, kB).shared, 1U);
  EXPECT_EQ(hint({key(1)}, kNever).shared, 1U);  // without a token
  EXPECT_EQ(hint({key(1)}, kNever, kA).blocks, 1U);
}

TEST_P(Hints, HintCanNameKeys) {
  store({key(1)});
  store({key(2), key(3)});
  const HintResult result = hint({key(2), key(3), key(77)}, kNever);
  EXPECT_EQ(result.blocks, 2U);
  EXPECT_EQ(result.missing, 1U);
  const Keys gone = order_of({key(1), key(2), key(3)});
  EXPECT_EQ((Keys{gone[0], gone[1]}), (Keys{key(3), key(2)}));
}

TEST_P(Hints, HintOnLeasedBlocksAppliesWhenTheLeaseEnds) {
  store({key(1)});
  store({key(2)});
  const LeaseId lease = match({key(2)});
  EXPECT_EQ(hint({key(2)}, kNever).blocks, 1U);
  ASSERT_TRUE(cache_->release(lease));
  EXPECT_EQ(order_of({key(1), key(2)}).front(), key(2));
}

TEST_P(Hints, SessionHintCoversAllItsRequests) {
  store({key(1)});
  store({key(2), key(3)}, {.hint = {.session = "chat"}});
  store({key(4)});
  use({key(4)}, {.hint = {.session = "chat"}});
  EXPECT_EQ(hint_session("other", kNever).blocks, 0U);
  EXPECT_EQ(hint_session("chat", kNever).blocks, 3U);
  const Keys gone = order_of({key(1), key(2), key(3), key(4)});
  EXPECT_NE(std::ranges::find(gone, key(1)), gone.begin());
  EXPECT_EQ(std::ranges::find(gone, key(1)), gone.begin() + 3);
}

TEST_P(Hints, ReleaseHintsTheWholeSession) {
  store({key(1)});
  store({key(2)}, {.hint = {.session = "chat"}});
  store({key(3)});
  const ReleaseRequest end{.hint = {.reuse = kNever, .session = "chat"}};
  ASSERT_TRUE(cache_->release(match({key(3)}), end));
  const Keys gone = order_of({key(1), key(2), key(3)});
  EXPECT_EQ(gone.back(), key(1));
}

TEST_P(Hints, SessionBelongsToItsToken) {
  store({key(1)}, {.holder = kA, .hint = {.session = "chat"}});
  EXPECT_EQ(hint_session("chat", kNever, kB).blocks, 0U);
  EXPECT_EQ(hint_session("chat", kNever).blocks, 0U);
  EXPECT_EQ(hint_session("chat", kNever, kA).blocks, 1U);
}

TEST_P(Hints, SessionHintIgnoresBlocksThatReplacedItsOwn) {
  store({key(1)}, {.hint = {.session = "chat"}});
  ASSERT_TRUE(cache_->erase(key(1)));
  store({key(2)});  // reuses the entry and the slot
  EXPECT_EQ(hint_session("chat", kNever).blocks, 0U);
}

TEST_P(Hints, LeasesAndPrioritiesOverrideHints) {
  store({key(1)}, {.priority = 60});
  ASSERT_TRUE(cache_->release(match({key(1)}), {.hint = {.reuse = kNever}}));
  store({key(2)});
  const LeaseId lease = match({key(2)});
  EXPECT_EQ(hint({key(2)}, kNever).blocks, 1U);
  for (int i = 0; i < 40; ++i) store({key(next_++)});
  EXPECT_EQ(cache_->contains(views({key(1), key(2)})), (std::vector<bool>{true, true}));
  ASSERT_TRUE(cache_->release(lease));
}

TEST_P(Hints, CountsEachKind) {
  store({key(1)}, {.hint = {.reuse = kNever}});
  use({key(1)}, {.hint = {.reuse = kSoon}});
  ASSERT_TRUE(cache_->release(
      match({key(1)}), {.hint = {.reuse = {.kind = ReuseHint::Kind::within, .within_ms = 5}}}));
  hint({key(1)}, kLater);
  using enum ReuseHint::Kind;
  for (const auto kind : {never, soon, later, within}) {
    EXPECT_EQ(cache_->stats().hints[static_cast<std::size_t>(kind)], 1U) << to_string(kind);
  }
}

TEST_P(Hints, HintFollowsABlockToALowerTier) {
  CacheConfig config = small_cache({.pinned = 4, .disk = 8});
  config.name = "tiers";
  config.eviction = GetParam();
  cache_ = rig_.cache(config);
  store({key(1)});
  store({key(2)}, {.hint = {.reuse = kNever}});
  for (std::uint64_t n = 10; n < 14; ++n) {
    store({key(n)});
    rig_.scheduler->wait_idle();
  }
  ASSERT_TRUE(is_in(*cache_, Tier::disk, key(1)));
  ASSERT_TRUE(is_in(*cache_, Tier::disk, key(2)));
  for (std::uint64_t n = 20; cache_->contains(views({key(2)}))[0]; ++n) {
    ASSERT_LT(n, 40U);
    EXPECT_TRUE(cache_->contains(views({key(1)}))[0]);
    store({key(n)});
    rig_.scheduler->wait_idle();
  }
}

class LruHints : public Hints {};
INSTANTIATE_TEST_SUITE_P(Lru, LruHints, ::testing::Values(EvictionKind::lru));

TEST_P(LruHints, SoonEndsAfterItsTime) {
  store({key(1)}, {.hint = {.reuse = kSoon}});
  rig_.clock.advance_ms(kSoonMs - 1);
  EXPECT_TRUE(order_of({key(1)}).empty());
  rig_.clock.advance_ms(1);
  EXPECT_EQ(order_of({key(1)}), Keys{key(1)});
}

TEST_P(LruHints, ShorterWithinEndsFirst) {
  const auto within = [](std::uint64_t ms) {
    return Use{.hint = {.reuse = {.kind = ReuseHint::Kind::within, .within_ms = ms}}};
  };
  store({key(1)}, within(300'000));
  store({key(2)}, within(20'000));
  rig_.clock.advance_ms(60'000);
  EXPECT_EQ(order_of({key(1), key(2)}), Keys{key(2)});
}

// Hinting `soon` for everything keeps no more than LRU does.
TEST_P(LruHints, SoonKeepsAtMostAQuarter) {
  for (std::uint64_t n = 1; n <= kBlocks / 4; ++n) {
    store({key(n)}, {.hint = {.reuse = kSoon}});
    rig_.clock.advance_ms(1);
  }
  EXPECT_TRUE(order_of(keys(1, kBlocks / 4)).empty());
  store({key(100)}, {.hint = {.reuse = kSoon}});
  EXPECT_EQ(order_of(keys(1, kBlocks / 4)), keys(1, 1));
}

TEST(Sessions, ForgetsTheLeastRecentlyUsed) {
  Sessions sessions;
  const BlockStore::Trail block{.entry = 1, .tag = 2};
  const LeaseHolder nobody;
  for (std::size_t i = 0; i <= Sessions::kMaxSessions; ++i) {
    sessions.add({nobody, std::to_string(i)}, {.blocks = {&block, 1}});
    if (i == 10) {
      EXPECT_EQ(sessions.find({nobody, "0"}).size(), 1U);  // used again
    }
  }
  EXPECT_EQ(sessions.size(), Sessions::kMaxSessions);
  EXPECT_EQ(sessions.find({nobody, "0"}).size(), 1U);
  EXPECT_TRUE(sessions.find({nobody, "1"}).empty());
  EXPECT_EQ(sessions.find({nobody, "2"}).size(), 1U);
}

TEST(Sessions, KeepsEachBlockOnce) {
  Sessions sessions;
  const LeaseHolder nobody;
  std::vector<BlockStore::Trail> prompt;
  for (std::uint32_t i = 0; i < 20; ++i) prompt.push_back({.entry = i, .tag = i});
  const Sessions::Name name{nobody, "chat"};
  const auto known = [&] { return sessions.find(name).size(); };
  sessions.add(name, {std::span(prompt).first(8)});       // a match
  sessions.add(name, {std::span(prompt).subspan(8, 4)});  // its commit
  sessions.add(name, {std::span(prompt).subspan(8, 4)});  // its release
  EXPECT_EQ(known(), 12U);
  sessions.add(name, {prompt});  // the next request continues
  EXPECT_EQ(known(), 20U);
  std::ranges::reverse(prompt);
  sessions.add(name, {std::span(prompt).first(1)});
  EXPECT_EQ(known(), 20U);
}

TEST(Sessions, ListsTheLatestFirst) {
  Sessions sessions;
  const BlockStore::Trail block{.entry = 1, .tag = 2};
  const auto names = [&](const std::optional<std::string>& holder, std::size_t limit) {
    std::vector<std::string> all;
    for (const auto& known : sessions.latest(holder, limit)) all.push_back(known.session);
    return all;
  };
  sessions.add({kA, "1:first"}, {{&block, 1}, 10});
  sessions.add({nullptr, "second"}, {{&block, 1}, 20});
  sessions.add({kB, "third"}, {{&block, 1}, 30});
  sessions.add({kA, "1:first"}, {{&block, 1}, 40});
  EXPECT_EQ(names({}, 9), (std::vector<std::string>{"1:first", "third", "second"}));
  EXPECT_EQ(names({}, 2), (std::vector<std::string>{"1:first", "third"}));
  EXPECT_EQ(names(*kB, 9), std::vector<std::string>{"third"});
  EXPECT_EQ(sessions.latest({}, 1).front().last_use_unix_ms, 40);
  EXPECT_EQ(sessions.peek({kA, "1:first"}).size(), 1U);
  EXPECT_TRUE(sessions.peek({kB, "1:first"}).empty());
  EXPECT_EQ(names({}, 1), std::vector<std::string>{"1:first"}) << "a look is no use";
}

TEST(Sessions, LimitsBlocks) {
  Sessions sessions;
  const LeaseHolder nobody;
  std::vector<BlockStore::Trail> prompt;
  for (std::uint32_t i = 0; i < Sessions::kMaxBlocksEach + 5; ++i) prompt.push_back({i, i});
  const std::size_t most = Sessions::kMaxBlocks / Sessions::kMaxBlocksEach;
  for (std::size_t i = 0; i <= most; ++i) sessions.add({nobody, std::to_string(i)}, {prompt});
  EXPECT_EQ(sessions.size(), most);
  EXPECT_TRUE(sessions.find({nobody, "0"}).empty());
  EXPECT_EQ(sessions.find({nobody, "1"}).size(), Sessions::kMaxBlocksEach);
}

TEST(Users, UsersBeyondTheLimitShareANumber) {
  UserTable users;
  EXPECT_EQ(users.number_of(kA), users.number_of(std::make_shared<const std::string>("a")));
  EXPECT_NE(users.number_of(kA), users.number_of(kB));
  EXPECT_NE(users.number_of(nullptr), users.number_of(kA));
  for (int i = 0; i < 300; ++i) users.number_of(std::make_shared<std::string>(std::to_string(i)));
  EXPECT_EQ(users.number_of(std::make_shared<std::string>("one more")), kSeveralUsers);
  EXPECT_NE(users.number_of(kA), kSeveralUsers);
}

}  // namespace
}  // namespace cairn::testing
