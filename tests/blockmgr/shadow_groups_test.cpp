#include "blockmgr/eviction/shadow_groups.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <random>

namespace cairn {
namespace {

using Kind = UsedGroup::Kind;
using Keys = std::vector<std::uint64_t>;

constexpr UsedGroup kFull{.block_bytes = 1};
constexpr UsedGroup kState{.kind = Kind::state, .block_bytes = 6};
// Two blocks before each place.
constexpr UsedGroup kWindow{.kind = Kind::window, .window_tokens = 32, .block_bytes = 1};

ShadowGroups::Options options_of(std::vector<UsedGroup> groups, std::uint64_t capacity_bytes) {
  return {.block_tokens = 16,
          .groups = std::move(groups),
          .capacity_bytes = capacity_bytes,
          .ghost_blocks = 1000};
}

std::uint32_t matched(ShadowGroups& cache, const Keys& keys) {
  return cache.request({.blocks = keys}).matched;
}

// Prompts that branch from a few beginnings, and come back.
std::vector<Keys> branching_prompts(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<Keys> prompts = {{}};
  for (std::uint64_t next = 1; prompts.size() < count;) {
    const std::size_t recent = std::min<std::size_t>(prompts.size(), 40);
    Keys prompt = prompts[prompts.size() - 1 - random() % recent];
    if (random() % 2 == 0 && !prompt.empty()) prompt.resize(random() % prompt.size());
    const std::uint64_t more = 1 + random() % 6;
    for (std::uint64_t i = 0; i < more; ++i) prompt.push_back(next++ * 0x9E37'79B9'7F4A'7C15);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

TEST(ShadowGroups, OneFullGroupIsACacheOfOneGroup) {
  for (const auto eviction : {EvictionKind::lru, EvictionKind::class_hazard}) {
    ShadowGroups::Options options = options_of({kFull}, 60);
    options.eviction = eviction;
    options.policy_blocks = 60;
    ShadowGroups groups(std::move(options));
    ShadowCaches plain(
        {.eviction = eviction, .sizes = {{.capacity_blocks = 60}}, .ghost_blocks = 1000});
    std::uint64_t hits = 0;
    std::int64_t unix_ms = 0;
    for (const Keys& keys : branching_prompts(1, 2000)) {
      const ShadowRequest request{
          .blocks = keys,
          .unix_ms = unix_ms += 100,
          .end = {.output_tokens = static_cast<std::uint32_t>(keys.size())}};
      const std::uint32_t found = plain.request(request);
      ASSERT_EQ(groups.request(request).matched, found);
      hits += found;
    }
    EXPECT_GT(hits, 0U);
  }
}

TEST(ShadowGroups, AMatchNeedsAStateAtItsEnd) {
  ShadowGroups cache(options_of({kFull, kState}, 1000));
  EXPECT_EQ(matched(cache, {1, 2, 3, 4}), 0U);
  EXPECT_EQ(matched(cache, {1, 2, 3, 4, 5}), 4U);
  const Keys parts{1, 2, 8};
  const auto match = cache.request({.blocks = parts});
  EXPECT_EQ(match.matched, 0U);
  EXPECT_EQ(match.full_matched, 2U);
  // It has stored a state where it parts.
  EXPECT_EQ(matched(cache, {1, 2, 9}), 2U);
}

TEST(ShadowGroups, TailsAtEndsOnlyAreNotFoundWherePromptsPart) {
  ShadowGroups::Options options = options_of({kFull, kState}, 1000);
  options.tails = GroupUse::Tails::ends;
  ShadowGroups cache(std::move(options));
  EXPECT_EQ(matched(cache, {1, 2, 3, 4}), 0U);
  EXPECT_EQ(matched(cache, {1, 2, 8}), 0U);
  EXPECT_EQ(matched(cache, {1, 2, 9}), 0U);
}

// A window of 32 tokens needs the 31 before the next one: the last two blocks of 16.
TEST(ShadowGroups, AMatchNeedsTheWindowBeforeItsEnd) {
  ShadowGroups cache(options_of({kFull, kWindow}, 1000));
  EXPECT_EQ(matched(cache, {1, 2, 3, 4}), 0U);
  EXPECT_EQ(cache.used_bytes(0), 4U);
  EXPECT_EQ(cache.used_bytes(1), 2U);
  EXPECT_EQ(matched(cache, {1, 2, 3, 7}), 0U);
  // Now the windows before 3 are there too: blocks 2 and 3.
  EXPECT_EQ(matched(cache, {1, 2, 3, 9}), 3U);
}

TEST(ShadowGroups, ThePartOfAPromptsLastBlockHasNoTail) {
  ShadowGroups cache(options_of({kFull, kState}, 1000));
  const Keys keys{1, 2, 3};
  cache.request({.blocks = keys, .end = {.full_blocks = 2}});
  EXPECT_EQ(matched(cache, {1, 2, 5}), 2U);
}

TEST(ShadowGroups, ABlockTakesTheBytesOfItsGroup) {
  // A prompt of 4 takes 10 bytes, so two of them fit 20, and a third evicts the first.
  ShadowGroups cache(options_of({kFull, kState}, 20));
  for (const std::uint64_t first : {10U, 20U, 30U}) {
    matched(cache, {first, first + 1, first + 2, first + 3});
    EXPECT_LE(cache.used_bytes(0) + cache.used_bytes(1), 20U);
  }
  EXPECT_EQ(matched(cache, {30, 31, 32, 33}), 4U);
  EXPECT_EQ(matched(cache, {20, 21, 22, 23}), 4U);
  EXPECT_EQ(matched(cache, {10, 11, 12, 13}), 0U);
}

TEST(ShadowGroups, PoolsKeepTheirBytesToThemselves) {
  ShadowGroups::Options options = options_of({kFull, kState}, 0);
  options.pool_bytes = {12, 6};
  ShadowGroups cache(std::move(options));
  for (std::uint64_t prompt = 0; prompt < 20; ++prompt) {
    matched(cache, {10 * prompt, 10 * prompt + 1, 10 * prompt + 2});
    EXPECT_LE(cache.used_bytes(0), 12U);
    EXPECT_LE(cache.used_bytes(1), 6U);
  }
  // There is room for one state only.
  EXPECT_EQ(matched(cache, {190, 191, 192}), 3U);
  EXPECT_EQ(matched(cache, {180, 181, 182}), 0U);
}

// A window's block that is left over from an older tail is not found once its full block is gone.
TEST(ShadowGroups, AWindowGoesBeforeTheFullBlockOfItsKey) {
  ShadowGroups cache(options_of({kFull, kWindow}, 6));
  for (std::uint64_t prompt = 1; prompt <= 30; ++prompt) {
    const std::uint64_t first = 10 * prompt;
    matched(cache, {first, first + 1, first + 2, first + 3});
    EXPECT_LE(cache.used_bytes(0) + cache.used_bytes(1), 6U);
    EXPECT_EQ(cache.used_bytes(0), 4U);
  }
}

TEST(ShadowGroups, TheOrderLearnsFromFullBlocksOnly) {
  // A class of prompts that come back among many that do not: learning finds more of them than
  // LRU, with tails as without.
  const auto hits = [](EvictionKind eviction, std::vector<UsedGroup> groups, std::uint64_t bytes) {
    ShadowGroups::Options options = options_of(std::move(groups), bytes);
    options.eviction = eviction;
    options.policy_blocks = 200;
    options.ghost_blocks = 100'000;
    ShadowGroups cache(std::move(options));
    std::uint64_t found = 0;
    for (std::uint64_t i = 0; i < 6000; ++i) {
      const bool returns = i % 4 == 0;
      const std::uint64_t prompt = returns ? i / 4 % 60 : 1000 + i;
      Keys keys;
      for (std::uint64_t b = 0; b < 4; ++b) {
        keys.push_back((prompt * 4 + b + 1) * 0x9E37'79B9'7F4A'7C15);
      }
      // Prompts that come back have short outputs.
      const std::uint32_t output_tokens = returns ? 10 : 1000;
      found += cache
                   .request({.blocks = keys,
                             .unix_ms = static_cast<std::int64_t>(i) * 1000,
                             .end = {.output_tokens = output_tokens, .full_blocks = 4}})
                   .matched;
    }
    return found;
  };
  // 60 prompts come back after 240: a cache of 100 prompts holds all of them, if it knows which.
  EXPECT_EQ(hits(EvictionKind::lru, {kFull}, 400), 0U);
  EXPECT_EQ(hits(EvictionKind::lru, {kFull, kState}, 1000), 0U);
  EXPECT_GT(hits(EvictionKind::class_hazard, {kFull}, 400), 3000U);
  EXPECT_GT(hits(EvictionKind::class_hazard, {kFull, kState}, 1000), 3000U);
}

// The most that any cache of some bytes can find, over all choices of what to keep. For caches of
// a full group and one more, and prompts of six keys in all.
class Optimum {
 public:
  Optimum(UsedGroup tail, std::uint64_t capacity_bytes)
      : tail_(tail), capacity_bytes_(capacity_bytes) {}

  std::int64_t hits(const std::vector<Keys>& prompts) const {
    // By the set of blocks that the cache holds: the most hits so far.
    std::vector<std::int64_t> most(kSets, kNever);
    most[0] = 0;
    for (const Keys& keys : prompts) {
      std::uint32_t all = 0;
      for (const std::uint64_t key : keys) all |= full(key) | tail(key);
      std::vector<std::int64_t> next(kSets, kNever);
      for (std::uint32_t set = 0; set < kSets; ++set) {
        if (most[set] == kNever) continue;
        next[set | all] = std::max(next[set | all], most[set] + found(set, keys));
      }
      // It may then drop any of them.
      for (std::uint32_t bit = 1; bit < kSets; bit *= 2) {
        for (std::uint32_t set = 0; set < kSets; ++set) {
          if ((set & bit) == 0) next[set] = std::max(next[set], next[set | bit]);
        }
      }
      for (std::uint32_t set = 0; set < kSets; ++set) {
        most[set] = bytes(set) <= capacity_bytes_ ? next[set] : kNever;
      }
    }
    return *std::ranges::max_element(most);
  }

 private:
  static constexpr std::uint32_t kSets = 1U << 12U;
  static constexpr std::int64_t kNever = -1'000'000;
  static std::uint32_t full(std::uint64_t key) { return 1U << key; }
  static std::uint32_t tail(std::uint64_t key) { return 1U << (key + 6); }
  std::uint64_t bytes(std::uint32_t set) const {
    return static_cast<std::uint64_t>(std::popcount(set & 63U)) +
           tail_.block_bytes * static_cast<std::uint64_t>(std::popcount(set >> 6U));
  }
  std::int64_t found(std::uint32_t set, const Keys& keys) const {
    std::int64_t longest = 0;
    for (std::size_t n = 1; n <= keys.size() && (set & full(keys[n - 1])) != 0; ++n) {
      bool served = (set & tail(keys[n - 1])) != 0;
      if (tail_.kind == Kind::window && n > 1) served = served && (set & tail(keys[n - 2])) != 0;
      if (served) longest = static_cast<std::int64_t>(n);
    }
    return longest;
  }

  UsedGroup tail_;
  std::uint64_t capacity_bytes_;
};

TEST(ShadowGroups, NoOrderFindsMoreThanTheOptimum) {
  const std::vector<Keys> kinds = {{0, 1, 2}, {0, 1, 3}, {0, 1}, {0}, {4, 5}, {4}};
  constexpr UsedGroup kSmallState{.kind = Kind::state, .block_bytes = 2};
  std::int64_t optimal = 0;
  std::int64_t found = 0;
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Keys> prompts;
    for (int i = 0; i < 14; ++i) prompts.push_back(kinds[random() % kinds.size()]);
    for (const UsedGroup& tail : {kWindow, kSmallState}) {
      const std::uint64_t capacity_bytes = 4 + random() % 6;
      const std::int64_t most = Optimum(tail, capacity_bytes).hits(prompts);
      for (const bool has_pools : {false, true}) {
        for (const auto eviction : {EvictionKind::lru, EvictionKind::class_hazard}) {
          ShadowGroups::Options options = options_of({kFull, tail}, capacity_bytes);
          options.eviction = eviction;
          options.policy_blocks = 10;
          if (has_pools) options.pool_bytes = {capacity_bytes / 2, (capacity_bytes + 1) / 2};
          ShadowGroups cache(std::move(options));
          std::int64_t hits = 0;
          for (const Keys& keys : prompts) hits += matched(cache, keys);
          ASSERT_LE(hits, most) << "seed " << seed << ", " << capacity_bytes << " bytes";
          found += hits;
          optimal += most;
        }
      }
    }
  }
  EXPECT_GT(found, optimal / 4);
  EXPECT_LT(found, optimal);
}

}  // namespace
}  // namespace cairn
