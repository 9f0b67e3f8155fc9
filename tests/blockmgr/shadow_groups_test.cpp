#include "blockmgr/eviction/shadow_groups.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace cairn
