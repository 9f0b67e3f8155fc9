// From allocation to eviction, on each tier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;

class EachTier : public ::testing::TestWithParam<Tier> {
 protected:
  Rig rig;
  std::shared_ptr<Cache> cache = rig.cache(small_cache({.device = 8, .pinned = 8, .disk = 8}));
};
INSTANTIATE_TEST_SUITE_P(Life, EachTier, ::testing::ValuesIn(kTiers),
                         [](const auto& tier) { return std::string(to_string(tier.param)); });

TEST_P(EachTier, ABlockIsReadBackAsItWasWritten) {
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3), .tier = GetParam()}));
  for (const BlockKey& name : keys(1, 3)) EXPECT_EQ(rig.read(*cache, name).value(), bytes_of(name));
  const auto matched = rig.match(*cache, keys(1, 5), 0);
  ASSERT_EQ(matched.blocks.size(), 3u);
  EXPECT_EQ(matched.blocks[0].tier, GetParam());
  EXPECT_FALSE(matched.lease);
}

TEST_P(EachTier, ReadsAndWritesSinglePieces) {
  const auto allocation = rig.allocate(*cache, {.count = 1, .tier = GetParam()}).value();
  const Bytes whole = bytes_of(key(7));
  // One piece is not written and reads as zeros.
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    for (std::uint32_t outer = 0; outer < 2; ++outer) {
      if (layer == 1 && outer == 0) continue;
      const auto at = whole.begin() + (layer * 2 + outer) * 16;
      ASSERT_TRUE(rig.write(*cache,
                            {.lease = allocation.lease,
                             .block = allocation.blocks[0],
                             .part = PieceSelector{layer, outer}},
                            Bytes(at, at + 16)));
    }
  }
  ASSERT_TRUE(
      rig.commit(*cache, allocation.lease, {{.handle = allocation.blocks[0], .key = key(7)}}));
  Bytes expected = whole;
  std::fill(expected.begin() + 32, expected.begin() + 48, std::byte{0});
  EXPECT_EQ(rig.read(*cache, key(7)).value(), expected);
  EXPECT_EQ(rig.read(*cache, key(7), PieceSelector{1, 1}).value(),
            Bytes(whole.begin() + 48, whole.end()));
}

TEST_P(EachTier, UnwrittenBlockReadsAsZeros) {
  // The slot held other bytes before.
  ASSERT_TRUE(rig.put(*cache, {.keys = {key(1)}, .tier = GetParam()}));
  ASSERT_TRUE(cache->erase(key(1)));
  const auto allocation = rig.allocate(*cache, {.count = 1, .tier = GetParam()}).value();
  ASSERT_TRUE(
      rig.commit(*cache, allocation.lease, {{.handle = allocation.blocks[0], .key = key(2)}}));
  EXPECT_EQ(rig.read(*cache, key(2)).value(), Bytes(64));
}

TEST_P(EachTier, CountsFollowTheStates) {
  const Tier tier = GetParam();
  const auto counts = [&] {
    const auto blocks = cache->stats().tiers[index_of(tier)].blocks;
    return std::vector<std::uint64_t>(blocks.begin(), blocks.end());
  };
  EXPECT_THAT(counts(), ElementsAre(8, 0, 0, 0));
  const auto allocation = rig.allocate(*cache, {.count = 3, .tier = tier}).value();
  EXPECT_THAT(counts(), ElementsAre(5, 3, 0, 0));
  ASSERT_TRUE(rig.commit(*cache, allocation.lease,
                         {{.handle = allocation.blocks[0], .key = key(1)},
                          {.handle = allocation.blocks[1], .key = key(2)}}));
  EXPECT_THAT(counts(), ElementsAre(5, 1, 2, 0));
  EXPECT_EQ(cache->stats().tiers[index_of(tier)].leased_blocks, 3u);
  EXPECT_EQ(cache->release(allocation.lease, {}).value(), 3u);
  EXPECT_THAT(counts(), ElementsAre(6, 0, 0, 2));
  EXPECT_EQ(cache->stats().tiers[index_of(tier)].leased_blocks, 0u);
  EXPECT_EQ(cache->clear(tier).value().evicted, 2u);
  EXPECT_THAT(counts(), ElementsAre(8, 0, 0, 0));
}

}  // namespace
}  // namespace cairn::testing
