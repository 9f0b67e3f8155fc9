#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "replay/replay_blocks.hpp"

namespace cairn::replay {
namespace {

constexpr std::size_t kBlockBytes = 64 * 1024 + 13;  // the last word is not whole

std::vector<std::byte> block_of(const BlockKey& key, std::size_t bytes = kBlockBytes) {
  std::vector<std::byte> block(bytes);
  BlockPattern(key).fill(block);
  return block;
}

const KeyMaker kKeys("a trace");
const BlockKey kKey = kKeys.key_of(7);
const BlockKey kOther = kKeys.key_of(8);

TEST(BlockPatternTest, AcceptsItsOwnBytes) {
  for (const std::size_t bytes : {0UL, 1UL, 8UL, 15UL, 4096UL, kBlockBytes}) {
    EXPECT_EQ(BlockPattern(kKey).compare(block_of(kKey, bytes)).wrong_bytes, 0U) << bytes;
  }
}

TEST(BlockPatternTest, FindsEverySingleFlippedBit) {
  constexpr std::size_t bytes = 4096 + 64 + 3;  // more than one run of the comparison
  std::vector<std::byte> block = block_of(kKey, bytes);
  for (std::size_t bit = 0; bit < bytes * 8; ++bit) {
    block[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const Mismatch mismatch = BlockPattern(kKey).compare(block);
    ASSERT_EQ(mismatch.wrong_bytes, 1U) << "bit " << bit;
    ASSERT_EQ(mismatch.first_offset_bytes, bit / 8);
    ASSERT_FALSE(mismatch.other_keys_block);
    block[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
}

TEST(BlockPatternTest, DistinguishesAnotherKeysBlockFromADamagedOne) {
  const Mismatch mismatch = BlockPattern(kKey).compare(block_of(kOther));
  EXPECT_GT(mismatch.wrong_bytes, kBlockBytes * 7 / 10);
  EXPECT_TRUE(mismatch.other_keys_block);
}

TEST(BlockPatternTest, FindsAShiftedBlock) {
  const std::vector<std::byte> right = block_of(kKey);
  for (const std::size_t shift : {1UL, 4UL, 8UL, 512UL, 4096UL, 32768UL}) {
    std::vector<std::byte> shifted = right;
    std::rotate(shifted.begin(), shifted.begin() + static_cast<std::ptrdiff_t>(shift),
                shifted.end());
    EXPECT_GT(BlockPattern(kKey).compare(shifted).wrong_bytes, kBlockBytes / 2) << shift;
  }
}

TEST(BlockPatternTest, FindsTwoPiecesOfABlockSwapped) {
  std::vector<std::byte> block = block_of(kKey);
  std::swap_ranges(block.begin(), block.begin() + 8, block.begin() + 4096);
  const Mismatch mismatch = BlockPattern(kKey).compare(block);
  EXPECT_GT(mismatch.wrong_bytes, 0U);
  EXPECT_LT(mismatch.first_offset_bytes, 8U);
}

TEST(BlockPatternTest, FindsAnEmptyBlock) {
  EXPECT_GT(BlockPattern(kKey).compare(std::vector<std::byte>(kBlockBytes)).wrong_bytes,
            kBlockBytes * 9 / 10);
}

TEST(BlockPatternTest, RepeatsNoWordInOrAcrossBlocks) {
  const std::vector<std::byte> one = block_of(kKey), two = block_of(kOther);
  std::set<std::uint64_t> words;
  for (std::size_t at = 0; at + 8 <= kBlockBytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, one.data() + at, 8);
    EXPECT_TRUE(words.insert(word).second) << at;
    EXPECT_NE(std::memcmp(one.data() + at, two.data() + at, 8), 0) << at;
  }
}

TEST(BlockKeyTest, DiffersByIdAndByWorkload) {
  const KeyMaker others("another trace");
  std::set<BlockKey> keys;
  for (std::uint64_t id = 0; id < 10'000; ++id) {
    EXPECT_TRUE(keys.insert(kKeys.key_of(id)).second) << id;
    EXPECT_TRUE(keys.insert(others.key_of(id)).second) << id;
  }
}

TEST(BlockKeyTest, StaysTheSame) { EXPECT_EQ(KeyMaker("a trace").key_of(7), kKey); }

}  // namespace
}  // namespace cairn::replay
