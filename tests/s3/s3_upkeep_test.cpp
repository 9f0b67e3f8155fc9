// What the store removes and rewrites in its bucket.
#include <gmock/gmock.h>

#include "base/clock.hpp"
#include "tests/s3/s3_client.hpp"
#include "transport/s3/object_format.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kHourMs = 3'600'000;
constexpr std::size_t kValueBytes = 1'000;

class S3Upkeep : public ::testing::Test {
 protected:
  struct Made {
    std::vector<std::string> values;
    std::int64_t hours_old = 2;
    std::string writer = "other";
    std::uint64_t ttl_ms = 0;
  };
  // Puts an object into the bucket as a server would have. Returns its name.
  std::string put(const Made& made) {
    std::vector<ObjectEntry> entries;
    std::string bytes;
    for (const std::string& name : made.values) {
      entries.push_back(
          {.name = name, .offset = bytes.size(), .size_bytes = kValueBytes, .ttl_ms = made.ttl_ms});
      bytes += S3Client::value(name, kValueBytes);
    }
    const std::string directory = write_directory(entries);
    const std::string name =
        ObjectName{.created_unix_ms = SystemClock().unix_ms() - made.hours_old * kHourMs,
                   .writer = made.writer,
                   .number = next_number++,
                   .directory_bytes = directory.size()}
            .text();
    bucket.put("cairn/v1/" + name, bytes + directory);
    return name;
  }
  std::vector<std::string> objects() const {
    std::vector<std::string> names;
    for (const auto& [key, bytes] : bucket.objects()) {
      if (!key.starts_with("cairn/v1/uses/")) names.push_back(key.substr(9));
    }
    return names;
  }

  BucketServer bucket;
  std::uint64_t next_number = 1;
};

TEST_F(S3Upkeep, RemovesWhatNobodyUsedForLongestUntilTheRestFits) {
  put({.values = {"a"}, .hours_old = 9});
  put({.values = {"b"}, .hours_old = 8});
  const std::string third = put({.values = {"c"}, .hours_old = 7});
  const std::string fourth = put({.values = {"d"}, .hours_old = 6});
  S3Settings settings = bucket.settings();
  settings.bounds.capacity_bytes = 3'000;
  S3Client store(settings);
  EXPECT_TRUE(eventually([&] { return objects().size() == 2; }));
  EXPECT_THAT(objects(), ElementsAre(third, fourth));
  EXPECT_FALSE(store.has("a"));
  EXPECT_EQ(store.look("d", kValueBytes), "same");
}

TEST_F(S3Upkeep, AnotherServersUseKeepsAnObject) {
  const std::string first = put({.values = {"a"}, .hours_old = 9});
  put({.values = {"b"}, .hours_old = 8});
  const std::string third = put({.values = {"c"}, .hours_old = 7});
  bucket.put("cairn/v1/uses/other",
             write_uses({{.object = object_hash(first),
                          .last_use_unix_ms = SystemClock().unix_ms() - kHourMs}}));
  S3Settings settings = bucket.settings();
  settings.bounds.capacity_bytes = 2'500;
  S3Client store(settings);
  EXPECT_TRUE(eventually([&] { return objects().size() == 2; }));
  EXPECT_THAT(objects(), ElementsAre(first, third));
}

TEST_F(S3Upkeep, ServersTellOneAnotherWhatTheyUse) {
  const std::string first = put({.values = {"a"}});
  S3Client store(bucket.settings("me"));
  EXPECT_TRUE(eventually([&] { return bucket.objects().contains("cairn/v1/uses/me"); }));
  const auto uses = read_uses(bucket.objects().at("cairn/v1/uses/me"));
  ASSERT_TRUE(uses);
  EXPECT_EQ(uses->at(0).object, object_hash(first));
}

TEST_F(S3Upkeep, WhatIsYoungStaysAndAFullBucketRefuses) {
  const std::string young = put({.values = {"a", "b"}, .hours_old = 0});
  S3Settings settings = bucket.settings();
  settings.bounds.capacity_bytes = 2'500;
  S3Client store(settings);
  EXPECT_TRUE(eventually([&] { return bucket.count("PUT") > 0; }));  // its uses
  EXPECT_EQ(store.write("c", S3Client::value("c", kValueBytes)).error().code,
            ErrorCode::no_capacity);
  EXPECT_THAT(objects(), ElementsAre(young));
}

TEST_F(S3Upkeep, RemovesWhatHasExpired) {
  put({.values = {"a"}, .hours_old = 3, .ttl_ms = kHourMs});
  const std::string other = put({.values = {"b"}, .hours_old = 3, .ttl_ms = 9 * kHourMs});
  S3Client store(bucket.settings());
  EXPECT_TRUE(eventually([&] { return objects().size() == 1; }));
  EXPECT_THAT(objects(), ElementsAre(other));
}

TEST_F(S3Upkeep, RewritesAnObjectOfWhichLessThanHalfIsOfUse) {
  put({.values = {"a", "b"}, .hours_old = 9});
  const std::string mine = put({.values = {"a", "b", "c"}, .hours_old = 8, .writer = "me"});
  S3Client store(bucket.settings("me"));
  EXPECT_TRUE(eventually([&] { return objects().size() == 3; }));
  const std::string made = objects().back();
  EXPECT_EQ(bucket.objects().at("cairn/v1/" + made).size(),
            kValueBytes + ObjectName::read(made)->directory_bytes);
  // The old one stays a while for the others, but is not read here.
  EXPECT_EQ(objects().at(1), mine);
  bucket.remove("cairn/v1/" + mine);
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(store.look(name, kValueBytes), "same");
}

TEST_F(S3Upkeep, LeavesOthersObjectsAsTheyAre) {
  put({.values = {"a", "b"}, .hours_old = 9});
  put({.values = {"a", "b", "c"}, .hours_old = 8, .writer = "other"});
  S3Client store(bucket.settings("me"));
  EXPECT_TRUE(eventually([&] { return bucket.count("PUT") > 0; }));
  EXPECT_EQ(objects().size(), 2u);
}

}  // namespace
}  // namespace cairn::testing
