#include "server/codec/byte_range.hpp"

#include <gtest/gtest.h>

namespace cairn {
namespace {

struct Case {
  const char* header;
  std::optional<ByteRange> range;  // of 100 bytes; nullopt: all is sent
};

TEST(Range, FollowsTheStandard) {
  const Case cases[] = {
      {"bytes=0-9", ByteRange{0, 10}},
      {"bytes=99-99", ByteRange{99, 1}},
      {"bytes=90-", ByteRange{90, 10}},
      {"bytes=90-500", ByteRange{90, 10}},
      {"bytes=-10", ByteRange{90, 10}},
      {"bytes=-500", ByteRange{0, 100}},
      {"bytes= 1 - 2 ", ByteRange{1, 2}},
      {"bytes=0-99999999999999999999999", ByteRange{0, 100}},
      // Not understood, so ignored.
      {"", std::nullopt},
      {"lines=0-9", std::nullopt},
      {"bytes=", std::nullopt},
      {"bytes=-", std::nullopt},
      {"bytes=5", std::nullopt},
      {"bytes=9-1", std::nullopt},
      {"bytes=a-b", std::nullopt},
      {"bytes=1-x", std::nullopt},
      {"bytes=+1-2", std::nullopt},
      {"bytes=0-1,5-6", std::nullopt},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.header);
    const auto range = parse_range(one.header, 100);
    ASSERT_TRUE(range);
    EXPECT_EQ(*range, one.range);
  }
}

TEST(Range, RefusesARangeBehindTheEnd) {
  for (const char* header :
       {"bytes=100-", "bytes=100-200", "bytes=-0", "bytes=99999999999999999999999-"}) {
    SCOPED_TRACE(header);
    const auto range = parse_range(header, 100);
    ASSERT_FALSE(range);
    EXPECT_EQ(range.error().code, ErrorCode::range_not_satisfiable);
  }
}

TEST(IfNoneMatch, FindsTheTagInAList) {
  EXPECT_TRUE(names_etag("\"aa\"", "\"aa\""));
  EXPECT_TRUE(names_etag("\"bb\", W/\"aa\"", "\"aa\""));
  EXPECT_TRUE(names_etag("*", "\"aa\""));
  EXPECT_FALSE(names_etag("", "\"aa\""));
  EXPECT_FALSE(names_etag("\"aab\"", "\"aa\""));
}

}  // namespace
}  // namespace cairn
