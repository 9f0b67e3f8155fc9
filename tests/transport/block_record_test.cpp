#include "transport/record/block_record.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "base/hash.hpp"

namespace cairn::test {
namespace {

struct Place {
  std::uint64_t number = 0;
  std::uint32_t slot = 0;
  std::uint32_t unused = 0;
};
struct OtherPlace {
  std::uint64_t number = 0;
};
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kSeed = 0xC0FFEE;
constexpr std::size_t kVersionAt = 32;
constexpr std::size_t kKeyBytesAt = 33;
constexpr std::size_t kExpiryBytesAt = 36;

Bytes encoded(const BlockRecordView& record, const Place& place = {}) {
  Bytes bytes(encoded_bytes(record, sizeof(Place)));
  encode_record(record, place, bytes, kSeed);
  return bytes;
}

std::optional<PlacedRecord<Place>> decoded(std::span<const std::byte> bytes) {
  return decode_record<Place>(bytes, kSeed);
}

// With a correct checksum, as if another program had written the bytes.
Bytes with_right_checksum(Bytes bytes) {
  const std::uint64_t checksum = hash_bytes(std::span(bytes).subspan(sizeof(checksum)), kSeed);
  std::memcpy(bytes.data(), &checksum, sizeof(checksum));
  return bytes;
}

const BlockRecord kFull{.key = std::string(64, 'k'),
                        .parent = std::string("\0p", 2),
                        .metadata = "{}",
                        .data_bytes = 240,
                        .data_checksum = 0x1234,
                        .expires_at_unix_ms = 13,
                        .epoch = 7,
                        .priority = 15};

void expect_same(const BlockRecordView& a, const BlockRecordView& b) {
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(a.parent, b.parent);
  EXPECT_EQ(a.metadata, b.metadata);
  EXPECT_EQ(a.data_bytes, b.data_bytes);
  EXPECT_EQ(a.data_checksum, b.data_checksum);
  EXPECT_EQ(a.expires_at_unix_ms, b.expires_at_unix_ms);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.priority, b.priority);
}

TEST(BlockRecordBytes, EveryRecordReadsBackUnchanged) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto text = [&](std::size_t most) {
    std::string made(random() % (most + 1), '\0');
    for (char& c : made) c = static_cast<char>(random());
    return made;
  };
  Bytes all;
  std::vector<BlockRecord> written;
  for (int i = 0; i < 1'000; ++i) {
    written.push_back({.key = text(kMaxKeyBytes),
                       .parent = text(kMaxKeyBytes),
                       .metadata = text(random() % 4 == 0 ? 5'000 : 0),
                       .data_bytes = random(),
                       .data_checksum = random(),
                       .expires_at_unix_ms = static_cast<std::int64_t>(random() % 3 * random()),
                       .epoch = static_cast<std::uint32_t>(random()),
                       .priority = static_cast<std::uint8_t>(random())});
    const Bytes bytes = encoded(view_of(written.back()), {.number = random(), .slot = 9});
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  std::span<const std::byte> left = all;
  for (const BlockRecord& each : written) {
    const auto record = decoded(left);
    ASSERT_TRUE(record);
    EXPECT_EQ(record->place.slot, 9U);
    expect_same(record->block, view_of(each));
    expect_same(view_of(copy_of(record->block)), view_of(each));
    left = left.subspan(record->size_bytes);
  }
  EXPECT_TRUE(left.empty());
}

TEST(BlockRecordBytes, DetectsEveryFlippedBit) {
  Bytes bytes = encoded(view_of(kFull), {.number = 5, .slot = 3});
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto flip = static_cast<std::byte>(1U << bit % 8);
    bytes[bit / 8] ^= flip;
    EXPECT_FALSE(decoded(bytes)) << bit;
    bytes[bit / 8] ^= flip;
  }
  EXPECT_TRUE(decoded(bytes));
}

TEST(BlockRecordBytes, RejectsATruncatedRecord) {
  const Bytes bytes = encoded(view_of(kFull));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(decoded(cut)) << size;
  }
}

TEST(BlockRecordBytes, RejectsARecordOfAnotherFileOrPlaceType) {
  const Bytes bytes = encoded(view_of(kFull));
  EXPECT_FALSE(decode_record<Place>(bytes, kSeed + 1));
  EXPECT_FALSE(decode_record<OtherPlace>(bytes, kSeed));
}

TEST(BlockRecordBytes, RejectsWrongFieldsWithACorrectChecksum) {
  const Bytes right = encoded(view_of(kFull));
  ASSERT_TRUE(decoded(with_right_checksum(right)));
  const auto with = [&](std::size_t at, std::uint8_t value) {
    Bytes bytes = right;
    bytes[at] = std::byte{value};
    return decoded(with_right_checksum(std::move(bytes)));
  };
  EXPECT_FALSE(with(kVersionAt, kBlockRecordVersion - 1));
  EXPECT_FALSE(with(kVersionAt, kBlockRecordVersion + 1));
  EXPECT_FALSE(with(kKeyBytesAt, kMaxKeyBytes + 1));
  EXPECT_FALSE(with(kExpiryBytesAt, 7));
}

TEST(BlockRecordBytes, OnlyZerosMayFollowASingleRecord) {
  std::array<std::byte, 512> room;
  room.fill(std::byte{0xAA});
  encode_record(view_of(kFull), Place{}, room, kSeed);
  const auto only = [&] { return decode_only_record<Place>(room, kSeed); };
  ASSERT_TRUE(only());
  for (std::size_t at = 0; at < room.size(); ++at) {
    room[at] ^= std::byte{0x10};
    EXPECT_FALSE(only()) << at;
    room[at] ^= std::byte{0x10};
  }
}

}  // namespace
}  // namespace cairn::test
