#include "server/http/body_buffer.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace cairn::http {
namespace {

constexpr std::uint64_t kLimitBytes = 16ull << 20;

class BodyBufferTest : public testing::Test {
 protected:
  AllocatorStatistics of(std::string_view name) const {
    for (const NamedAllocator& one : memory_->statistics()) {
      if (one.allocator == name) return one.now;
    }
    ADD_FAILURE() << name;
    return {};
  }
  std::uint64_t held_bytes() const {
    return of("http_bodies").allocated_bytes + of("http_small_bodies").allocated_bytes;
  }
  static std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  }
  std::string text() const {
    return {reinterpret_cast<const char*>(body_.data().data()), body_.size()};
  }

  const std::unique_ptr<BodyMemory> memory_ = BodyMemory::create(kLimitBytes).value();
  BodyBuffer body_{*memory_};
};

TEST_F(BodyBufferTest, GrowsWithABodyOfUnknownLength) {
  EXPECT_LE(body_.room(std::size_t{1} << 40).size(), std::size_t{64 * 1024});
  std::string expected;
  for (int i = 0; i < 300; ++i) {
    const auto room = body_.room(1000);
    ASSERT_GE(room.size(), 1u);
    ASSERT_LE(room.size(), 1000u);
    const char fill = static_cast<char>('a' + i % 26);
    std::memset(room.data(), fill, room.size());
    body_.commit(room.size());
    expected.append(room.size(), fill);
  }
  EXPECT_TRUE(text() == expected);
}

TEST_F(BodyBufferTest, KeepsItsBytesWhileItGrows) {
  std::string expected;
  for (std::size_t n = 1; expected.size() < 500'000; n = n * 3 / 2 + 1) {
    const std::string more(n, static_cast<char>('a' + n % 26));
    ASSERT_TRUE(body_.append(bytes_of(more)));
    expected += more;
    ASSERT_TRUE(text() == expected) << expected.size();
  }
}

