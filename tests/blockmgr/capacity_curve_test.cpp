// Compares estimated hit rates of other cache sizes with real caches of those sizes.
#include "blockmgr/eviction/capacity_curve.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "blockmgr/eviction/lru_stack.hpp"
#include "blockmgr/eviction/stack_distances.hpp"
#include "tests/blockmgr/eviction_traces.hpp"

namespace cairn {
namespace {

std::vector<AskedBlock> asked(const std::vector<std::uint64_t>& prompt) {
  std::vector<AskedBlock> blocks;
  for (const std::uint64_t hash : prompt) blocks.push_back({.key_hash = hash});
  return blocks;
}

// Passes the request's blocks that `distances` follows.
void request(StackDistances& distances, std::vector<AskedBlock> blocks) {
  std::uint64_t others = 0;
  for (const AskedBlock& block : blocks) others += block.is_hub ? 0 : 1;
  std::erase_if(blocks, [&](const AskedBlock& block) { return !distances.follows(block); });
  distances.request({.followed = blocks, .others = others});
}

double lru_hit_rate(const Trace& trace, std::uint32_t capacity_blocks) {
  return hit_rate(trace,
                  {.eviction = EvictionKind::lru, .sizes = {{.capacity_blocks = capacity_blocks}}});
}

// A cache smaller than a prompt keeps the prompt's beginning, and a stack does not. The rates are
// equal for capacities of at least the longest prompt.
TEST(StackDistances, MatchesLruAtEachCapacity) {
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

TEST(StackDistances, SampleOfOneInSixteenIsClose) {
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

// The table fills repeatedly and drops its oldest entries.
TEST(StackDistances, KeepsItsMemoryBound) {
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

TEST(StackDistances, ForgetsOldRequests) {
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

// Compares the stack with a plain list of all uses.
TEST(LruStack, CountsWeightUsedSince) {
  constexpr std::uint32_t kRoom = 20;
  std::mt19937_64 random(3);
  LruStack stack(kRoom);
  struct Used {
    std::uint64_t hash = 0;
    std::uint32_t weight = 0;
  };
  std::vector<Used> used;  // the most recent last
  for (int i = 0; i < 2'000; ++i) {
    const Used block{.hash = hashed(random() % 30),
                     .weight = 1 + static_cast<std::uint32_t>(random() % 4)};
    std::erase_if(used, [&block](const Used& one) { return one.hash == block.hash; });
    used.push_back(block);
    if (used.size() > kRoom) used.erase(used.begin());
    stack.use(block.hash, block.weight);
    std::uint64_t above = 0;
    for (auto one = used.rbegin(); one != used.rend(); ++one) {
      ASSERT_EQ(stack.weight_above(one->hash), above) << "use " << i;
      above += one->weight;
    }
    for (std::uint64_t number = 0; number < 30; ++number) {
      const bool is_used = std::ranges::find(used, hashed(number), &Used::hash) != used.end();
      ASSERT_EQ(stack.contains(hashed(number)), is_used);
    }
  }
}

// Uses capacities of at least the longest prompt, as MatchesLruAtEachCapacity does.
TEST(LruCaches, MatchAShadowCacheOfEachSize) {
  std::mt19937_64 random(5);
  const Trace trace = random_trace(random, 400, 12);
  for (const std::uint32_t capacity : {12U, 13U, 20U, 31U}) {
    ShadowCaches cache({.eviction = EvictionKind::lru, .sizes = {{.capacity_blocks = capacity}}});
    LruCaches all(31);
    for (std::size_t i = 0; i < trace.prompts.size(); ++i) {
      all.request(trace.prompts[i]);
      ASSERT_EQ(all.hits(capacity), cache.request({.blocks = trace.prompts[i]}))
          << "request " << i << " in " << capacity << " blocks";
    }
  }
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

// The curve follows a random sample of one block in 16.
TEST(CapacityCurve, MatchesSeparateCachesOfEachSize) {
  constexpr std::uint32_t kCapacity = 160'000;
  constexpr std::uint64_t kSeeds = 4;
  std::map<double, double> sum;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Trace trace = conversations(random, {.requests = 48'000, .open = 24'000});
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

TEST(CapacityCurve, EstimatesPolicyAndOptimum) {
  std::mt19937_64 random(5);
  const Trace trace = conversations(random, {.requests = 4'000, .open = 400});
  constexpr std::uint32_t kCapacity = 2'000;
  const CapacityCurve curve =
      curve_of(trace, {.eviction = EvictionKind::class_hazard, .capacity_blocks = kCapacity});
  for (const double ratio : {0.25, 0.5, 1.0, 2.0, 4.0}) {
    const auto capacity = static_cast<std::uint32_t>(ratio * kCapacity);
    const double real = hit_rate(trace, {.eviction = EvictionKind::class_hazard,
                                         .sizes = {{.capacity_blocks = capacity}},
                                         .ghost_blocks = 65'536});
    EXPECT_NEAR(curve.at(capacity).policy, real, 0.02) << ratio;
  }
  EXPECT_GE(curve.optimum(), curve.at(kCapacity).policy);
  EXPECT_LE(curve.memory_bytes(), 4U << 20U);
}

// Once the optimum was 0 until 256 requests waited for their end.
TEST(CapacityCurve, OptimumCountsUnfinishedRequests) {
  CapacityCurve curve({.eviction = EvictionKind::class_hazard, .capacity_blocks = 100});
  constexpr std::uint64_t kPrompts = 15;  // one after another: LRU finds nothing
  for (std::uint64_t i = 0; i < 6 * kPrompts; ++i) {
    std::vector<std::uint64_t> prompt;
    for (std::uint64_t block = 0; block < 10; ++block) {
      prompt.push_back((10 * (i % kPrompts) + block + 1) * 0x9E37'79B9'7F4A'7C15U);
    }
    curve.asked({.followed = asked(prompt),
                 .blocks = static_cast<std::uint32_t>(prompt.size()),
                 .has_last = true,
                 .ticket = i + 1});
  }
  EXPECT_GT(curve.optimum(), 0.3);
}

TEST(CapacityCurve, MeasuresBlocksPerSecond) {
  CapacityCurve curve({.capacity_blocks = 100});
  for (int i = 0; i <= 100; ++i) curve.asked({.blocks = 10, .unix_ms = i * 500});
  EXPECT_NEAR(curve.blocks_per_s(), 20, 0.5);
  EXPECT_EQ(curve.requests(), 101U);
}

}  // namespace
}  // namespace cairn
