// Orders of eviction, by themselves: what is expected is computed anew, slowly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "blockmgr/eviction/capacity_curve.hpp"
#include "blockmgr/eviction/class_hazard.hpp"
#include "blockmgr/eviction/ghost_table.hpp"
#include "blockmgr/eviction/hazard_table.hpp"
#include "blockmgr/eviction/optimum.hpp"
#include "blockmgr/eviction/order_choice.hpp"
#include "blockmgr/eviction/shadow_cache.hpp"
#include "blockmgr/eviction/stack_distances.hpp"

namespace cairn {
namespace {

// A block's hash: GhostTable wants its bits mixed.
std::uint64_t hashed(std::uint64_t id) {
  std::uint64_t value = (id + 1) * 0x9E37'79B9'7F4A'7C15;
  value ^= value >> 29U;
  return value * 0xBF58'476D'1CE4'E5B9;
}

struct Trace {
  std::vector<std::vector<std::uint64_t>> prompts;
  std::vector<ShadowRequest> requests() const {
    std::vector<ShadowRequest> all;
    for (const auto& prompt : prompts) all.push_back({.blocks = prompt});
    return all;
  }
};

// Prompts on a random tree: each goes on from some block of an earlier one, or starts anew.
Trace random_trace(std::mt19937_64& random, std::size_t requests, std::size_t longest) {
  Trace trace;
  std::uint64_t next = 0;
  for (std::size_t i = 0; i < requests; ++i) {
    std::vector<std::uint64_t> prompt;
    if (!trace.prompts.empty() && random() % 4 != 0) {
      const auto& earlier = trace.prompts[random() % trace.prompts.size()];
      prompt.assign(earlier.begin(),
                    earlier.begin() + static_cast<std::ptrdiff_t>(random() % (earlier.size() + 1)));
    }
    for (std::size_t more = random() % 3; more > 0 && prompt.size() < longest; --more) {
      prompt.push_back(hashed(next++));
    }
    if (prompt.empty()) prompt.push_back(hashed(next++));
    trace.prompts.push_back(std::move(prompt));
  }
  return trace;
}

// LRU from the tail, read off its definition.
class NaiveLru {
 public:
  explicit NaiveLru(std::size_t capacity) : capacity_(capacity) {}

  std::uint32_t request(const std::vector<std::uint64_t>& prompt) {
    ++now_;
    std::uint32_t hits = 0;
    while (hits < prompt.size() && present_.contains(prompt[hits])) ++hits;
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      if (!present_.contains(prompt[i])) {
        if (present_.size() == capacity_ && !evict()) break;
        present_[prompt[i]].parent = i > 0 ? prompt[i - 1] : 0;
      }
      // Of one request the deepest block counts as the oldest.
      present_[prompt[i]].used = {now_, -static_cast<std::int64_t>(i)};
      pinned_.insert(prompt[i]);
    }
    pinned_.clear();
    return hits;
  }

 private:
  struct Block {
    std::uint64_t parent = 0;
    std::pair<std::uint64_t, std::int64_t> used;
  };
  bool evict() {
    std::set<std::uint64_t> parents;
    for (const auto& [hash, block] : present_) parents.insert(block.parent);
    const Block* oldest = nullptr;
    std::uint64_t victim = 0;
    for (const auto& [hash, block] : present_) {
      if (parents.contains(hash) || pinned_.contains(hash)) continue;
      if (oldest != nullptr && oldest->used < block.used) continue;
      oldest = &block;
      victim = hash;
    }
    return oldest != nullptr && present_.erase(victim) == 1;
  }

  std::size_t capacity_;
  std::uint64_t now_ = 0;
  std::map<std::uint64_t, Block> present_;
  std::set<std::uint64_t> pinned_;
};

TEST(ShadowCache, WithLruKeepsWhatTheDefinitionSays) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Trace trace = random_trace(random, 300, 12);
    const std::size_t capacity = 3 + random() % 60;
    NaiveLru naive(capacity);
    ShadowCache cache(
        {.eviction = EvictionKind::lru, .capacity_blocks = static_cast<std::uint32_t>(capacity)});
    for (std::size_t i = 0; i < trace.prompts.size(); ++i) {
      ASSERT_EQ(cache.request({.blocks = trace.prompts[i]}), naive.request(trace.prompts[i])) << i;
    }
  }
}

