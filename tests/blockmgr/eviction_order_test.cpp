// Eviction orders in a cache's index, compared with their model.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/hash.hpp"
#include "blockmgr/eviction/shadow_caches.hpp"
#include "blockmgr/index/block_store.hpp"
#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

using Prompt = std::vector<BlockKey>;

// Generates conversations that come back and prompts that come once.
class Prompts {
 public:
  explicit Prompts(std::uint64_t seed) : random_(seed) {}

  struct Request {
    Prompt keys = {};
    RequestEnd end = {};
  };
  Request next() {
    if (random_() % 3 == 0) {
      Request once{.end = {.output_tokens = 400}};
      extend(once.keys, 3 + random_() % 20);
      return once;
    }
    if (open_.size() < 30) extend(open_.emplace_back(), 2 + random_() % 10);
    Prompt& prompt = open_[random_() % open_.size()];
    if (prompt.size() > 40) prompt.resize(1 + random_() % 10);
    extend(prompt, 1 + random_() % 4);
    return {.keys = prompt, .end = {.output_tokens = 20}};
  }

 private:
  void extend(Prompt& prompt, std::uint64_t blocks) {
    while (blocks-- > 0) prompt.push_back(key(next_++));
  }
  std::mt19937_64 random_;
  std::uint64_t next_ = 0;
  std::vector<Prompt> open_;
};

// One tier. Uses the index as a cache does, without concurrent requests.
class OneTier {
 public:
  OneTier(EvictionKind eviction, std::uint32_t capacity)
      : capacities_{0, capacity, 0},
        store_({.capacities = capacities_, .hash_seed = 5, .eviction = eviction}) {}

  std::size_t request(const Prompts::Request& request) {
    store_.set_time(++now_ms_);
    const std::vector<KeyView> keys = views(request.keys);
    const RequestNumber number = store_.begin_match(keys);
    std::vector<SlotRef> held;
    BlockStore::PrefixScan scan(store_, keys, {});
    for (auto found = scan.next(); !found.empty(); found = scan.next()) {
      held.insert(held.end(), found.begin(), found.end());
    }
    for (const SlotRef at : held) {
      store_.pin_for_lease(at);
      store_.found(at, number, store_.is_hub(at));
    }
    const std::size_t hits = held.size();
    if (hits < keys.size()) store_.missed(keys[hits], number);
    for (std::size_t i = hits; i < keys.size(); ++i) {
      if (!make_room()) break;
      const SlotRef at = store_.take(Tier::pinned, {.priority = 50});
      store_.lease_pinned(at);
      NewBlock block{.key = keys[i]};
      if (i > 0) block.parent = keys[i - 1];
      store_.commit(at, std::move(block));
      held.push_back(at);
    }
    store_.end_request(held, request.end);
    for (auto at = held.rbegin(); at != held.rend(); ++at) store_.unpin_for_lease(*at);
    return hits;
  }
  void set_eviction(EvictionKind eviction) {
    BlockStore::NewOrder order({.capacities = capacities_, .eviction = eviction}, capacities_);
    store_.set_eviction(order);
  }
  BlockStore& store() { return store_; }

 private:
  bool make_room() {
    if (store_.pool(Tier::pinned).free_count() > 0) return true;
    const auto victim = store_.next_victim(Tier::pinned);
    if (!victim) return false;
    EXPECT_FALSE(store_.holds_a_chain(victim->at)) << "a prefix is evicted from its tail";
    store_.drop(victim->at, EvictionReason::capacity);
    return true;
  }
  const std::array<std::uint32_t, kNumTiers> capacities_;
  BlockStore store_;
  std::int64_t now_ms_ = 0;
};

class EvictionOrder : public ::testing::TestWithParam<EvictionKind> {};

INSTANTIATE_TEST_SUITE_P(Orders, EvictionOrder,
                         ::testing::Values(EvictionKind::lru, EvictionKind::class_hazard),
                         [](const auto& order) { return std::string(to_string(order.param)); });

