#include "server/codec/query.hpp"

#include <gmock/gmock.h>

namespace cairn {
namespace {

using ::testing::HasSubstr;

TEST(Query, ReadsNamedParameters) {
  Query query("layer=3&outer=1&force=true&tier=disk&key=aB&name=a%20b");
  const auto piece = query.piece();
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->layer, 3u);
  EXPECT_EQ(piece->outer, 1u);
  EXPECT_EQ(query.flag("force"), true);
  EXPECT_EQ(query.tier("tier"), Tier::disk);
  EXPECT_TRUE(query.key("key"));
  EXPECT_EQ(query.text("name"), "a b");
  EXPECT_FALSE(query.number("absent", {}));
  EXPECT_TRUE(query.finish());
}

TEST(Query, ReadsAShardOrAPieceButNotBoth) {
  Query shard("shard=1&shards=4");
  EXPECT_EQ(shard.part().shard(), (ShardSelector{.shard = 1, .shards = 4}));
  EXPECT_TRUE(shard.finish());
  Query neither("");
  EXPECT_TRUE(neither.part().is_whole());
  for (const char* wrong : {"shard=1", "shards=2", "shard=0&shards=0", "shard=x&shards=2",
                            "shard=0&shards=2&layer=0&outer=0"}) {
    Query query(wrong);
    query.part();
    EXPECT_FALSE(query.finish()) << wrong;
  }
}

// Reads every parameter that a route might, so that only wrong ones are refused.
Result<> read_all(std::string_view text) {
  Query query(text);
  query.number("n", {1, 10});
  query.flag("force");
  query.tier("tier");
  query.key("key");
  query.piece();
  return query.finish();
}

TEST(Query, WrongParametersAreNamed) {
  struct Wrong {
    const char* text;
    ErrorCode code;
    const char* names;
  };
  constexpr Wrong kTable[] = {
      {"n=0", ErrorCode::out_of_range, "n is '0'; it takes 1 to 10"},
      {"n=11", ErrorCode::out_of_range, "n is '11'"},
      {"n=-1", ErrorCode::out_of_range, "n is '-1'"},
      {"n=99999999999999999999999", ErrorCode::out_of_range, "n is '9999"},
      {"n=", ErrorCode::wrong_type, "n is ''"},
      {"n", ErrorCode::wrong_type, "n is ''"},
      {"n=1.5", ErrorCode::wrong_type, "n is '1.5'"},
      {"n=5x", ErrorCode::wrong_type, "n is '5x'"},
      {"n=%2B5", ErrorCode::wrong_type, "n is '+5'"},
      {"force=yes", ErrorCode::wrong_type, "force is 'yes'"},
      {"tier=tape", ErrorCode::out_of_range, "tier is 'tape'"},
      {"key=xy", ErrorCode::malformed, "key is 'xy'"},
      {"layer=1", ErrorCode::missing_field, "outer"},
      {"outer=1", ErrorCode::missing_field, "layer"},
      {"colour=red", ErrorCode::unknown_field, "colour"},
      {"n=5&n=5", ErrorCode::malformed, "'n' twice"},
      {"n=%5", ErrorCode::malformed, "%"},
      {"n=%zz", ErrorCode::malformed, "%"},
      {"a&b&c&d&e&f&g&h&i&j&k&l&m&o&p&q&r", ErrorCode::malformed, "16"},
  };
  for (const Wrong& wrong : kTable) {
    SCOPED_TRACE(wrong.text);
    const auto read = read_all(wrong.text);
    ASSERT_FALSE(read);
    EXPECT_EQ(to_string(read.error().code), to_string(wrong.code)) << read.error().detail;
    EXPECT_THAT(read.error().detail, HasSubstr(wrong.names));
  }
}

TEST(Query, PlusIsASpace) {
  Query query("metadata=%7B%22a%22%3A+%22b%2Bc%22%7D");
  EXPECT_EQ(query.text("metadata"), "{\"a\": \"b+c\"}");
}

TEST(Query, EmptyPartsDoNotMatter) {
  EXPECT_TRUE(read_all(""));
  EXPECT_TRUE(read_all("&&n=5&"));
}

}  // namespace
}  // namespace cairn