// The most hits of all ways to make room, by trying every one.
class EveryWay {
 public:
  EveryWay(const Trace& trace, std::size_t capacity) : trace_(trace), capacity_(capacity) {
    for (const auto& prompt : trace.prompts) {
      for (std::size_t i = 1; i < prompt.size(); ++i) parents_[prompt[i]] = prompt[i - 1];
    }
  }
  std::uint64_t best() { return best_from(0, {}); }

 private:
  using Blocks = std::set<std::uint64_t>;
  std::uint64_t best_from(std::size_t request, const Blocks& present) {
    if (request == trace_.prompts.size()) return 0;
    const auto [known, is_new] = memo_.try_emplace({request, present}, 0);
    if (!is_new) return known->second;
    const auto& prompt = trace_.prompts[request];
    std::uint64_t hits = 0;
    while (hits < prompt.size() && present.contains(prompt[hits])) ++hits;
    const std::uint64_t best = hits + store(request, hits, present);
    return memo_[{request, present}] = best;
  }
  // The prompt's blocks from `at` on are to be stored.
  std::uint64_t store(std::size_t request, std::size_t at, const Blocks& present) {
    const auto& prompt = trace_.prompts[request];
    if (at == prompt.size()) return best_from(request + 1, present);
    if (present.size() < capacity_) {
      Blocks more = present;
      more.insert(prompt[at]);
      return store(request, at + 1, more);
    }
    Blocks parents;
    for (const std::uint64_t block : present) {
      if (const auto found = parents_.find(block); found != parents_.end()) {
        parents.insert(found->second);
      }
    }
    std::uint64_t best = 0;
    bool any = false;
    for (const std::uint64_t block : present) {
      if (parents.contains(block) || std::ranges::count(prompt, block) > 0) continue;
      any = true;
      Blocks fewer = present;
      fewer.erase(block);
      best = std::max(best, store(request, at, fewer));
    }
    return any ? best : best_from(request + 1, present);
  }

  const Trace& trace_;
  std::size_t capacity_;
  std::map<std::uint64_t, std::uint64_t> parents_;
  std::map<std::pair<std::size_t, Blocks>, std::uint64_t> memo_;
};

TEST(Optimum, IsTheBestOfAllWaysToMakeRoom) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Trace trace = random_trace(random, 9, 4);
    const std::size_t capacity = 2 + random() % 4;
    EXPECT_EQ(optimum_hits(trace.requests(), static_cast<std::uint32_t>(capacity)),
              EveryWay(trace, capacity).best());
  }
}

TEST(Optimum, IsReachedByNoOrderThatDoesNotKnowTheFuture) {
  std::mt19937_64 random(7);
  const Trace trace = random_trace(random, 3000, 20);
  for (const std::uint32_t capacity : {10U, 100U, 1000U}) {
    const std::uint64_t most = optimum_hits(trace.requests(), capacity);
    for (const EvictionKind eviction :
         {EvictionKind::lru, EvictionKind::lrfu, EvictionKind::class_hazard}) {
      ShadowCache cache(
          {.eviction = eviction, .capacity_blocks = capacity, .ghost_blocks = 8 * capacity});
      std::uint64_t hits = 0;
      for (const ShadowRequest& request : trace.requests()) hits += cache.request(request);
      EXPECT_LE(hits, most) << to_string(eviction) << " at " << capacity;
    }
  }
}

std::vector<AskedBlock> asked(const std::vector<std::uint64_t>& prompt) {
  std::vector<AskedBlock> blocks;
  for (const std::uint64_t hash : prompt) blocks.push_back({.key_hash = hash});
  return blocks;
}

// All of a request's blocks, of which it picks those that it follows.
void request(StackDistances& distances, std::vector<AskedBlock> blocks) {
  std::uint64_t others = 0;
  for (const AskedBlock& block : blocks) others += block.is_hub ? 0 : 1;
  std::erase_if(blocks, [&](const AskedBlock& block) { return !distances.follows(block); });
  distances.request({.followed = blocks, .others = others});
}