TEST_F(BodyBufferTest, HasReadablePaddingBehindItsBytes) {
  for (const std::size_t size_bytes : {1u, 192u, 193u, 65'472u, 65'473u, 300'000u}) {
    body_.clear();
    ASSERT_TRUE(body_.append(bytes_of(std::string(size_bytes, 'x'))));
    std::string beyond(kBodyPadding, '\0');
    std::memcpy(beyond.data(), body_.data().data() + body_.size(), kBodyPadding);
  }
}

TEST_F(BodyBufferTest, TakesShortBodiesFromTheBucketsAndLongOnesFromTheSlabs) {
  ASSERT_TRUE(body_.append(bytes_of(std::string(100, 'x'))));
  EXPECT_EQ(of("http_small_bodies").allocated_bytes, 256u);
  ASSERT_TRUE(body_.append(bytes_of(std::string(900, 'x'))));
  EXPECT_EQ(of("http_small_bodies").allocated_bytes, 4096u);
  EXPECT_EQ(of("http_bodies").allocated_bytes, 0u);
  ASSERT_TRUE(body_.append(bytes_of(std::string(65'536, 'x'))));
  EXPECT_EQ(of("http_small_bodies").allocated_bytes, 0u);
  EXPECT_GE(of("http_bodies").allocated_bytes, 66'536u);
}

TEST_F(BodyBufferTest, AllocatesOnceIfTheLengthIsKnown) {
  const std::string expected(300'000, 'x');
  body_.expect(expected.size());
  std::string_view left = expected;
  while (!left.empty()) {
    ASSERT_TRUE(body_.append(bytes_of(std::string(left.substr(0, 20'000)))));
    left.remove_prefix(std::min<std::size_t>(left.size(), 20'000));
  }
  body_.settle();
  EXPECT_TRUE(text() == expected);
  EXPECT_EQ(of("http_bodies").allocations, 1u);
  EXPECT_EQ(of("http_small_bodies").allocations, 0u);
  EXPECT_LE(held_bytes(), expected.size() + expected.size() / 4);
}

TEST_F(BodyBufferTest, AnnouncedLengthsReserveAtMostAShareOfTheMemory) {
  const std::size_t announced = kLimitBytes / 4 - 4096;
  BodyBuffer first(*memory_);
  first.expect(announced);
  EXPECT_GE(held_bytes(), announced);
  const std::uint64_t held = held_bytes();
  BodyBuffer second(*memory_);
  second.expect(announced);
  EXPECT_EQ(held_bytes(), held);
  // The second body still arrives.
  const std::string expected(200'000, 'y');
  ASSERT_TRUE(second.append(bytes_of(expected)));
  second.settle();
  // A body that has arrived or gone no longer counts as announced.
  ASSERT_TRUE(first.append(bytes_of("all of it")));
  first.settle();
  BodyBuffer third(*memory_);
  third.expect(announced);
  EXPECT_GE(held_bytes(), held + announced);
  third.clear();
  third.expect(announced);
  EXPECT_GE(held_bytes(), held + announced);
}

TEST_F(BodyBufferTest, FreesTheUnfilledMemoryOfAShorterBody) {
  body_.expect(4000);
  EXPECT_EQ(held_bytes(), 4096u);
  ASSERT_TRUE(body_.append(bytes_of(std::string(100, 'x'))));
  body_.settle();
  EXPECT_EQ(held_bytes(), 256u);
  EXPECT_EQ(text(), std::string(100, 'x'));
  ASSERT_TRUE(body_.append(bytes_of(std::string(500, 'y'))));
  EXPECT_EQ(text(), std::string(100, 'x') + std::string(500, 'y'));
}

TEST_F(BodyBufferTest, ReportsTheSizesOfBodies) {
  body_.expect(4000);
  ASSERT_TRUE(body_.append(bytes_of(std::string(100, 'x'))));
  body_.settle();
  EXPECT_EQ(memory_->sizes().current.sum, 256u);
  EXPECT_EQ(memory_->sizes().peak.sum, 0u);
  body_.clear();
  EXPECT_EQ(memory_->sizes().peak.sum, 4096u);
  body_.clear();
  EXPECT_EQ(memory_->sizes().peak.sum, 4096u);
}

TEST_F(BodyBufferTest, ClearFreesAllMemory) {
  ASSERT_TRUE(body_.append(bytes_of(std::string(1 << 20, 'x'))));
  EXPECT_GT(held_bytes(), 0u);
  body_.clear();
  EXPECT_EQ(held_bytes(), 0u);
  EXPECT_EQ(body_.size(), 0u);
  ASSERT_TRUE(body_.append(bytes_of("again")));
  EXPECT_EQ(text(), "again");
}

TEST_F(BodyBufferTest, TrimFreesIdleMemoryOfLongBodies) {
  ASSERT_TRUE(body_.append(bytes_of(std::string(1 << 20, 'x'))));
  body_.clear();
  memory_->trim_idle();
  EXPECT_GT(of("http_bodies").reserved_bytes, 0u);
  memory_->trim_idle();
  EXPECT_EQ(of("http_bodies").reserved_bytes, 0u);
}

TEST_F(BodyBufferTest, TrimKeepsTheMemoryOfABodyInUse) {
  const std::string expected(1 << 20, 'x');
  ASSERT_TRUE(body_.append(bytes_of(expected)));
  memory_->trim_idle();
  memory_->trim_idle();
  EXPECT_TRUE(text() == expected);
  EXPECT_GE(of("http_bodies").reserved_bytes, expected.size());
}

TEST_F(BodyBufferTest, RefusedGrowthKeepsTheBytes) {
  ASSERT_TRUE(body_.append(bytes_of(std::string(1000, 'x'))));
  EXPECT_FALSE(body_.append(bytes_of(std::string(kLimitBytes, 'y'))));
  EXPECT_EQ(text(), std::string(1000, 'x'));
  std::string expected(1000, 'x');
  for (;;) {
    const auto room = body_.room(1 << 20);
    if (room.empty()) break;
    std::memset(room.data(), 'z', room.size());
    body_.commit(room.size());
    expected.append(room.size(), 'z');
    ASSERT_LT(expected.size(), kLimitBytes);
  }
  EXPECT_TRUE(text() == expected);
  BodyBuffer other(*memory_);
  EXPECT_TRUE(other.append(bytes_of("small ones go on")));
}

}  // namespace
}  // namespace cairn::http
