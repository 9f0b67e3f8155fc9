#include <gmock/gmock.h>

#include <fstream>

#include "tests/fakes/temp_dir.hpp"
#include "tests/s3/s3_client.hpp"
#include "transport/s3/object_format.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fault = BucketServer::Fault;
using Presence = RemoteStore::Presence;

std::vector<std::string> names_of(const std::string& prefix, std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(prefix + std::to_string(100 + i));
  return names;
}

std::size_t reads_in(const BucketServer& bucket) {
  std::size_t reads = 0;
  for (const auto& one : bucket.requests())
    reads += static_cast<std::size_t>(one.verb == "GET" && !one.key.empty());
  return reads;
}

TEST(S3Store, ReadsBackWhatItWrote) {
  const BucketServer bucket;
  S3Client store(bucket.settings());
  for (const std::size_t bytes : {1u, 1'000u, 3u << 20}) {
    const std::string name = "value" + std::to_string(bytes);
    EXPECT_TRUE(store.write(name, S3Client::value(name, bytes)).value());
    EXPECT_EQ(store.look(name, bytes), "same");
  }
}

TEST(S3Store, ValuesThatComeTogetherAreOneObject) {
  const BucketServer bucket;
  S3Client store(bucket.settings());
  store.write_all(names_of("a", 50), 1'000);
  const auto objects = bucket.packed();
  ASSERT_EQ(objects.size(), 1u);
  const auto& [key, object] = *objects.begin();
  EXPECT_TRUE(key.starts_with("cairn/v1/")) << key;
  EXPECT_EQ(ObjectName::read(key.substr(9))->directory_bytes, object.size() - 50 * 1'000);
}

TEST(S3Store, AnObjectThatIsFullLeavesAtOnce) {
  const BucketServer bucket;
  S3Settings settings = bucket.settings();
  settings.linger_ms = 60'000;
  settings.object_bytes = 5'000;
  S3Client store(settings);
  store.write_all(names_of("a", 10), 1'000);
  EXPECT_EQ(bucket.packed().size(), 2u);
}

TEST(S3Store, ALargeObjectLeavesIfNothingMoreComes) {
  const BucketServer bucket;
  S3Settings settings = bucket.settings();
  settings.linger_ms = 600'000;
  S3Client store(settings);
  store.write_all({"a"}, 2u << 20);
  EXPECT_EQ(bucket.packed().size(), 1u);
}

TEST(S3Store, NeighboursAreReadWithOneRequest) {
  const BucketServer bucket;
  S3Client store(bucket.settings());
  const auto names = names_of("a", 60);
  store.write_all(names, 1'000);
  const std::size_t before = reads_in(bucket);
  // Not all of them, and not in order.
  std::vector<std::string> asked;
  for (std::size_t i = names.size(); i-- > 0;) {
    if (i % 3 != 1) asked.push_back(names[i]);
  }
  std::vector<std::string> back(asked.size(), std::string(1'000, '\0'));
  for (auto& reply : store.begin_reads(asked, back)) EXPECT_TRUE(reply.get().value());
  EXPECT_EQ(reads_in(bucket) - before, 1u);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(back[i], S3Client::value(asked[i], 1'000)) << i;
  }
}

TEST(S3Store, AProbeAsksNobody) {
  const BucketServer bucket;
  S3Client store(bucket.settings());
  store.until_ready();
  store.write_all({"a", "c"}, 10);
  const auto gets = reads_in(bucket);
  EXPECT_THAT(store.probe({"a", "b", "c"}),
              ElementsAre(Presence::present, Presence::absent, Presence::present));
  EXPECT_EQ(reads_in(bucket), gets);
}

TEST(S3Store, AWriteDoesNotReplaceAValue) {
  const BucketServer bucket;
  S3Client store(bucket.settings());
  EXPECT_TRUE(store.write("a", "first").value());
  EXPECT_FALSE(store.write("a", "other").value());
  std::string back(5, '\0');
  EXPECT_TRUE(store.read("a", back).value());
  EXPECT_EQ(back, "first");
}

TEST(S3Store, AValueIsReadIntoMemoryOfItsSizeOrMore) {
  const BucketServer bucket;
  S3Client store(bucket.settings());
  ASSERT_TRUE(store.write("a", "first"));
  EXPECT_EQ(store.look("a", 4), "wrong_length");
  EXPECT_EQ(store.look("b", 6), "absent");
  std::string back(6, '\0');
  EXPECT_TRUE(store.read("a", back).value());
  EXPECT_EQ(back, "first");
}

TEST(S3Store, AnotherServerLearnsWhatIsThereInPages) {
  const BucketServer bucket;
  {
    S3Client first(bucket.settings("first"));
    for (int i = 0; i < 8; ++i) first.write_all(names_of("o" + std::to_string(i), 4), 100);
  }
  ASSERT_EQ(bucket.packed().size(), 8u);
  S3Client second(bucket.settings("second"));
  second.until_ready();
  for (int i = 0; i < 8; ++i) {
    for (const auto& name : names_of("o" + std::to_string(i), 4)) {
      EXPECT_EQ(second.look(name, 100), "same");
    }
  }
}

TEST(S3Store, AnotherServerLearnsWhatIsAddedLater) {
  const BucketServer bucket;
  S3Client first(bucket.settings("first"));
  S3Client second(bucket.settings("second"));
  second.until_ready();
  first.write_all({"later"}, 100);
  EXPECT_TRUE(eventually([&] { return second.has("later"); }));
  EXPECT_EQ(second.look("later", 100), "same");
}

TEST(S3Store, UntilTheFirstListingEndsItDoesNotKnowWhatIsAbsent) {
  BucketServer bucket;
  bucket.set_faults([](const auto&) { return Fault{.status = 503, .code = "SlowDown"}; });
  S3Client store(bucket.settings());
  EXPECT_THAT(store.probe({"a"}), ElementsAre(Presence::unknown));
  bucket.set_faults(nullptr);
  store.until_ready();
  EXPECT_THAT(store.probe({"a"}), ElementsAre(Presence::absent));
}

TEST(S3Store, OtherObjectsOfTheBucketAreIgnored) {
  BucketServer bucket;
  bucket.put("cairn/v1/readme.txt", "hello");
  bucket.put("cairn/v10/x", "hello");
  bucket.put("zzz", "hello");
  const ObjectName damaged{.created_unix_ms = 1, .writer = "x", .number = 1, .directory_bytes = 30};
  bucket.put("cairn/v1/" + damaged.text(), std::string(500, 'd'));
  S3Client store(bucket.settings());
  store.until_ready();
  store.write_all({"a"}, 100);
  EXPECT_EQ(store.look("a", 100), "same");
}

TEST(S3Store, ADeletedObjectIsAMissAndItsValuesMayBeWrittenAgain) {
  BucketServer bucket;
  S3Client store(bucket.settings());
  store.write_all({"a", "b"}, 100);
  bucket.remove(bucket.packed().begin()->first);
  EXPECT_EQ(store.look("a", 100), "absent");
  EXPECT_FALSE(store.has("b"));
  store.write_all({"b"}, 100);
  EXPECT_EQ(store.look("b", 100), "same");
}

// Reads a value whose answer has the fault, then again without it.
class S3ReadFault : public ::testing::Test {
 protected:
  std::string look_with(const Fault& fault) {
    store.write_all({"a", "b"}, 1'000);
    bucket.set_faults([fault](const auto& request) -> std::optional<Fault> {
      if (request.verb != "GET" || request.key.empty()) return std::nullopt;
      return fault;
    });
    const std::string found = store.look("b", 1'000);
    bucket.set_faults(nullptr);
    return found;
  }
  void expect_recovery() {
    EXPECT_TRUE(eventually([&] { return store.look("b", 1'000) == "same"; }));
  }

  // A listing that succeeds would end the pause, and the error with it.
  static S3Settings without_listings(S3Settings settings) {
    settings.poll_ms = 86'400'000;
    return settings;
  }

  BucketServer bucket;
  S3Client store{without_listings(bucket.settings())};
};

TEST_F(S3ReadFault, SlowDown) {
  EXPECT_EQ(look_with({.status = 503, .code = "SlowDown"}), "unavailable");
  EXPECT_TRUE(eventually([&] {
    return (*store).stats().nodes.at(0).last_error.find("SlowDown") != std::string::npos;
  }));
  expect_recovery();
}

TEST_F(S3ReadFault, InternalError) {
  EXPECT_EQ(look_with({.status = 500, .code = "InternalError"}), "unavailable");
  expect_recovery();
}

TEST_F(S3ReadFault, AccessDenied) {
  EXPECT_EQ(look_with({.status = 403, .code = "AccessDenied"}), "forbidden");
  expect_recovery();
}

TEST_F(S3ReadFault, ABucketThatIsGone) {
  EXPECT_EQ(look_with({.status = 404, .code = "NoSuchBucket"}), "io_error");
  expect_recovery();
}

TEST_F(S3ReadFault, ABodyThatIsCut) {
  for (const std::size_t bytes : {0u, 1u, 999u}) {
    EXPECT_EQ(look_with({.cut_after = bytes}), "unavailable") << bytes;
    expect_recovery();
  }
}

TEST_F(S3ReadFault, AWholeObjectInsteadOfItsRange) {
  EXPECT_EQ(look_with({.status = 200, .code = "what is no value"}), "wrong_length");
  expect_recovery();
}

TEST(S3Store, AStoppedServerIsAMissUntilItIsBack) {
  BucketServer bucket;
  S3Client store(bucket.settings());
  store.write_all({"a"}, 100);
  bucket.stop();
  EXPECT_EQ(store.look("a", 100), "unavailable");
  EXPECT_TRUE(eventually([&] { return (*store).stats().nodes.at(0).is_open; }));
  bucket.start();
  EXPECT_TRUE(eventually([&] { return store.look("a", 100) == "same"; }));
}

TEST(S3Store, AnUploadThatFailsIsTriedAgain) {
  BucketServer bucket;
  S3Client store(bucket.settings());
  store.until_ready();
  std::atomic<int> left = 2;
  bucket.set_faults([&left](const auto& request) -> std::optional<Fault> {
    if (!request.puts_values() || left-- <= 0) return std::nullopt;
    return Fault{.status = 503, .code = "SlowDown"};
  });
  store.write_all({"a"}, 100);
  EXPECT_EQ(store.look("a", 100), "same");
  EXPECT_EQ(bucket.uploads(), 3u);
}

TEST(S3Store, AnUploadThatIsRefusedEnds) {
  BucketServer bucket;
  S3Client store(bucket.settings());
  bucket.set_faults([](const auto& request) -> std::optional<Fault> {
    if (!request.puts_values()) return std::nullopt;
    return Fault{.status = 403, .code = "AccessDenied"};
  });
  EXPECT_EQ(store.write("a", "first").error().code, ErrorCode::forbidden);
  EXPECT_FALSE(store.has("a"));
}

TEST(S3Store, KeysThatExpireAreReadAgain) {
  BucketServer bucket;
  const fakes::TempDir folder;
  S3Settings settings = bucket.settings();
  settings.credentials_file = folder.path() / "credentials";
  const auto write_keys = [&](const std::string& token) {
    std::ofstream(settings.credentials_file)
        << "[default]\naws_access_key_id=id\naws_secret_access_key=secret\naws_session_token="
        << token << "\n";
  };
  write_keys("old");
  bucket.set_faults([](const auto& request) -> std::optional<Fault> {
    if (request.token == "new") return std::nullopt;
    return Fault{.status = 400, .code = "ExpiredToken"};
  });
  S3Client store(settings);
  EXPECT_EQ(store.write("a", "first").error().code, ErrorCode::forbidden);
  EXPECT_EQ((*store).stats().nodes.at(0).last_error.find("secret"), std::string::npos);
  write_keys("new");
  EXPECT_TRUE(eventually([&] { return store.write("a", "first").has_value(); }));
}

TEST(S3Store, RequestsStayWithinTheirBound) {
  BucketServer bucket;
  S3Settings settings = bucket.settings();
  settings.bounds.requests_per_s = 5;
  settings.poll_ms = 86'400'000;
  S3Client store(settings);
  store.until_ready();
  store.write_all({"a"}, 100);
  const auto begun = std::chrono::steady_clock::now();
  std::map<std::string, int> found;
  while (std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(500)) {
    ++found[store.look("a", 100)];
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  EXPECT_GT(found["unavailable"], 0);
  EXPECT_LE(static_cast<double>(bucket.requests().size()), 5 + 5 * (took.count() + 1));
}

TEST(S3Store, AnEndedStoreAnswersWhatWaits) {
  BucketServer bucket;
  S3Settings settings = bucket.settings();
  settings.linger_ms = 60'000;
  S3Client::Reply reply;
  std::string value = "first";
  {
    auto store = make_s3_store(settings).value();
    auto promise = std::make_shared<std::promise<Result<bool>>>();
    reply = promise->get_future();
    store->write({.name = "a", .from = {{value.data(), value.size()}}},
                 [promise](Result<bool> result) { promise->set_value(std::move(result)); });
  }
  EXPECT_EQ(reply.get().error().code, ErrorCode::cancelled);
}

}  // namespace
}  // namespace cairn::testing