double lru_hit_rate(const Trace& trace, std::uint32_t capacity_blocks) {
  ShadowCache cache({.eviction = EvictionKind::lru, .capacity_blocks = capacity_blocks});
  double hits = 0;
  double blocks = 0;
  for (const auto& prompt : trace.prompts) {
    hits += cache.request({.blocks = prompt});
    blocks += static_cast<double>(prompt.size());
  }
  return hits / blocks;
}

// A cache that is smaller than a prompt keeps its beginning, which no stack does: from the longest
// prompt on the rates are equal.
TEST(StackDistances, FollowingEveryBlockGivesLrusHitRateOfEachCapacity) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Trace trace = random_trace(random, 400, 12);
    StackDistances distances({});
    for (const auto& prompt : trace.prompts) request(distances, asked(prompt));
    for (std::uint32_t capacity = 12; capacity < 32; ++capacity) {
      EXPECT_NEAR(distances.hit_rate(capacity), lru_hit_rate(trace, capacity), 1e-6) << capacity;
    }
    for (const std::uint32_t capacity : {50U, 100U, 333U, 10'000U}) {
      EXPECT_NEAR(distances.hit_rate(capacity), lru_hit_rate(trace, capacity), 0.01) << capacity;
    }
  }
}

// Conversations on a few common beginnings: each turn has the ones before it.
struct Conversations {
  std::size_t requests = 0;
  std::size_t open = 200;  // at a time
};
Trace conversations(std::mt19937_64& random, const Conversations& shape) {
  Trace trace;
  std::uint64_t next = 1000;
  std::vector<std::vector<std::uint64_t>> open;
  for (std::size_t i = 0; i < shape.requests; ++i) {
    if (open.size() < shape.open) {
      open.push_back({hashed(random() % 4)});
    }
    auto& turn = open[random() % open.size()];
    for (std::uint64_t more = 1 + random() % 8; more > 0; --more) turn.push_back(hashed(next++));
    trace.prompts.push_back(turn);
    if (turn.size() > 40) turn = open.back(), open.pop_back();
  }
  return trace;
}