TEST_P(EvictionOrder, MatchesTheModel) {
  for (const std::uint32_t capacity : {60U, 200U}) {
    OneTier real(GetParam(), capacity);
    ShadowCaches model(
        {.eviction = GetParam(), .sizes = {{.capacity_blocks = capacity}}, .ghost_blocks = 65'536});
    Prompts prompts(capacity);
    std::uint64_t hits = 0;
    std::uint64_t model_hits = 0;
    std::uint64_t blocks = 0;
    for (int i = 0; i < 4000; ++i) {
      const auto request = prompts.next();
      std::vector<std::uint64_t> hashes;
      for (const BlockKey& each : request.keys) {
        hashes.push_back(hash_bytes(each.view().bytes(), 0));
      }
      hits += real.request(request);
      model_hits += model.request({.blocks = hashes, .unix_ms = i + 1, .end = request.end});
      blocks += request.keys.size();
    }
    const auto share = [&](std::uint64_t part) {
      return static_cast<double>(part) / static_cast<double>(blocks);
    };
    EXPECT_GT(share(hits), 0.03);
    EXPECT_NEAR(share(hits), share(model_hits), GetParam() == EvictionKind::lru ? 1e-9 : 0.003);
  }
}

TEST_P(EvictionOrder, CanChangeWhileBlocksAreListed) {
  OneTier tier(EvictionKind::lru, 100);
  Prompts prompts(1);
  for (const EvictionKind eviction :
       {GetParam(), EvictionKind::lru, GetParam(), EvictionKind::class_hazard}) {
    for (int i = 0; i < 100; ++i) tier.request(prompts.next());
    tier.set_eviction(eviction);
    EXPECT_EQ(tier.store().history_bytes() > 0, eviction != EvictionKind::lru);
  }
  for (int i = 0; i < 100; ++i) tier.request(prompts.next());
  // Every block can be evicted, tails first.
  std::uint32_t dropped = 0;
  while (const auto victim = tier.store().next_victim(Tier::pinned)) {
    EXPECT_FALSE(tier.store().holds_a_chain(victim->at));
    tier.store().drop(victim->at, EvictionReason::capacity);
    ++dropped;
  }
  EXPECT_GT(dropped, 90U);
  EXPECT_EQ(tier.store().pool(Tier::pinned).free_count(), 100U);
}

// A tier of prompts of one block each: their order of last use is exact.
class SingleBlocks {
 public:
  explicit SingleBlocks(EvictionKind eviction)
      : store_({.capacities = kCapacities, .eviction = eviction}) {}

  void use(std::uint64_t number, std::uint32_t output_tokens) {
    store_.set_time(++now_ms_);
    const BlockKey wanted = key(number);
    const std::vector<KeyView> asked = {wanted.view()};
    const RequestNumber request = store_.begin_match(asked);
    const EntryNumber entry = store_.find(wanted, {});
    SlotRef at;
    if (entry == kNoEntry) {
      store_.missed(wanted, request);
      at = store_.take(Tier::pinned, {.priority = 50});
      store_.lease_pinned(at);
      store_.commit(at, {.key = wanted});
    } else {
      at = store_.highest_copy(store_.entry(entry));
      store_.pin_for_lease(at);
      store_.found(at, request, false);
    }
    store_.end_request(std::span(&at, 1), {.output_tokens = output_tokens});
    store_.unpin_for_lease(at);
  }
  void use_some(std::mt19937_64& random, int times) {
    for (int i = 0; i < times; ++i) {
      use(random() % kBlocks, static_cast<std::uint32_t>(random() % 400));
    }
  }
  void set_eviction(EvictionKind eviction) {
    BlockStore::NewOrder order({.capacities = kCapacities, .eviction = eviction}, kCapacities);
    store_.set_eviction(order);
  }
  // Evicts `count` blocks and returns their last uses in order.
  std::vector<UseStamp> drop(int count) {
    std::vector<UseStamp> uses;
    while (count-- > 0) {
      const auto victim = store_.next_victim(Tier::pinned);
      if (!victim) break;
      uses.push_back(store_.record(victim->at).last_use);
      store_.drop(victim->at, EvictionReason::capacity);
    }
    return uses;
  }
  BlockStore& store() { return store_; }
  static constexpr std::uint64_t kBlocks = 100;

 private:
  static constexpr std::array<std::uint32_t, kNumTiers> kCapacities = {0, kBlocks, 0};
  BlockStore store_;
  std::int64_t now_ms_ = 0;
};

// A change of the order does not sort the lists again. Present blocks go first, by last use. Only
// blocks used after the change follow the new order.
TEST_P(EvictionOrder, ChangeKeepsPresentBlocksInOrderOfLastUse) {
  for (const EvictionKind before : {EvictionKind::lru, EvictionKind::class_hazard}) {
    SingleBlocks tier(before);
    std::mt19937_64 random(3);
    for (std::uint64_t i = 0; i < SingleBlocks::kBlocks; ++i) tier.use(i, 10);
    tier.use_some(random, 1000);
    tier.set_eviction(GetParam());
    const UseStamp change = UseStamp::at(1'100);  // each use took 1 ms
    tier.use_some(random, 30);
    const std::vector<UseStamp> uses = tier.drop(SingleBlocks::kBlocks);
    ASSERT_EQ(uses.size(), SingleBlocks::kBlocks);
    const auto later = std::ranges::find_if(uses, [&](UseStamp use) { return use > change; });
    EXPECT_GE(later - uses.begin(), 70) << to_string(before);
    EXPECT_TRUE(std::is_sorted(uses.begin(), later)) << to_string(before);
    EXPECT_TRUE(std::all_of(later, uses.end(), [&](UseStamp use) { return use > change; }))
        << to_string(before);
  }
}

TEST_P(EvictionOrder, KeepsLearningWhileFollowingLru) {
  SingleBlocks tier(GetParam());
  std::mt19937_64 random(7);
  for (std::uint64_t i = 0; i < SingleBlocks::kBlocks; ++i) tier.use(i, 10);
  tier.use_some(random, 1000);
  tier.store().follow_lru(true);
  tier.use_some(random, 100);
  const std::vector<UseStamp> uses = tier.drop(50);
  EXPECT_EQ(uses.size(), 50U);
  EXPECT_TRUE(std::ranges::is_sorted(uses));
  EXPECT_EQ(tier.store().ghost_histories(), GetParam() == EvictionKind::lru ? 0U : 50U);
  tier.store().follow_lru(false);
  EXPECT_EQ(tier.drop(100).size(), 50U);
}

CacheConfig ordered_by(EvictionKind eviction, TierSizes sizes) {
  CacheConfig config = small_cache(sizes);
  config.eviction = eviction;
  return config;
}

TEST_P(EvictionOrder, EvictsLowerPriorityFirst) {
  Rig rig;
  const auto cache = rig.cache(ordered_by(GetParam(), {.pinned = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2), .priority = 90}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(11, 2), .priority = 10}));
  rig.match(*cache, keys(11, 2), 0);
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(21, 2)}));
  EXPECT_EQ(rig.match(*cache, keys(1, 2), 0).blocks.size(), 2U);
  EXPECT_EQ(rig.match(*cache, keys(11, 2), 0).blocks.size(), 0U);
}

