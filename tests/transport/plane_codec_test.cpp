#include "transport/record/plane_codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>

#include "base/pieces.hpp"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<iovec> in_pieces(Bytes& bytes, std::size_t piece_bytes) {
  std::vector<iovec> pieces;
  for (std::size_t at = 0; at < bytes.size(); at += piece_bytes) {
    pieces.push_back({bytes.data() + at, std::min(piece_bytes, bytes.size() - at)});
  }
  return pieces;
}

Bytes noise(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Numbers of a normal distribution, which keys and values of models resemble. Keeps the upper
// `width` bytes of each f32: with 2, bf16.
Bytes normal(std::size_t size, std::size_t width, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  Bytes bytes(size);
  for (std::size_t at = 0; at + width <= size; at += width) {
    const auto bits = std::bit_cast<std::uint32_t>(distribution(random));
    for (std::size_t i = 0; i < width; ++i) {
      bytes[at + i] = static_cast<std::byte>(bits >> (8 * (4 - width + i)));
    }
  }
  return bytes;
}

class PlaneCodecOfWidth : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(PlaneCodecOfWidth, BringsBackEachByteHoweverTheBlockIsCutIntoPieces) {
  PlaneCodec codec;
  const std::uint32_t width = GetParam();
  const std::size_t chunk = kPlaneBytes * width;
  for (const std::size_t size :
       {width * std::size_t{200}, chunk - 1, chunk, chunk + 1, 2 * chunk + 3 * width + width / 2}) {
    Bytes plain = normal(size, std::min(width, 4u), 1);
    for (const std::size_t piece_bytes : {size, std::size_t{4096}, std::size_t{777}}) {
      const auto encoded = codec.encode(in_pieces(plain, piece_bytes), width);
      ASSERT_TRUE(encoded) << size;
      Bytes back(size);
      ASSERT_TRUE(codec.decode(encoded->span(), in_pieces(back, 1000))) << size;
      EXPECT_EQ(back, plain) << size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, PlaneCodecOfWidth, ::testing::Values(1, 2, 4, 8),
                         [](const auto& width) { return std::to_string(width.param); });

// The sign and the exponent of a normal number have 2.5 to 2.7 bits of entropy, its mantissa has
// all of its 7: 16 / (7 + 1 + 2.6) = 1.5.
TEST(PlaneCodec, TakesTheAirOutOfHalfPrecisionNumbers) {
  PlaneCodec codec;
  Bytes plain = normal(1u << 20, 2, 2);
  const auto encoded = codec.encode(in_pieces(plain, plain.size()), 2);
  ASSERT_TRUE(encoded);
  EXPECT_LT(encoded->size_bytes * 14, plain.size() * 10);
}

TEST(PlaneCodec, TakesTheAirOutOfAModelsKeysAndValues) {
  std::ifstream file(CAIRN_KEYS_AND_VALUES, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  ASSERT_EQ(text.size(), 1u << 20);
  Bytes plain(text.size());
  std::ranges::transform(text, plain.begin(), [](char byte) { return std::byte(byte); });
  PlaneCodec codec;
  const auto encoded = codec.encode(in_pieces(plain, 6'144), 2);
  ASSERT_TRUE(encoded);
  EXPECT_LT(encoded->size_bytes * 14, plain.size() * 10);
  Bytes back(plain.size());
  ASSERT_TRUE(codec.decode(encoded->span(), in_pieces(back, back.size())));
  EXPECT_TRUE(back == plain);
}

TEST(PlaneCodec, LeavesNoiseAsItIs) {
  PlaneCodec codec;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{5000}, 3 * kPlaneBytes}) {
    Bytes plain = noise(size, 3);
    EXPECT_FALSE(codec.encode(in_pieces(plain, 4096), 2)) << size;
  }
}

// A block's size tells its form, so an encoded one of the same size was read as a plain one. Found
// by the fuzzer.
TEST(PlaneCodec, IsAlwaysShorterHoweverShortTheBlockIs) {
  PlaneCodec codec;
  // Fives with a few other bytes: 85 of them become 85 bytes.
  const std::string few = std::string(23, 5) + '%' + std::string(11, 5) + "\xA6\xFF\xFF";
  std::size_t shorter = 0;
  for (std::size_t size = 1; size < 400; ++size) {
    Bytes plain(size);
    for (std::size_t i = 0; i < size; ++i) plain[i] = static_cast<std::byte>(few[i % few.size()]);
    const auto encoded = codec.encode(in_pieces(plain, size), 2);
    if (!encoded) continue;
    EXPECT_LT(encoded->size_bytes, size);
    ++shorter;
  }
  EXPECT_GT(shorter, 100U);
}

TEST(PlaneCodec, RefusesBytesThatAreCutOrFollowedByOthersOrOfAnotherSize) {
  PlaneCodec codec;
  Bytes plain = normal(6001, 2, 4);
  const auto encoded = codec.encode(in_pieces(plain, plain.size()), 2);
  ASSERT_TRUE(encoded);
  const Bytes good(encoded->span().begin(), encoded->span().end());
  Bytes back(plain.size());
  const auto into = in_pieces(back, back.size());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(codec.decode(std::span(good).first(size), into)) << size;
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(codec.decode(longer, into));
  Bytes smaller(plain.size() - 1);
  EXPECT_FALSE(codec.decode(good, in_pieces(smaller, smaller.size())));
}

// It has no checksum: the block's record has one of the plain bytes.
TEST(PlaneCodec, NeverWritesOutsideTheBlockWhenABitIsFlipped) {
  PlaneCodec codec;
  Bytes plain = normal(3000, 2, 5);
  const auto encoded = codec.encode(in_pieces(plain, plain.size()), 2);
  ASSERT_TRUE(encoded);
  Bytes flipped(encoded->span().begin(), encoded->span().end());
  Bytes back(plain.size() + 1, std::byte{42});
  const iovec into{back.data(), plain.size()};
  for (std::size_t bit = 0; bit < 8 * flipped.size(); ++bit) {
    flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    static_cast<void>(codec.decode(flipped, {&into, 1}));
    flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    ASSERT_EQ(back.back(), std::byte{42}) << bit;
  }
  ASSERT_TRUE(codec.decode(flipped, {&into, 1}));
  EXPECT_TRUE(std::ranges::equal(plain, std::span(back).first(plain.size())));
}

TEST(PlaneCodec, CodesOnSeveralThreads) {
  PlaneCodec codec;
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 4; ++number) {
    threads.emplace_back([&codec, number] {
      Bytes plain = normal(200'000, 2, number);
      for (int i = 0; i < 8; ++i) {
        const auto encoded = codec.encode(in_pieces(plain, 65'536), 2);
        Bytes back(plain.size());
        ASSERT_TRUE(encoded && codec.decode(encoded->span(), in_pieces(back, back.size())));
        EXPECT_EQ(back, plain);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cairn