TEST(StackDistances, OneBlockInSixteenSaysNearlyTheSame) {
  std::mt19937_64 random(11);
  const Trace trace = conversations(random, {.requests = 20'000});
  std::map<std::uint64_t, std::set<std::uint64_t>> children;
  StackDistances distances({.one_in = 16});
  for (const auto& prompt : trace.prompts) {
    std::vector<AskedBlock> blocks = asked(prompt);
    for (AskedBlock& block : blocks) block.is_hub = children[block.key_hash].size() >= kHubChildren;
    request(distances, blocks);
    for (std::size_t i = 1; i < prompt.size(); ++i) children[prompt[i - 1]].insert(prompt[i]);
  }
  for (const std::uint32_t capacity : {500U, 1000U, 2000U, 4000U}) {
    EXPECT_NEAR(distances.hit_rate(capacity), lru_hit_rate(trace, capacity), 0.01) << capacity;
  }
}

// The places run out again and again, and what is oldest is given up.
TEST(StackDistances, KeepsToItsMemory) {
  StackDistances distances({.max_blocks = 64});
  std::uint64_t bytes = 0;
  for (std::uint64_t round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> prompt;
    for (std::uint64_t i = 0; i < 40; ++i) prompt.push_back(hashed(i < 20 ? i : round * 40 + i));
    request(distances, asked(prompt));
    if (round == 10) bytes = distances.memory_bytes();
  }
  EXPECT_EQ(distances.memory_bytes(), bytes);
  EXPECT_NEAR(distances.hit_rate(64), 0.5 * 199 / 200, 1e-6);
}

TEST(StackDistances, ForgetsWhatIsLongAgo) {
  StackDistances distances({.half_life_blocks = 160});
  const std::vector<std::uint64_t> same = {hashed(1), hashed(2)};
  for (int i = 0; i < 500; ++i) request(distances, asked(same));
  EXPECT_GT(distances.hit_rate(10), 0.95);
  for (std::uint64_t i = 0; i < 1600; ++i) {
    const std::vector<std::uint64_t> fresh = {hashed(100 + i)};
    request(distances, asked(fresh));
  }
  EXPECT_LT(distances.hit_rate(10), 0.01);
}

// What caches hit, all requests counting alike.
double hit_rate(const Trace& trace, const ShadowCache::Options& options) {
  ShadowCache cache(options);
  double hits = 0;
  double blocks = 0;
  for (const auto& prompt : trace.prompts) {
    hits += cache.request({.blocks = prompt});
    blocks += static_cast<double>(prompt.size());
  }
  return hits / blocks;
}

CapacityCurve curve_of(const Trace& trace, const CapacityCurve::Options& options) {
  CapacityCurve curve(options);
  std::map<std::uint64_t, std::set<std::uint64_t>> children;
  std::int64_t unix_ms = 0;
  for (const auto& prompt : trace.prompts) {
    CapacityCurve::Request request{.blocks = static_cast<std::uint32_t>(prompt.size()),
                                   .unix_ms = unix_ms += 100};
    for (const std::uint64_t hash : prompt) {
      const AskedBlock block{hash, children[hash].size() >= kHubChildren};
      const bool followed = block.is_hub || (hash & curve.left_out_bits()) == 0;
      if (followed) request.followed.push_back(block);
      request.has_last = followed;
    }
    curve.asked(std::move(request));
    for (std::size_t i = 1; i < prompt.size(); ++i) children[prompt[i - 1]].insert(prompt[i]);
  }
  return curve;
}

// One block in 16 is followed: 6%. Which ones is chance: the error is one of many caches.
TEST(CapacityCurve, IsThatOfCachesSideBySide) {
  constexpr std::uint32_t kCapacity = 80'000;
  constexpr std::uint64_t kSeeds = 4;
  std::map<double, double> sum;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Trace trace = conversations(random, {.requests = 24'000, .open = 12'000});
    const CapacityCurve curve = curve_of(trace, {.capacity_blocks = kCapacity});
    ASSERT_EQ(curve.left_out_bits(), 15U);
    for (const double ratio : {0.25, 0.5, 1.0, 2.0, 4.0}) {
      const auto capacity = static_cast<std::uint32_t>(ratio * kCapacity);
      const double error = std::abs(curve.at(capacity).lru - lru_hit_rate(trace, capacity));
      EXPECT_LE(error, 0.02) << ratio;
      sum[ratio] += error;
    }
    EXPECT_LE(curve.memory_bytes(), 4U << 20U);
  }
  for (const auto& [ratio, errors] : sum) EXPECT_LE(errors / kSeeds, 0.01) << ratio;
}

TEST(CapacityCurve, TellsWhatTheOrderOfEvictionBringsAndTheMostThatAnyCould) {
  std::mt19937_64 random(5);
  const Trace trace = conversations(random, {.requests = 4'000, .open = 400});
  constexpr std::uint32_t kCapacity = 2'000;
  const CapacityCurve curve =
      curve_of(trace, {.eviction = EvictionKind::class_hazard, .capacity_blocks = kCapacity});
  const CapacityCurve::Point now = curve.at(kCapacity);
  const double real = hit_rate(trace, {.eviction = EvictionKind::class_hazard,
                                       .capacity_blocks = kCapacity,
                                       .ghost_blocks = 65'536});
  EXPECT_NEAR(now.policy, real, 0.03);
  EXPECT_GE(curve.optimum(), now.policy);
  EXPECT_LE(curve.memory_bytes(), 4U << 20U);
}

TEST(CapacityCurve, KnowsHowManyBlocksComeASecond) {
  CapacityCurve curve({.capacity_blocks = 100});
  for (int i = 0; i <= 100; ++i) curve.asked({.blocks = 10, .unix_ms = i * 500});
  EXPECT_NEAR(curve.blocks_per_s(), 20, 0.5);
  EXPECT_EQ(curve.requests(), 101U);
}

TEST(ShadowCache, TakesWhatIsUnusual) {
  for (const EvictionKind eviction :
       {EvictionKind::lru, EvictionKind::lrfu, EvictionKind::class_hazard}) {
    SCOPED_TRACE(to_string(eviction));
    ShadowCache cache({.eviction = eviction, .capacity_blocks = 4, .ghost_blocks = 10});
    std::vector<std::uint64_t> longer(9);
    std::iota(longer.begin(), longer.end(), 100);
    EXPECT_EQ(cache.request({}), 0U);
    EXPECT_EQ(cache.request({.blocks = longer}), 0U);  // more than there is room for
    EXPECT_EQ(cache.request({.blocks = longer}), 4U);
    const std::vector<std::uint64_t> twice = {1, 2, 1, 2};
    EXPECT_EQ(cache.request({.blocks = twice}), 0U);
    EXPECT_EQ(cache.request({.blocks = twice}), 4U);
  }
}

// Of two kinds of requests only those with short outputs come back, after more blocks than the
// cache has: LRU forgets all of them.
TEST(ClassHazard, LearnsWhichRequestsComeBack) {
  std::uint64_t next = 0;
  const auto fresh = [&next] {
    std::vector<std::uint64_t> prompt(10);
    for (std::uint64_t& block : prompt) block = hashed(next++);
    return prompt;
  };
  const auto run = [&](EvictionKind eviction) {
    ShadowCache cache({.eviction = eviction, .capacity_blocks = 200, .ghost_blocks = 2000});
    std::vector<std::vector<std::uint64_t>> steps;
    std::uint32_t hits = 0;
    for (std::size_t i = 0; i < 2000; ++i) {
      for (int once = 0; once < 3; ++once) {
        const auto prompt = fresh();
        cache.request({.blocks = prompt, .end = {.output_tokens = 500}});
      }
      steps.push_back(fresh());
      cache.request({.blocks = steps.back(), .end = {.output_tokens = 10}});
      // Ten rounds of 40 blocks, or 100 of those that come back.
      if (i >= 10) hits += cache.request({.blocks = steps[i - 10], .end = {.output_tokens = 500}});
    }
    return hits;
  };
  EXPECT_EQ(run(EvictionKind::lru), 0U);
  EXPECT_GT(run(EvictionKind::class_hazard), 17'000U);  // of 19,900
}

TEST(Lrfu, KeepsWhatWasUsedOftenLongerThanWhatWasUsedLast) {
  ShadowCache cache({.eviction = EvictionKind::lrfu, .capacity_blocks = 3, .ghost_blocks = 10});
  const std::vector<std::uint64_t> often = {1};
  const std::vector<std::vector<std::uint64_t>> once = {{2}, {3}, {4}, {5}};
  for (int i = 0; i < 3; ++i) cache.request({.blocks = often});
  for (const auto& prompt : once) cache.request({.blocks = prompt, .unix_ms = 1000});
  EXPECT_EQ(cache.request({.blocks = often, .unix_ms = 1000}), 1U);
  EXPECT_EQ(cache.request({.blocks = once[0], .unix_ms = 1000}), 0U);
  // Ten half-lives later its uses are worth less than one that has just been.
  for (const auto& prompt : once) cache.request({.blocks = prompt, .unix_ms = 2'001'000});
  EXPECT_EQ(cache.request({.blocks = often, .unix_ms = 2'001'000}), 0U);
}

// Blocks whose histories are equal are counted together. The other order hears in between that
// some request has ended, so each block is counted by itself.
TEST(ClassHazard, BlocksOfAPromptCountTogetherAsEachByItself) {
  constexpr std::uint32_t kPrompts = 40;
  constexpr std::uint32_t kBlocks = 50;
  const auto make = [] {
    return make_eviction_policy({.eviction = EvictionKind::class_hazard, .capacity_blocks = 500});
  };
  const auto together = make();
  const auto alone = make();
  std::vector<std::vector<BlockHistory>> of_together(kPrompts, std::vector<BlockHistory>(kBlocks));
  auto of_alone = of_together;
  std::mt19937 random(5);
  for (int i = 0; i < 400; ++i) {
    const std::uint32_t prompt = static_cast<std::uint32_t>(random() % kPrompts);
    const std::uint32_t count = static_cast<std::uint32_t>(1 + random() % kBlocks);
    const bool says_how_many = random() % 3 != 0;
    const RequestStart start{.blocks = says_how_many ? count : 0, .unix_ms = 1000 * i};
    const RequestEnd end{.output_tokens = random() % 400, .full_blocks = count - random() % 2};
    const NextUse told = random() % 4 == 0 ? NextUse::later : NextUse::unknown;
    const auto run = [&](EvictionPolicy& policy, std::vector<BlockHistory>& blocks, bool breaks) {
      const RequestNumber request = policy.begin(start);
      for (std::uint32_t b = 0; b < count; ++b) {
        if (breaks) policy.ended(0, {});
        policy.touched(blocks[b], request);
      }
      policy.ended(request, end);
      for (std::uint32_t b = count; b-- > 0;) {
        if (breaks) policy.ended(0, {});
        policy.listed(blocks[b], told);
      }
    };
    run(*together, of_together[prompt], false);
    run(*alone, of_alone[prompt], true);
  }
  for (std::uint32_t p = 0; p < kPrompts; ++p) {
    for (std::uint32_t b = 0; b < kBlocks; ++b) {
      const BlockHistory& one = of_together[p][b];
      const BlockHistory& other = of_alone[p][b];
      ASSERT_EQ(std::memcmp(&one, &other, sizeof(one)), 0) << "block " << b << " of prompt " << p;
      if (!one.is_known()) continue;
      const float worth = alone->worth(other, 0);
      EXPECT_NEAR(together->worth(one, 0), worth, 1e-3F * worth);
    }
  }
}

TEST(GhostTable, GivesBackWhatItWasToldOnce) {
  GhostTable ghosts(100);
  EXPECT_FALSE(ghosts.recall(hashed(1)).is_known());
  ghosts.remember(hashed(1), {.request = 7, .uses = 2});
  EXPECT_EQ(ghosts.size(), 1U);
  const BlockHistory history = ghosts.recall(hashed(1));
  EXPECT_EQ(history.request, 7U);
  EXPECT_EQ(history.uses, 2U);
  EXPECT_FALSE(ghosts.recall(hashed(1)).is_known());
  EXPECT_EQ(ghosts.size(), 0U);
}

TEST(GhostTable, FindsWhatItWasToldJustNow) {
  for (const std::uint32_t blocks : {1U, 15U, 16U, 17U, 40U}) {
    GhostTable ghosts(1000);
    for (std::uint32_t i = 0; i < blocks; ++i) {
      ghosts.remember(hashed(i), {.request = i, .uses = 1});
    }
    EXPECT_EQ(ghosts.size(), blocks);
    for (std::uint32_t i = blocks; i-- > 0;) {
      EXPECT_EQ(ghosts.recall(hashed(i)).request, i) << "of " << blocks;
    }
    EXPECT_EQ(ghosts.size(), 0U);
  }
}

TEST(GhostTable, ForgetsTheOldestFirstAndNeverGrows) {
  GhostTable ghosts(1000);
  const std::uint64_t bytes = ghosts.memory_bytes();
  for (std::uint32_t i = 0; i < 10'000; ++i) {
    ghosts.remember(hashed(i), {.request = i, .uses = 1});
  }
  EXPECT_EQ(ghosts.memory_bytes(), bytes);
  EXPECT_LE(ghosts.size(), 1000U);
  std::uint32_t of_last = 0;
  for (std::uint32_t i = 9'500; i < 10'000; ++i) of_last += ghosts.recall(hashed(i)).is_known();
  EXPECT_GT(of_last, 450U);  // half of the room: few sets of five get more than five of them
  std::uint32_t of_first = 0;
  for (std::uint32_t i = 0; i < 5'000; ++i) of_first += ghosts.recall(hashed(i)).is_known();
  EXPECT_LT(of_first, 50U);
}

class OrderChoiceTest : public testing::Test {
 protected:
  // Requests of 10 blocks of which the order finds so many more than LRU, in the mean.
  void add(double more, int requests) {
    for (int i = 0; i < requests; ++i) {
      const double chance = i % 2 == 0 ? 1 : -1;
      choice_.add({.more_hits = more + chance, .asked_blocks = 10});
    }
  }
  static constexpr std::uint32_t kModelBlocks = 1000;
  static constexpr int kWindow =
      static_cast<int>(OrderChoice::kWindowCapacities * kModelBlocks / 10);
  OrderChoice choice_{kModelBlocks};
};

TEST_F(OrderChoiceTest, FollowsWhatDidBetterLately) {
  EXPECT_FALSE(choice_.follows_lru());
  add(-2 * 10 * OrderChoice::kWorse, 3 * kWindow);
  EXPECT_TRUE(choice_.follows_lru());
  add(4 * 10 * OrderChoice::kBetter, 4 * kWindow);
  EXPECT_FALSE(choice_.follows_lru());
  EXPECT_EQ(choice_.changes(), 2U);
}

// The cache would change with a workload that goes to and fro, each time too late.
TEST_F(OrderChoiceTest, StaysWithLruWhileWhatIsGainedIsLessThanWhatWasLost) {
  add(-4 * 10 * OrderChoice::kWorse, 3 * kWindow);
  ASSERT_TRUE(choice_.follows_lru());
  for (int turn = 0; turn < 5; ++turn) {
    add(2 * 10 * OrderChoice::kWorse, 2 * kWindow);
    add(-4 * 10 * OrderChoice::kWorse, 2 * kWindow);
  }
  EXPECT_EQ(choice_.changes(), 1U);
}

// Few long prompts are a window of a small cache: one that is found and one that is not are chance.
TEST_F(OrderChoiceTest, AFewLongPromptsAreChance) {
  std::mt19937 random(3);
  for (int i = 0; i < 20 * kWindow / 10; ++i) {
    const double chance = random() % 10 == 0 ? 100.0 * (random() % 2 == 0 ? 1 : -1) : 0;
    choice_.add({.more_hits = chance, .asked_blocks = 100});
    ASSERT_FALSE(choice_.follows_lru()) << "request " << i;
  }
}

TEST_F(OrderChoiceTest, WhatMayBeNoiseChangesNothing) {
  add(-0.9 * 10 * OrderChoice::kWorse, 5 * kWindow);
  EXPECT_EQ(choice_.changes(), 0U);
  add(-2 * 10 * OrderChoice::kWorse, 3 * kWindow);
  add(0.9 * 10 * OrderChoice::kBetter, 5 * kWindow);
  EXPECT_EQ(choice_.changes(), 1U);
}

TEST_F(OrderChoiceTest, AFewRequestsAreNoReason) {
  add(-2 * 10 * OrderChoice::kWorse, kWindow / 4);
  EXPECT_FALSE(choice_.follows_lru());
}

TEST(HazardTable, KnowsTheBucketOfEveryAge) {
  const HazardTable table({.classes = 1, .max_age_blocks = 100'000});
  EXPECT_EQ(table.bucket_of(0), 0U);
  EXPECT_EQ(table.bucket_of(63), 0U);
  EXPECT_EQ(table.bucket_of(64), 1U);
  EXPECT_EQ(table.bucket_of(~0U), table.buckets() - 1);
  for (std::uint32_t k = 1; k < table.buckets(); ++k) {
    EXPECT_EQ(table.bucket_of(table.start_of(k)), k);
    EXPECT_EQ(table.bucket_of(table.start_of(k) - 1), k - 1);
  }
}

// Blocks of class 0 are used again at an age of about 1,000 or never; those of class 1 never.
TEST(HazardTable, HoldsABlockUntilItsUseIsOverdue) {
  HazardTable table({.classes = 2, .max_age_blocks = 100'000});
  const std::uint32_t used_in = table.bucket_of(1000);
  for (std::uint32_t k = 0; k < table.buckets(); ++k) {
    table.lived_through({0, k}, k < used_in ? 1000.F : 500.F);
    table.lived_through({1, k}, 1000);
  }
  table.used_again({0, used_in}, 500);
  table.rebuild();
  EXPECT_GT(table.worth({0, used_in}), table.worth({0, 0}));  // the sooner, the more
  EXPECT_GT(table.worth({0, 0}), 10 * table.worth({0, used_in + 2}));
  EXPECT_GT(table.worth({0, 0}), 10 * table.worth({1, 0}));
  for (std::uint32_t k = 0; k < table.buckets(); ++k) EXPECT_GT(table.worth({1, k}), 0);
}

TEST(HazardTable, FadesWhatItLearnt) {
  HazardTable table({.classes = 1, .max_age_blocks = 10'000});
  for (std::uint32_t k = 0; k < table.buckets(); ++k) table.used_again({0, k}, 1000);
  table.rebuild();
  const float often = table.hazard({0, 3});
  EXPECT_GT(often, 0.9F);
  table.fade(0.001F);
  for (std::uint32_t k = 0; k < table.buckets(); ++k) table.lived_through({0, k}, 1000);
  table.rebuild();
  EXPECT_LT(table.hazard({0, 3}), 0.1F);
}

// What one table has learnt another goes on from, also of another size.
TEST(HazardTable, TakesWhatAnotherHasLearnt) {
  const HazardTable::Shape shape{.classes = 3, .max_age_blocks = 10'000};
  HazardTable one(shape);
  for (std::uint32_t k = 0; k < one.buckets(); ++k) {
    one.used_again({1, k}, 100);
    one.lived_through({2, k}, 100);
  }
  one.rebuild();
  HazardTable same(shape);
  ASSERT_TRUE(same.take_learnt(one.learnt()));
  EXPECT_EQ(same.learnt(), one.learnt());
  HazardTable larger({.classes = 3, .max_age_blocks = 100'000});
  ASSERT_TRUE(larger.take_learnt(one.learnt()));
  for (std::uint32_t k = 0; k + 1 < one.buckets(); ++k) {
    EXPECT_EQ(same.worth({1, k}), one.worth({1, k}));
    EXPECT_GT(larger.worth({1, k}), larger.worth({2, k}));
  }
  ASSERT_TRUE(HazardTable(shape).take_learnt(larger.learnt()));
}

TEST(HazardTable, RefusesWhatNoTableHasLearnt) {
  const HazardTable::Shape shape{.classes = 2, .max_age_blocks = 1'000};
  HazardTable table(shape);
  const auto nothing = table.learnt();
  HazardTable full(shape);
  full.used_again({0, 1}, 5);
  const auto learnt = full.learnt();
  EXPECT_FALSE(HazardTable({.classes = 3, .max_age_blocks = 1'000}).take_learnt(learnt));
  EXPECT_FALSE(table.take_learnt({}));
  for (std::size_t size = 0; size < learnt.size(); ++size) {
    EXPECT_FALSE(table.take_learnt(std::span(learnt).first(size))) << size;
  }
  auto wrong = learnt;
  const float no_number = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(wrong.data() + wrong.size() - sizeof(no_number), &no_number, sizeof(no_number));
  EXPECT_FALSE(table.take_learnt(wrong));
  EXPECT_EQ(table.learnt(), nothing);
}

// A history may outlive what the log remembers of its request, and requests may never end.
TEST(ClassHazard, ForgetsRequestsThatAreTooLongAgo) {
  ClassHazard policy({.capacity_blocks = 16});
  BlockHistory block;
  const RequestNumber first = policy.begin({.blocks = 1});
  policy.touched(block, first);
  policy.listed(block, NextUse::unknown);
  EXPECT_GT(policy.worth(block, 0), 0);
  for (int i = 0; i < 200'000; ++i) policy.begin({.blocks = 1});
  EXPECT_EQ(policy.worth(block, 0), 0);
  const RequestNumber last = policy.begin({.blocks = 1});
  policy.ended(first, {.output_tokens = 10});
  policy.touched(block, last);
  EXPECT_EQ(block.uses, 1U);  // as if it were new
}

}  // namespace
}  // namespace cairn