// A block's history moves with it between tiers.
TEST_P(EvictionOrder, HistoryFollowsABlockThroughTheTiers) {
  if (GetParam() == EvictionKind::lru) return;
  BlockStore store({.capacities = {0, 2, 2}, .eviction = GetParam()});
  const auto put = [&store](SlotRef at, int number) {
    store.commit(at, {.key = key(static_cast<std::uint64_t>(number))});
    store.unpin(at);
  };
  const SlotRef upper = store.take(Tier::pinned, {.priority = 50});
  put(upper, 1);
  // A copy below, made before the block was used again.
  const SlotRef lower = store.take(Tier::disk, {.priority = 50});
  store.history(lower) = store.history(upper);
  store.add_copy(store.record(upper).owner, lower);
  store.unpin(lower);
  const BlockKey wanted = key(1);
  const std::vector<KeyView> asked = {wanted.view()};
  const RequestNumber number = store.begin_match(asked);
  store.pin_for_lease(upper);
  store.found(upper, number, store.is_hub(upper));
  store.unpin_for_lease(upper);
  const BlockHistory history = store.history(upper);
  EXPECT_NE(store.history(lower).request, history.request);
  store.drop(upper, EvictionReason::capacity);
  EXPECT_EQ(store.history(lower).request, history.request);
  EXPECT_EQ(store.history(lower).uses, history.uses);
  // The history also returns after the block was gone.
  store.drop(lower, EvictionReason::capacity);
  EXPECT_EQ(store.ghost_histories(), 1U);
  const SlotRef again = store.take(Tier::pinned, {.priority = 50});
  put(again, 1);
  EXPECT_EQ(store.ghost_histories(), 0U);
  EXPECT_EQ(store.history(again).uses, history.uses + 1);
}

