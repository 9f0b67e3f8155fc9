// Hex, hashes and random bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "base/hex.hpp"
#include "base/random.hpp"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(Hex, WritesTwoLowerCaseDigitsPerByte) {
  EXPECT_EQ(to_hex(bytes_of({0x00, 0x0f, 0xA5, 0xff})), "000fa5ff");
  EXPECT_EQ(to_hex({}), "");
}

TEST(Hex, AppendsToTheText) {
  std::string text = "key=";
  append_hex(text, bytes_of({0x12}));
  EXPECT_EQ(text, "key=12");
}

TEST(Hex, ReadsEitherCase) {
  Bytes bytes(3);
  EXPECT_TRUE(from_hex("aBCd09", bytes));
  EXPECT_EQ(bytes, bytes_of({0xab, 0xcd, 0x09}));
}

TEST(Hex, ReadsBackEveryByte) {
  Bytes all(256);
  for (std::size_t i = 0; i < 256; ++i) all[i] = static_cast<std::byte>(i);
  Bytes back(256);
  EXPECT_TRUE(from_hex(to_hex(all), back));
  EXPECT_EQ(back, all);
}

// from_hex() reads eight digits at a time, and the rest one by one.
TEST(Hex, RefusesEveryOtherCharacterAtEveryPlace) {
  const std::string digits = "0123456789abcdefABCDEF";
  const std::string good = "0123456789ab";
  for (std::size_t place = 0; place < good.size(); ++place) {
    for (int c = 0; c < 256; ++c) {
      std::string text = good;
      text[place] = static_cast<char>(c);
      Bytes bytes(good.size() / 2);
      const bool all_digits = digits.find(text[place]) != std::string::npos;
      ASSERT_EQ(from_hex(text, bytes), all_digits) << "character " << c << " at " << place;
    }
  }
}

TEST(Hex, RefusesEveryOtherCharacterInASingleByte) {
  const std::string digits = "0123456789abcdefABCDEF";
  Bytes byte(1);
  for (int c = 0; c < 256; ++c) {
    const char character = static_cast<char>(c);
    const bool digit = digits.find(character) != std::string::npos;
    EXPECT_EQ(from_hex(std::string{character, '0'}, byte), digit) << c;
    EXPECT_EQ(from_hex(std::string{'0', character}, byte), digit) << c;
  }
}

TEST(Hex, RefusesAnotherLength) {
  Bytes two(2);
  for (const char* text : {"", "00", "000", "00000", "000000"}) {
    EXPECT_FALSE(from_hex(text, two)) << text;
  }
}

TEST(Hash, DependsOnEveryByteAndTheSeed) {
  std::set<std::uint64_t> hashes;
  Bytes bytes(64);
  hashes.insert(hash_bytes(bytes, 0));
  hashes.insert(hash_bytes(bytes, 1));
  for (std::byte& byte : bytes) {
    byte = std::byte{1};
    hashes.insert(hash_bytes(bytes, 0));
  }
  EXPECT_EQ(hashes.size(), 66u);
}

TEST(Hash, IsXxh3) {
  // The published value of XXH3 (64 bits) for no bytes, with seed 0.
  EXPECT_EQ(hash_bytes({}, 0), 0x2D06800538D394C2u);
}

TEST(Hash, OfPiecesEqualsThatOfTheWhole) {
  Bytes bytes(1000);
  RandomBytes random;
  random.fill(bytes);
  PiecewiseHash hash;
  for (const std::size_t cut : {0u, 1u, 239u, 240u, 241u, 999u, 1000u}) {
    hash.reset();
    hash.add(std::span(bytes).first(cut));
    hash.add(std::span(bytes).subspan(cut));
    EXPECT_EQ(hash.value(), hash_bytes(bytes, 0)) << cut;
  }
}

TEST(RandomBytes, DoesNotRepeatItself) {
  RandomBytes random;
  RandomBytes other;
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 5000; ++i) {
    seen.insert(random.next_u64());
    seen.insert(other.next_u64());
  }
  EXPECT_EQ(seen.size(), 10'000u);
}

TEST(RandomBytes, FillsMoreThanItFetchesAtOnce) {
  RandomBytes random;
  Bytes bytes(20'000);
  random.fill(bytes);
  std::set<Bytes> windows;
  for (std::size_t i = 0; i + 16 <= bytes.size(); i += 16) {
    windows.insert(Bytes(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                         bytes.begin() + static_cast<std::ptrdiff_t>(i + 16)));
  }
  EXPECT_EQ(windows.size(), 1250u);
}

}  // namespace
}  // namespace cairn
