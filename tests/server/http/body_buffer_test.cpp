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

TEST_F(BodyBufferTest, GrowsWithWhatArrivesAndNotWithWhatIsAnnounced) {
  const std::size_t announced = std::size_t{1} << 40;
  EXPECT_LE(body_.room(announced).size(), std::size_t{64 * 1024});
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

TEST_F(BodyBufferTest, KeepsItsBytesThroughEverySize) {
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

TEST_F(BodyBufferTest, GivesAllBackWhenItIsCleared) {
  ASSERT_TRUE(body_.append(bytes_of(std::string(1 << 20, 'x'))));
  EXPECT_GT(held_bytes(), 0u);
  body_.clear();
  EXPECT_EQ(held_bytes(), 0u);
  EXPECT_EQ(body_.size(), 0u);
  ASSERT_TRUE(body_.append(bytes_of("again")));
  EXPECT_EQ(text(), "again");
}

TEST_F(BodyBufferTest, TheMemoryOfLongBodiesGoesBackOnceNoneHasBegunForAPeriod) {
  ASSERT_TRUE(body_.append(bytes_of(std::string(1 << 20, 'x'))));
  body_.clear();
  memory_->trim_idle();
  EXPECT_GT(of("http_bodies").reserved_bytes, 0u);
  memory_->trim_idle();
  EXPECT_EQ(of("http_bodies").reserved_bytes, 0u);
}

TEST_F(BodyBufferTest, ABodyKeepsItsMemoryHoweverLongItLasts) {
  const std::string expected(1 << 20, 'x');
  ASSERT_TRUE(body_.append(bytes_of(expected)));
  memory_->trim_idle();
  memory_->trim_idle();
  EXPECT_TRUE(text() == expected);
  EXPECT_GE(of("http_bodies").reserved_bytes, expected.size());
}

TEST_F(BodyBufferTest, RefusesWhatTheMemoryDoesNotHaveAndKeepsWhatItHas) {
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