// Block 1 was used often, block 2 once but later, and block 3 lies on disk. When block 3 moves up,
// the block that is worth less moves down. An order that has learnt nothing yet gets a hint.
TEST(EvictionOrder, PromotedBlockDisplacesALessValuableOne) {
  for (const EvictionKind eviction : {EvictionKind::lru, EvictionKind::class_hazard}) {
    SCOPED_TRACE(to_string(eviction));
    Rig rig;
    CacheConfig config = small_cache({.pinned = 2, .disk = 4});
    config.eviction = eviction;
    const auto cache = rig.cache(config);
    const auto tier_of = [&](std::uint64_t number) {
      return rig.match(*cache, keys(number, 1), 0).blocks.front().tier;
    };
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(3, 1)}));
    ASSERT_EQ(rig.transfer(*cache, {.keys = keys(3, 1), .to = Tier::disk, .move = true}).state,
              TransferState::done);
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1)}));
    for (std::uint64_t other = 100; other < 104; ++other) {
      rig.match(*cache, {key(1), key(other)}, 0);
    }
    rig.clock.advance_ms(1'000);
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(2, 1)}));
    if (eviction == EvictionKind::class_hazard) {
      const BlockKey last = key(2);
      const std::vector<KeyView> hinted_keys = {last.view()};
      const auto hinted =
          cache->hint({.keys = hinted_keys, .reuse = {.kind = ReuseHint::Kind::never}});
      ASSERT_TRUE(hinted && hinted->blocks == 1);
    }
    ASSERT_EQ(rig.transfer(*cache, {.keys = keys(3, 1), .to = Tier::pinned}).state,
              TransferState::done);
    const std::uint64_t displaced = eviction == EvictionKind::lru ? 1 : 2;
    EXPECT_EQ(tier_of(displaced), Tier::disk);
    EXPECT_EQ(tier_of(3 - displaced), Tier::pinned);
    EXPECT_EQ(tier_of(3), Tier::pinned);
  }
}

