// Parsing of a store's URL and of its replies.
#include <gmock/gmock.h>

#include "transport/store/redis_settings.hpp"
#include "transport/store/redis_slots.hpp"

namespace cairn::testing {
namespace {

using Kind = RedisReply::Kind;

TEST(RedisUrl, NamesNodesAndTls) {
  const auto one = redis_settings_from("redis://store").value();
  EXPECT_FALSE(one.tls);
  EXPECT_EQ(one.endpoints, (std::vector<WireAddress>{{"store", 6379}}));
  const auto more = redis_settings_from("rediss://a:1,[::1]:65535,c/").value();
  EXPECT_TRUE(more.tls);
  EXPECT_EQ(more.endpoints, (std::vector<WireAddress>{{"a", 1}, {"::1", 65535}, {"c", 6379}}));
  EXPECT_EQ(more.endpoints[1].text(), "[::1]:65535");
}

TEST(WireAddress, AHostIsANameOrAnAddress) {
  for (const char* host : {"a", "cache-1.example_b.org", "10.0.0.7", "fe80::1%eth0", "::"}) {
    EXPECT_TRUE(is_host(host)) << host;
  }
  for (const std::string host : {"", "a b", "a\nb", "\x1b[2J", "\xc3\xa4", "a/b", "a\"", "a@b"}) {
    EXPECT_FALSE(is_host(host)) << host;
  }
  EXPECT_FALSE(is_host(std::string("a\0", 2)));
  EXPECT_FALSE(is_host(std::string(254, 'a')));
}

TEST(WireAddress, ASocketsPathIsAbsoluteAndFitsAnAddress) {
  for (const char* path : {"/a", "/run/a b/..c/cairn.sock", "/a/b.."}) {
    EXPECT_TRUE(is_socket_path(path)) << path;
  }
  for (const std::string path : {"", "a", "/a/../b", "/..", "/a\nb", "/\x1b[2J", "/\xff"}) {
    EXPECT_FALSE(is_socket_path(path)) << path;
  }
  EXPECT_FALSE(is_socket_path(std::string("/a\0b", 4)));
  EXPECT_TRUE(is_socket_path("/" + std::string(106, 'a')));
  EXPECT_FALSE(is_socket_path("/" + std::string(107, 'a')));
}

TEST(RedisUrl, RefusesMalformedUrls) {
  for (const char* url : {"", "store", "http://store", "redis://", "redis://a,", "redis://a:0",
                          "redis://a:65536", "redis://a:b", "redis://[::1", "redis://a:1x"}) {
    EXPECT_EQ(redis_settings_from(url).error().code, ErrorCode::malformed) << url;
  }
}

TEST(RedisUrl, RefusesAPasswordWithoutRepeatingIt) {
  const auto refused = redis_settings_from("redis://user:hunter2@store");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().detail, ::testing::HasSubstr("password_file"));
  EXPECT_THAT(refused.error().detail, ::testing::Not(::testing::HasSubstr("hunter2")));
}

// Examples from the cluster specification.
TEST(RedisSlots, ANameHasTheSlotOfItsHashTag) {
  EXPECT_EQ(redis_slot_of("123456789"), 0x31C3u % kRedisSlots);
  EXPECT_EQ(redis_slot_of("{user1000}.following"), redis_slot_of("{user1000}.followers"));
  EXPECT_EQ(redis_slot_of("foo{bar}{zap}"), redis_slot_of("bar"));
  EXPECT_EQ(redis_slot_of("foo{{bar}}zap"), redis_slot_of("{bar"));
  EXPECT_NE(redis_slot_of("foo{}{bar}"), redis_slot_of("bar"));
}

TEST(RedisSlots, ReadsRedirects) {
  const WireAddress asked{"10.0.0.1", 7000};
  const auto moved = read_redirect("MOVED 3999 10.0.0.2:6381", asked);
  ASSERT_TRUE(moved);
  EXPECT_FALSE(moved->is_ask);
  EXPECT_EQ(moved->slot, 3999u);
  EXPECT_EQ(moved->node, (WireAddress{"10.0.0.2", 6381}));
  const auto ask = read_redirect("ASK 1 :7001", asked);
  ASSERT_TRUE(ask);
  EXPECT_TRUE(ask->is_ask);
  EXPECT_EQ(ask->node, (WireAddress{"10.0.0.1", 7001}));
  for (const char* text : {"", "ERR no", "MOVED", "MOVED x a:1", "MOVED 16384 a:1", "MOVED 1 a",
                           "MOVED 1 a:x", "MOVED 1"}) {
    EXPECT_FALSE(read_redirect(text, asked)) << text;
  }
}

RedisReply number(std::int64_t value) { return {.kind = Kind::integer, .integer = value}; }
RedisReply text(std::string value) { return {.kind = Kind::text, .text = std::move(value)}; }
RedisReply list(std::vector<RedisReply> values) {
  return {.kind = Kind::list, .list = std::move(values)};
}

TEST(RedisSlots, ReadsTheNodesOfSlots) {
  const WireAddress asked{"10.0.0.1", 7000};
  const auto ranges =
      read_slots(list({list({number(0), number(99), list({text("a"), number(1)}),
                             list({text("b"), number(2)})}),
                       list({number(100), number(16383), list({text(""), number(3)})})}),
                 asked);
  ASSERT_TRUE(ranges);
  ASSERT_EQ(ranges->size(), 2u);
  EXPECT_EQ(ranges->at(0).last, 99u);
  EXPECT_EQ(ranges->at(0).node, (WireAddress{"a", 1}));
  EXPECT_EQ(ranges->at(1).node, (WireAddress{"10.0.0.1", 3}));
  EXPECT_FALSE(read_slots(text("no"), asked));
  EXPECT_FALSE(read_slots(list({}), asked));
  EXPECT_FALSE(
      read_slots(list({list({number(0), number(16384), list({text("a"), number(1)})})}), asked));
  EXPECT_FALSE(read_slots(list({list({number(0), number(1)})}), asked));
  const auto of_a = [](std::int64_t first, std::int64_t last) {
    return list({number(first), number(last), list({text("a"), number(1)})});
  };
  EXPECT_FALSE(read_slots(list({of_a(2, 1)}), asked));
  EXPECT_FALSE(read_slots(list({of_a(0, 16383), of_a(5, 5)}), asked));
}

}  // namespace
}  // namespace cairn::testing
