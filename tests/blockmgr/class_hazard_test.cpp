// Tests the eviction order that learns.
#include "blockmgr/eviction/class_hazard.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "blockmgr/eviction/hazard_table.hpp"
#include "blockmgr/eviction/shadow_caches.hpp"
#include "tests/blockmgr/eviction_traces.hpp"

namespace cairn {
namespace {

// Only requests with short outputs come back. More blocks than the cache holds lie between, so LRU
// forgets all of them.
TEST(ClassHazard, LearnsWhichRequestsComeBack) {
  std::uint64_t next = 0;
  const auto fresh = [&next] {
    std::vector<std::uint64_t> prompt(10);
    for (std::uint64_t& block : prompt) block = hashed(next++);
    return prompt;
  };
  const auto run = [&](EvictionKind eviction) {
    ShadowCaches cache(
        {.eviction = eviction, .sizes = {{.capacity_blocks = 200}}, .ghost_blocks = 2000});
    std::vector<std::vector<std::uint64_t>> steps;
    std::uint32_t hits = 0;
    for (std::size_t i = 0; i < 2000; ++i) {
      for (int once = 0; once < 3; ++once) {
        const auto prompt = fresh();
        cache.request({.blocks = prompt, .end = {.output_tokens = 500}});
      }
      steps.push_back(fresh());
      cache.request({.blocks = steps.back(), .end = {.output_tokens = 10}});
      // Ten rounds are 400 blocks, 100 of which come back.
      if (i >= 10) hits += cache.request({.blocks = steps[i - 10], .end = {.output_tokens = 500}});
    }
    return hits;
  };
  EXPECT_EQ(run(EvictionKind::lru), 0U);
  EXPECT_GT(run(EvictionKind::class_hazard), 17'000U);  // of 19,900
}

// The policy counts blocks with equal histories together. The other policy gets a call of ended()
// before each block, so it counts each block by itself.
TEST(ClassHazard, CountingAPromptMatchesCountingEachBlock) {
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
    const NextUse hint = random() % 4 == 0 ? NextUse::later : NextUse::unknown;
    const auto run = [&](EvictionPolicy& policy, std::vector<BlockHistory>& blocks, bool breaks) {
      const RequestNumber request = policy.begin(start);
      for (std::uint32_t b = 0; b < count; ++b) {
        if (breaks) policy.ended(0, {});
        policy.touched(blocks[b], request);
      }
      policy.ended(request, end);
      for (std::uint32_t b = count; b-- > 0;) {
        if (breaks) policy.ended(0, {});
        policy.listed(blocks[b], hint);
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

// A history may outlive the log's record of its request, and a request may never end.
TEST(ClassHazard, ForgetsOldRequests) {
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

// The next run restores the histories of blocks, though its request numbers start again. It learns
// nothing twice.
TEST(ClassHazard, RestartKeepsBlockHistories) {
  const PolicyOptions options{.eviction = EvictionKind::class_hazard, .capacity_blocks = 2'000};
  const auto before = make_eviction_policy(options);
  const auto after = make_eviction_policy(options);
  struct Block {
    BlockHistory history;
    NextUse hint = NextUse::unknown;
  };
  std::mt19937 random(7);
  std::vector<std::vector<Block>> prompts(60, std::vector<Block>(20));
  for (std::uint32_t i = 0; i < 600; ++i) {
    std::vector<Block>& prompt = prompts[random() % prompts.size()];
    const auto count = static_cast<std::uint32_t>(1 + random() % prompt.size());
    const NextUse hint = random() % 4 == 0 ? NextUse::later : NextUse::unknown;
    const RequestNumber request = before->begin({.blocks = count});
    for (std::uint32_t b = 0; b < count; ++b) before->touched(prompt[b].history, request);
    before->ended(
        request,
        {.output_tokens = random() % 400, .full_blocks = count - random() % 2, .next_use = hint});
    for (std::uint32_t b = count; b-- > 0;) {
      before->listed(prompt[b].history, hint);
      prompt[b].hint = hint;
    }
  }
  std::vector<Block> all;
  for (const auto& prompt : prompts) {
    for (const Block& block : prompt) {
      if (block.history.is_known()) all.push_back(block);
    }
  }
  std::ranges::stable_sort(all, {}, [](const Block& block) { return block.history.request; });
  std::vector<BlockHistory> restored(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(after->take_kept(restored[i], before->kept(all[i].history), all[i].hint));
    after->listed(restored[i], all[i].hint);
  }
  ASSERT_TRUE(after->take_learnt(before->learnt()));
  for (EvictionPolicy* policy : {before.get(), after.get()}) {
    policy->begin({.blocks = 100});  // learns from blocks that grew older and updates their worth
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(restored[i].list, all[i].history.list) << i;
    EXPECT_EQ(restored[i].uses, all[i].history.uses) << i;
    EXPECT_EQ(after->kept(restored[i]), before->kept(all[i].history)) << i;
  }
  // Both learn the same from blocks that grew older since. Small differences come from the earlier
  // run's last request and from fading. Data learnt twice would differ by a factor of two.
  const auto weights_of = [](EvictionPolicy& policy) {
    const auto bytes = policy.learnt();
    std::vector<float> weights((bytes.size() - 16) / sizeof(float));
    std::memcpy(weights.data(), bytes.data() + 16, weights.size() * sizeof(float));
    return weights;
  };
  const std::vector<float> expected = weights_of(*before);
  const std::vector<float> found = weights_of(*after);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 0.15F * expected[i] + 0.1F) << i;
  }
}

TEST(ClassHazard, RefusesAnotherPolicysHistory) {
  constexpr std::uint64_t kByLrfu = 3 | 1U << 3U | 1'024U << 7U;  // as 0.2 wrote it
  ClassHazard hazard({.capacity_blocks = 100});
  BlockHistory taken;
  EXPECT_FALSE(hazard.take_kept(taken, kByLrfu, NextUse::unknown));
  EXPECT_FALSE(hazard.take_kept(taken, 0, NextUse::unknown));
  EXPECT_FALSE(taken.is_known());
}

TEST(HazardTable, FindsTheBucketOfEveryAge) {
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
    table.lived_through({0, k}, 1, k < used_in ? 1000.F : 500.F);
    table.lived_through({1, k}, 1, 1000);
  }
  table.used_again({0, used_in}, 500);
  table.rebuild();
  EXPECT_GT(table.worth({0, used_in}), table.worth({0, 0}));  // the sooner, the more
  EXPECT_GT(table.worth({0, 0}), 10 * table.worth({0, used_in + 2}));
  EXPECT_GT(table.worth({0, 0}), 10 * table.worth({1, 0}));
  for (std::uint32_t k = 0; k < table.buckets(); ++k) EXPECT_GT(table.worth({1, k}), 0);
}

// While all blocks are young, none can have come back late. Until then the hint counts.
TEST(HazardTable, LateHintIsNotPenalizedForEarlyAges) {
  HazardTable table({.classes = 3, .max_age_blocks = 4096});
  constexpr std::uint32_t kHinted = 1;
  constexpr std::uint32_t kGuessed = 2;
  table.expect(kHinted, 1);
  const std::uint32_t late = table.bucket_of(2048);
  for (std::uint32_t k = 0; k < table.buckets(); ++k) {
    table.used_again({.of_class = 0, .bucket = k}, 100);
    table.lived_through({.of_class = 0, .bucket = k}, 1, 100);
    if (k + 2 >= late) continue;  // an age is averaged with its neighbours
    for (const std::uint32_t young : {kHinted, kGuessed}) {
      table.lived_through({.of_class = young, .bucket = k}, 1, 100);
    }
  }
  table.rebuild();
  EXPECT_NEAR(table.hazard({.of_class = kHinted, .bucket = late}), 0.5F, 0.02F);
  EXPECT_LT(table.hazard({.of_class = kHinted, .bucket = 1}), 0.05F);
  EXPECT_LT(table.hazard({.of_class = kGuessed, .bucket = late}), 0.05F);
}

TEST(HazardTable, FadesOldData) {
  HazardTable table({.classes = 1, .max_age_blocks = 10'000});
  for (std::uint32_t k = 0; k < table.buckets(); ++k) table.used_again({0, k}, 1000);
  table.rebuild();
  const float often = table.hazard({0, 3});
  EXPECT_GT(often, 0.9F);
  table.fade(0.001F);
  for (std::uint32_t k = 0; k < table.buckets(); ++k) table.lived_through({0, k}, 1, 1000);
  table.rebuild();
  EXPECT_LT(table.hazard({0, 3}), 0.1F);
}

// Another table, also of another size, loads what one table has learnt.
TEST(HazardTable, LoadsAnotherTablesState) {
  const HazardTable::Shape shape{.classes = 3, .max_age_blocks = 10'000};
  HazardTable one(shape);
  for (std::uint32_t k = 0; k < one.buckets(); ++k) {
    one.used_again({1, k}, 100);
    one.lived_through({2, k}, 1, 100);
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

TEST(HazardTable, RefusesInvalidState) {
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

}  // namespace
}  // namespace cairn