// The workload alternates. A loop larger than the cache teaches class_hazard what is wrong for a
// moving set that fits the cache.
TEST(EvictionOrder, FollowsLruWhenItsOrderDoesWorse) {
  constexpr std::uint32_t kCapacity = 300;
  constexpr std::uint64_t kBlocks = 20;
  constexpr std::uint64_t kInLoop = kCapacity * 12 / 10 / kBlocks;
  constexpr std::uint64_t kInSet = kCapacity * 6 / 10 / kBlocks;
  Rig rig;
  const auto cache = rig.cache(ordered_by(EvictionKind::class_hazard, {.pinned = kCapacity}));
  std::mt19937_64 random(1);
  bool has_followed = false;
  for (std::uint64_t i = 0; i < 2'400; ++i) {
    const bool is_loop = i / 300 % 2 == 0;
    const std::uint64_t prompt =
        is_loop ? i % kInLoop : 1'000 + i / (4 * kInSet) * kInSet + random() % kInSet;
    const std::vector<BlockKey> all = keys(prompt * kBlocks, kBlocks);
    const MatchResult found = rig.match(*cache, all, 1'000);
    const std::size_t there = found.blocks.size();
    if (there < all.size()) {
      Rig::Put rest{.keys = {all.begin() + static_cast<std::ptrdiff_t>(there), all.end()}};
      if (there > 0) rest.parent = all[there - 1];
      ASSERT_TRUE(rig.put(*cache, rest));
    }
    if (found.lease) {
      ASSERT_TRUE(cache->release(*found.lease, {.output_tokens = 10}));
    }
    rig.clock.advance_ms(300);
    has_followed = has_followed || cache->miss_ratio().follows_lru;
  }
  EXPECT_TRUE(has_followed);
  EXPECT_EQ(cache->stats().follows_lru, cache->miss_ratio().follows_lru ? 1U : 0U);
  const std::uint64_t changes = cache->stats().order_changes;
  EXPECT_GE(changes, 1U);
  // The counter of changes does not restart; only the watch of requests does.
  CacheChange larger;
  larger.num_blocks[index_of(Tier::pinned)] = 2 * kCapacity;
  ASSERT_TRUE(cache->change(larger, [](const CacheConfig&) { return Result<>(); }));
  EXPECT_EQ(cache->miss_ratio().requests, 0U);
  EXPECT_GE(cache->stats().order_changes, changes);
}

// An engine first looks a prompt up and then takes a lease. That is one use.
TEST(BlockUses, RepeatedMatchIsTheSameRequest) {
  BlockUses uses(
      {.eviction = EvictionKind::class_hazard, .capacity_blocks = 10, .ghost_bytes = 640});
  BlockHistory block;
  uses.missed(7, uses.begin_match({.blocks = 1, .last_key_hash = 7}));
  uses.stored(block, {.key_hash = 7});
  EXPECT_EQ(block.uses, 1U);
  uses.found(block, uses.begin_match({.blocks = 1, .last_key_hash = 7}), false);
  EXPECT_EQ(block.uses, 1U);
  for (std::uint64_t other = 0; other < 20; ++other) {
    uses.begin_match({.blocks = 1, .last_key_hash = 100 + other});
  }
  uses.found(block, uses.begin_match({.blocks = 1, .last_key_hash = 7}), false);
  EXPECT_EQ(block.uses, 2U);
}

TEST(BlockUses, StoredBlockBelongsToTheMatchThatMissedIt) {
  BlockUses uses(
      {.eviction = EvictionKind::class_hazard, .capacity_blocks = 10, .ghost_bytes = 640});
  // Hashes differ in their highest bits.
  const std::uint64_t a = 1ull << 60, b = 2ull << 60, c = 3ull << 60, d = 4ull << 60;
  uses.missed(a, uses.begin_match({.blocks = 2, .last_key_hash = b}));
  uses.missed(c, uses.begin_match({.blocks = 2, .last_key_hash = d}));
  BlockHistory first;
  BlockHistory other;
  BlockHistory second;
  uses.stored(first, {.key_hash = a});
  uses.stored(other, {.key_hash = c});
  uses.stored(second, {.key_hash = b, .parent = &first});
  EXPECT_EQ(second.request, first.request);
  EXPECT_EQ(other.request, first.request + 1);
  // The earlier miss of `a` is not used for its later store.
  uses.gone(first, a);
  uses.missed(d, uses.begin_match({.blocks = 3, .last_key_hash = 9}));
  BlockHistory before;
  uses.stored(before, {.key_hash = d});
  uses.stored(first, {.key_hash = a, .parent = &before});
  EXPECT_EQ(first.request, before.request);
  EXPECT_EQ(first.uses, 2U);
  BlockHistory stray;
  uses.stored(stray, {.key_hash = 5ull << 60});
  EXPECT_EQ(stray.request, before.request + 1);
}

}  // namespace
}  // namespace cairn::testing
