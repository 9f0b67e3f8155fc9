// What needs no bucket: names, directories, answers, keys, bounds.
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "tests/fakes/temp_dir.hpp"
#include "transport/s3/object_catalogue.hpp"
#include "transport/s3/object_format.hpp"
#include "transport/s3/rate_budget.hpp"
#include "transport/s3/s3_answers.hpp"
#include "transport/s3/s3_credentials.hpp"
#include "transport/s3/s3_settings.hpp"

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

std::vector<ObjectEntry> three_entries() {
  return {{.name = "a", .offset = 0, .size_bytes = 100},
          {.name = "b", .offset = 100, .size_bytes = 0, .ttl_ms = 5'000},
          {.name = std::string(kMaxValueName, 'c'), .offset = 100, .size_bytes = 1ull << 40}};
}

TEST(ObjectFormat, ReadsBackADirectory) {
  EXPECT_EQ(read_directory(write_directory(three_entries())), three_entries());
}

TEST(ObjectFormat, RefusesADirectoryWithAnyByteChanged) {
  const std::string directory = write_directory(three_entries());
  for (std::size_t i = 0; i < directory.size(); ++i) {
    std::string changed = directory;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    EXPECT_FALSE(read_directory(changed)) << i;
  }
}

TEST(ObjectFormat, RefusesADirectoryOfAnyOtherLength) {
  const std::string directory = write_directory(three_entries());
  for (std::size_t i = 0; i < directory.size(); ++i) {
    EXPECT_FALSE(read_directory(directory.substr(0, i))) << i;
  }
  EXPECT_FALSE(read_directory(directory + "x"));
}

TEST(ObjectFormat, RefusesValuesWithAGapBetweenThem) {
  auto entries = three_entries();
  entries[1].offset = 101;
  EXPECT_FALSE(read_directory(write_directory(entries)));
}

TEST(ObjectFormat, NamesAreOrderedByAgeAndReadBack) {
  const ObjectName older{.created_unix_ms = 999, .writer = "z", .number = 9, .directory_bytes = 90};
  const ObjectName newer{
      .created_unix_ms = 1'795'817'402'123, .writer = "a", .number = ~0ull, .directory_bytes = 24};
  EXPECT_LT(older.text(), newer.text());
  EXPECT_EQ(ObjectName::read(older.text()), older);
  EXPECT_EQ(ObjectName::read(newer.text()), newer);
  EXPECT_LE(first_name_of(newer.created_unix_ms), newer.text());
  EXPECT_GT(first_name_of(newer.created_unix_ms + 1), newer.text());
}

TEST(ObjectFormat, ForeignNamesAreNoObjects) {
  const std::string name =
      ObjectName{.created_unix_ms = 5, .writer = "a", .directory_bytes = 24}.text();
  EXPECT_FALSE(ObjectName::read(""));
  EXPECT_FALSE(ObjectName::read("readme.txt"));
  EXPECT_FALSE(ObjectName::read(name + "0"));
  for (std::size_t i = 0; i < name.size(); ++i) {
    std::string changed = name;
    changed[i] = '/';
    EXPECT_FALSE(ObjectName::read(changed) && changed.find('/') != 17) << changed;
    EXPECT_FALSE(ObjectName::read(name.substr(0, i))) << i;
  }
}

class ObjectCatalogueTest : public ::testing::Test {
 protected:
  void add(const std::string& object, const std::vector<std::string>& names,
           std::int64_t last_use_unix_ms = 0) {
    std::vector<ObjectEntry> entries;
    for (const std::string& name : names) {
      entries.push_back(
          {.name = name, .offset = entries.size() * 10, .size_bytes = 10, .ttl_ms = ttl_ms});
    }
    catalogue.add(
        {.name = object, .size_bytes = 10 * names.size() + 5, .last_use_unix_ms = last_use_unix_ms},
        entries);
  }
  std::string object_of(const std::string& name, std::int64_t now_unix_ms = 0) const {
    const auto place = catalogue.find(name, now_unix_ms);
    return place ? *place->object : "none";
  }

  ObjectCatalogue catalogue{7};
  std::uint64_t ttl_ms = 0;
};

TEST_F(ObjectCatalogueTest, FindsEachValueInItsObject) {
  add("1", {"a", "b"});
  add("2", {"c"});
  EXPECT_EQ(object_of("b"), "1");
  EXPECT_EQ(catalogue.find("b", 0)->offset, 10u);
  EXPECT_EQ(object_of("c"), "2");
  EXPECT_EQ(object_of("d"), "none");
}

TEST_F(ObjectCatalogueTest, AValueOfTwoObjectsIsThatOfTheOlderOne) {
  add("2", {"a", "b"});
  add("1", {"b"});
  add("3", {"b"});
  EXPECT_EQ(object_of("b"), "1");
  EXPECT_EQ(catalogue.objects().at("2").live_bytes, 10u);
  EXPECT_EQ(catalogue.objects().at("3").live_bytes, 0u);
  EXPECT_EQ(catalogue.live_bytes(), 20u);
}

TEST_F(ObjectCatalogueTest, ADroppedObjectTakesItsValuesAlong) {
  add("1", {"a", "b"});
  add("2", {"b", "c"});
  catalogue.drop("1");
  EXPECT_EQ(object_of("a"), "none");
  EXPECT_EQ(object_of("c"), "2");
  EXPECT_EQ(catalogue.total_bytes(), 25u);
  catalogue.drop("2");
  EXPECT_EQ(catalogue.total_bytes(), 0u);
  EXPECT_EQ(catalogue.live_bytes(), 0u);
}

TEST_F(ObjectCatalogueTest, ATimeToLiveCountsFromTheLastUseOfTheObject) {
  ttl_ms = 100;
  add("1", {"a"}, 1'000);
  EXPECT_EQ(object_of("a", 1'099), "1");
  EXPECT_EQ(object_of("a", 1'100), "none");
  catalogue.used("1", 1'050);
  EXPECT_EQ(object_of("a", 1'100), "1");
}

TEST(ObjectUses, AreReadBackIfEveryByteIsIntact) {
  const std::vector<ObjectUse> uses = {{.object = object_hash("a"), .last_use_unix_ms = 5},
                                       {.object = object_hash("b"), .last_use_unix_ms = -1}};
  const std::string bytes = write_uses(uses);
  EXPECT_EQ(read_uses(bytes), uses);
  EXPECT_EQ(read_uses(write_uses({})), std::vector<ObjectUse>());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(read_uses(changed)) << i;
    EXPECT_FALSE(read_uses(bytes.substr(0, i))) << i;
  }
}

TEST(S3Answers, ReadsAListing) {
  const auto listing = read_listing(
      R"(<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><KeyCount>2</KeyCount>
<IsTruncated>true</IsTruncated><Contents><Key>x/a&amp;b</Key><Size>12</Size><ETag>"q"</ETag></Contents>
<Contents><Key>x/c</Key><Size>0</Size><Owner><ID>me</ID></Owner></Contents></ListBucketResult>)");
  ASSERT_TRUE(listing);
  EXPECT_TRUE(listing->is_truncated);
  ASSERT_EQ(listing->objects.size(), 2u);
  EXPECT_EQ(listing->objects[0].key, "x/a&b");
  EXPECT_EQ(listing->objects[0].size_bytes, 12u);
  EXPECT_EQ(listing->objects[1].key, "x/c");
}

TEST(S3Answers, RefusesWhatIsNoListing) {
  const std::string deep = [] {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += "<a>";
    return text;
  }();
  for (const std::string& text :
       {std::string(), std::string("<html>"), deep,
        std::string("<ListBucketResult><Contents><Size>-1</Size></Contents></ListBucketResult>"),
        std::string("<ListBucketResult>"),
        std::string("<!DOCTYPE a [<!ENTITY b \"bb\">]><ListBucketResult></ListBucketResult>")}) {
    EXPECT_FALSE(read_listing(text)) << text.substr(0, 60);
  }
}

TEST(S3Answers, ReadsAnErrorAsOneLineThatShowsNoControls) {
  EXPECT_EQ(read_error("<Error><Code>SlowDown</Code><Message>Slow\ndown.</Message></Error>"),
            "SlowDown: Slow\\x0adown.");
  EXPECT_EQ(read_error("not xml"), "");
}

TEST(S3Settings, NamesTheFieldThatCannotBeUsed) {
  S3Settings good{.bucket = "a-bucket"};
  EXPECT_TRUE(check(good));
  const auto detail_of = [&](auto change) {
    S3Settings settings = good;
    change(settings);
    const auto checked = check(settings);
    return checked ? std::string("ok") : checked.error().detail;
  };
  EXPECT_THAT(detail_of([](auto& s) { s.bucket = "a/b"; }), HasSubstr("bucket is 'a/b'"));
  EXPECT_THAT(detail_of([](auto& s) { s.bucket = "ab"; }), HasSubstr("bucket"));
  for (const char* prefix : {"", "/", "a/", "/a", "a//b", "..", "a b"}) {
    EXPECT_THAT(detail_of([&](auto& s) { s.prefix = prefix; }), HasSubstr("prefix")) << prefix;
  }
  for (const char* url : {"ftp://x", "x:9000", "http://", "http://x/y", "http://a@b"}) {
    EXPECT_THAT(detail_of([&](auto& s) { s.endpoint = url; }), HasSubstr("endpoint")) << url;
  }
  EXPECT_EQ(detail_of([](auto& s) { s.endpoint = "http://[::1]:9000"; }), "ok");
}

TEST(S3Settings, ABucketIsPartOfThePathOrOfTheHost) {
  S3Settings settings{.region = "eu-central-1", .bucket = "b"};
  settings.path_style = false;
  EXPECT_EQ(bucket_url(settings), "https://b.s3.eu-central-1.amazonaws.com");
  settings.endpoint = "http://127.0.0.1:9000";
  settings.path_style = true;
  EXPECT_EQ(bucket_url(settings), "http://127.0.0.1:9000/b");
}

TEST(S3Credentials, ReadsTheProfileOfAFile) {
  const fakes::TempDir folder;
  const std::string path = folder.path() / "credentials";
  std::ofstream(path) << "# mine\n[default]\naws_access_key_id = one\n"
                         "aws_secret_access_key=first\n\n[other]\r\naws_access_key_id=two\r\n"
                         "aws_secret_access_key = sec=ond \r\naws_session_token = t\r\n";
  const auto keys = load_keys({.file = path});
  EXPECT_EQ(keys->id, "one");
  EXPECT_EQ(keys->secret, "first");
  const auto other = load_keys({.file = path, .profile = "other"});
  EXPECT_EQ(other->id, "two");
  EXPECT_EQ(other->secret, "sec=ond");
  EXPECT_EQ(other->token, "t");
  const auto none = load_keys({.file = path, .profile = "third"});
  EXPECT_THAT(none.error().detail, HasSubstr("[third]"));
  EXPECT_EQ(none.error().detail.find("first"), std::string::npos);
  EXPECT_EQ(load_keys({.file = path + "x"}).error().code, ErrorCode::not_found);
}

TEST(S3Credentials, ReadsTheAnswersOfServices) {
  const auto json = keys_from_json(
      R"({"AccessKeyId": "a", "SecretAccessKey": "b", "Token": "c", "Expiration": "2026-11-25T12:00:01Z"})");
  EXPECT_EQ(json->id + json->secret + json->token, "abc");
  EXPECT_EQ(json->expires_at_unix_ms, 1'795'608'001'000);
  const auto xml = keys_from_xml(
      "<AssumeRoleWithWebIdentityResponse "
      "xmlns=\"x\"><AssumeRoleWithWebIdentityResult><Credentials>"
      "<AccessKeyId>a</AccessKeyId><SecretAccessKey>b</SecretAccessKey><SessionToken>c</"
      "SessionToken>"
      "<Expiration>2026-11-25T12:00:01Z</Expiration></Credentials></"
      "AssumeRoleWithWebIdentityResult>"
      "</AssumeRoleWithWebIdentityResponse>");
  EXPECT_EQ(xml->id + xml->secret + xml->token, "abc");
  EXPECT_EQ(xml->expires_at_unix_ms, 1'795'608'001'000);
  for (const char* wrong : {"", "[]", "{", "3", R"({"AccessKeyId": 1, "SecretAccessKey": "b"})"}) {
    EXPECT_FALSE(keys_from_json(wrong)) << wrong;
    EXPECT_FALSE(keys_from_xml(wrong)) << wrong;
  }
}

TEST(RateBudget, AllowsTheRateAndNoMore) {
  RateBudget budget({.units = 100});
  RateBudget::TimePoint now{std::chrono::hours(1)};
  std::uint64_t used = 0;
  for (int i = 0; i < 10'000; ++i) {
    now += milliseconds(1);
    if (!budget.may(3, now)) continue;
    budget.use(3, now);
    used += 3;
  }
  // Ten seconds, and the full bucket of the start.
  EXPECT_LE(used, 1'100u);
  EXPECT_GE(used, 1'090u);
}

TEST(RateBudget, ALargeRequestTakesAFullBucketAndPaysLater) {
  RateBudget budget({.units = 100});
  RateBudget::TimePoint now{std::chrono::hours(1)};
  EXPECT_TRUE(budget.may(500, now));
  budget.use(500, now);
  EXPECT_FALSE(budget.may(1, now + milliseconds(4'000)));
  EXPECT_TRUE(budget.may(1, now + milliseconds(4'020)));
}

TEST(RateBudget, ZeroIsNoBound) {
  RateBudget budget({});
  EXPECT_TRUE(budget.may(~0ull, {}));
}

}  // namespace
}  // namespace cairn::testing
