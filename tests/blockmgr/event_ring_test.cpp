#include "blockmgr/index/event_ring.hpp"

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace cairn {
namespace {

BlockKey key_of(std::uint8_t n) {
  const std::byte byte{n};
  return BlockKey(std::span(&byte, 1));
}
BlockEvent stored(std::uint8_t n) {
  return {.cache = 1, .kind = BlockEventKind::stored, .tier = EventTier::pinned, .key = key_of(n)};
}

TEST(EventRing, ReturnsEventsInOrderWithoutGaps) {
  EventRing ring({.capacity = 8, .first_id = 100});
  EXPECT_EQ(ring.next_id(), 100u);
  for (std::uint8_t n = 0; n < 5; ++n) ring.append(stored(n));
  std::array<BlockEvent, 3> out;
  EventRing::Read read = ring.read(100, out);
  EXPECT_EQ(read.count, 3u);
  EXPECT_EQ(read.lost, 0u);
  EXPECT_EQ(out[2].id, 102u);
  EXPECT_EQ(out[2].key, key_of(2));
  read = ring.read(read.next_id, out);
  EXPECT_EQ(read.count, 2u);
  EXPECT_EQ(out[0].id, 103u);
  EXPECT_EQ(out[1].key, key_of(4));
  EXPECT_EQ(ring.read(read.next_id, out).count, 0u);
}

TEST(EventRing, ReportsEventsASlowReaderMissed) {
  EventRing ring({.capacity = 4, .first_id = 1});
  for (std::uint8_t n = 0; n < 10; ++n) ring.append(stored(n));
  std::array<BlockEvent, 8> out;
  const EventRing::Read read = ring.read(3, out);
  EXPECT_EQ(read.lost, 4u) << "events 3 to 6";
  ASSERT_EQ(read.count, 4u);
  EXPECT_EQ(out[0].id, 7u);
  EXPECT_EQ(out[0].key, key_of(6));
  EXPECT_EQ(read.next_id, 11u);
}

TEST(EventRing, ReportsLossForAnIdOfAnotherRun) {
  EventRing ring({.capacity = 4, .first_id = 1000});
  ring.append(stored(1));
  std::array<BlockEvent, 4> out;
  EventRing::Read before = ring.read(17, out);
  EXPECT_GT(before.lost, 0u);
  ASSERT_EQ(before.count, 1u);
  EXPECT_EQ(out[0].id, 1000u);
  const EventRing::Read after = ring.read(5000, out);
  EXPECT_GT(after.lost, 0u);
  EXPECT_EQ(after.count, 0u);
  EXPECT_EQ(after.next_id, 1001u);
}

TEST(EventRing, KeepsACacheNameWhileItsEventsRemain) {
  EventRing ring({.capacity = 2, .first_id = 1});
  ring.open(1, "gone");
  ring.append(stored(1));
  ring.close(1, 5);
  std::array<BlockEvent, 2> out;
  ASSERT_EQ(ring.read(2, out).count, 1u);
  EXPECT_EQ(out[0].kind, BlockEventKind::cleared);
  EXPECT_EQ(out[0].unix_ms, 5);
  EXPECT_FALSE(out[0].tier.has_value());
  ring.open(2, "next");
  EXPECT_EQ(ring.cache_name(1), "gone");
  for (std::uint8_t n = 0; n < 2; ++n) ring.append({.cache = 2, .key = key_of(n)});
  ring.open(3, "last");
  EXPECT_EQ(ring.cache_name(1), "");
  EXPECT_EQ(ring.cache_name(2), "next");
}

TEST(EventRing, DropsEventsOfAClosedCache) {
  EventRing ring({.capacity = 8, .first_id = 1});
  ring.open(1, "gone");
  ring.append_if_open(stored(1));
  ring.close(1, 5);
  ring.append_if_open(stored(2));
  std::array<BlockEvent, 8> out;
  ASSERT_EQ(ring.read(1, out).count, 2u);
  EXPECT_EQ(out[0].key, key_of(1));
  EXPECT_EQ(out[1].kind, BlockEventKind::cleared);
}

// Every event is read once or counted as lost, with concurrent writers.
TEST(EventRing, CountsEveryEventAcrossThreads) {
  EventRing ring({.capacity = 64, .first_id = 1});
  constexpr std::uint64_t kEach = 20'000;
  std::array<std::jthread, 2> writers;
  for (std::jthread& writer : writers) {
    writer = std::jthread([&ring] {
      for (std::uint64_t i = 0; i < kEach; ++i) ring.append(stored(static_cast<std::uint8_t>(i)));
    });
  }
  std::uint64_t next = 1;
  std::uint64_t seen = 0;
  std::array<BlockEvent, 16> out;
  while (seen < 2 * kEach) {
    const EventRing::Read read = ring.read(next, out);
    for (std::size_t i = 0; i < read.count; ++i) ASSERT_EQ(out[i].id, next + read.lost + i);
    seen += read.lost + read.count;
    next = read.next_id;
  }
  EXPECT_EQ(next, 2 * kEach + 1);
}

}  // namespace
}  // namespace cairn
