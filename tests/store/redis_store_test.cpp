// Values in a single real redis-server.
#include <csignal>
#include <latch>

#include "tests/fakes/tls/certificates.hpp"
#include "tests/store/store_client.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Presence = RemoteStore::Presence;

TEST(RedisStore, ReadsBackAWrittenValue) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  for (const std::size_t size : {3u, 1'000u, 16'384u, 2u << 20, (5u << 20) + 1}) {
    const std::string name = "value" + std::to_string(size);
    const std::string bytes = some_bytes(size, 1);
    EXPECT_TRUE(store.write(name, bytes).value());
    std::string back(size, '\0');
    EXPECT_TRUE(store.read(name, back).value());
    EXPECT_TRUE(back == bytes) << size;
  }
}

TEST(RedisStore, AWriteDoesNotReplaceAValue) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  EXPECT_TRUE(store.write("a", "first").value());
  EXPECT_FALSE(store.write("a", "other").value());
  std::string back(5, '\0');
  EXPECT_TRUE(store.read("a", back).value());
  EXPECT_EQ(back, "first");
}

TEST(RedisStore, ReportsAbsentValues) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  std::string back(5, '\0');
  EXPECT_FALSE(store.read("nothing", back).value());
  EXPECT_FALSE(store.touch("nothing").value());
  ASSERT_TRUE(store.write("a", "first"));
  ASSERT_TRUE(store.write("c", "third"));
  EXPECT_THAT(store.probe({"a", "b", "c"}),
              ElementsAre(Presence::present, Presence::absent, Presence::present));
  EXPECT_TRUE(store.probe({}).empty());
}

TEST(RedisStore, ReadsAValueThatIsShorterThanItsMemory) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  for (const std::size_t size : {1u, 50u, 99u, 100u}) {
    const std::string name = "a" + std::to_string(size);
    ASSERT_TRUE(store.write(name, some_bytes(size, 2)));
    std::string back(100, '\0');
    EXPECT_TRUE(store.read(name, back).value());
    EXPECT_EQ(back, some_bytes(size, 2));
  }
}

TEST(RedisStore, RefusesAValueThatIsEmptyOrTooLongAndReadsTheNext) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  for (const std::size_t size : {0u, 101u, 200'000u}) {
    const std::string name = "a" + std::to_string(size);
    ASSERT_TRUE(store.write(name, some_bytes(size, 2)));
    std::string back(100, '\0');
    EXPECT_EQ(store.read(name, back).error().code, ErrorCode::wrong_length);
  }
  ASSERT_TRUE(store.write("b", "whole"));
  std::string back(5, '\0');
  EXPECT_TRUE(store.read("b", back).value());
  EXPECT_EQ(back, "whole");
}

TEST(RedisStore, SetsAndRenewsATimeToLive) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  ASSERT_TRUE(store.write("a", "first", 100'000));
  EXPECT_LE(std::stoll(redis.ask({"PTTL", "a"})), 100'000);
  EXPECT_TRUE(store.touch("a", 900'000).value());
  EXPECT_GT(std::stoll(redis.ask({"PTTL", "a"})), 100'000);
}

TEST(RedisStore, ATouchUsesAValueWithoutATimeToLive) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  ASSERT_TRUE(store.write("a", "first"));
  EXPECT_TRUE(store.touch("a").value());
  // EXISTS does not count as a use for the store's LRU.
  EXPECT_THAT(redis.ask({"INFO", "commandstats"}), HasSubstr("cmdstat_touch:calls="));
}

TEST(RedisStore, ErasesAValue) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  ASSERT_TRUE(store.write("a", "first"));
  (*store).erase("a");
  EXPECT_THAT(store.probe({"a"}), ElementsAre(Presence::absent));
}

TEST(RedisStore, ConcurrentReadsDoNotMix) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  constexpr std::size_t kValues = 100;
  constexpr std::size_t kBytes = 100'000;
  std::vector<std::string> back(kValues, std::string(kBytes, '\0'));
  std::vector<RemoteStore::Read> reads;
  for (unsigned i = 0; i < kValues; ++i) {
    ASSERT_TRUE(store.write("v" + std::to_string(i), some_bytes(kBytes, i)));
  }
  for (unsigned i = 0; i < kValues; ++i) {
    reads.push_back({.name = "v" + std::to_string(i), .into = {{back[i].data(), kBytes}}});
  }
  std::latch left(kValues);
  (*store).read(std::move(reads), [&](std::size_t, const RemoteStore::ReadResult& size) {
    EXPECT_EQ(size.value(), kBytes);
    left.count_down();
  });
  left.wait();
  for (unsigned i = 0; i < kValues; ++i) {
    EXPECT_TRUE(back[i] == some_bytes(kBytes, i)) << i;
  }
}

TEST(RedisStore, AFullStoreIsNoCapacity) {
  const RedisProcess redis({"--maxmemory", "1mb", "--maxmemory-policy", "noeviction"});
  StoreClient store(redis);
  store.until_ready();
  EXPECT_EQ(store.write("large", some_bytes(4 << 20, 1)).error().code, ErrorCode::no_capacity);
  EXPECT_FALSE(store.touch("large").value());
}

TEST(RedisStore, AKilledServerIsUnavailableUntilItIsBack) {
  RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  ASSERT_TRUE(store.write("a", "first"));
  redis.kill();
  std::string back(5, '\0');
  EXPECT_EQ(store.read("a", back).error().code, ErrorCode::unavailable);
  EXPECT_THAT(store.probe({"a"}), ElementsAre(Presence::unknown));
  redis.start();
  store.until_ready();
  EXPECT_TRUE(store.write("a", "again").value());
}

// Its circuit stayed open until the next request; a replica's stayed open permanently.
TEST(RedisStore, NoticesWithoutARequestThatAServerIsBack) {
  RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  const auto has_failed = [&] {
    const auto nodes = (*store).stats().nodes;
    EXPECT_EQ(nodes.size(), 1u);
    return !nodes.front().last_error.empty();
  };
  EXPECT_FALSE(has_failed());
  redis.kill();
  EXPECT_FALSE(store.touch("a").has_value());
  while (!has_failed()) std::this_thread::yield();  // set shortly after the reply
  redis.start();
  while (has_failed()) std::this_thread::yield();
  EXPECT_FALSE((*store).stats().nodes.front().is_open);
  EXPECT_TRUE(store.touch("a").has_value());
}

TEST(RedisStore, AHangingServerDelaysNoRequestBeyondItsTimeout) {
  RedisProcess redis;
  auto settings = redis_settings_from(redis.url()).value();
  settings.timeout_ms = 100;
  StoreClient store(settings);
  store.until_ready();
  redis.signal(SIGSTOP);
  EXPECT_THAT(store.probe({"a", "b"}, std::chrono::microseconds(1'000)),
              ElementsAre(Presence::unknown, Presence::unknown));
  std::string back(5, '\0');
  EXPECT_EQ(store.read("a", back).error().code, ErrorCode::unavailable);
  redis.signal(SIGCONT);
  Result<bool> there = store.read("a", back);
  while (!there) there = store.read("a", back);
  EXPECT_FALSE(*there);
}

TEST(RedisStore, ReportsAWrongPasswordWithoutRepeatingIt) {
  const RedisProcess redis({"--requirepass", "sesame"});
  auto settings = redis_settings_from(redis.url()).value();
  settings.password = "sesame";
  StoreClient store(StoreClient::patient(settings));
  store.until_ready();
  EXPECT_TRUE(store.write("a", "first").value());

  settings.password = "hunter2";
  StoreClient other(settings);
  std::string reported;
  while (reported.empty()) {
    const auto stats = (*other).stats();
    if (!stats.nodes.empty()) reported = stats.nodes.front().last_error;
    std::this_thread::yield();
  }
  EXPECT_THAT(reported, HasSubstr("WRONGPASS"));
  EXPECT_THAT(reported, ::testing::Not(HasSubstr("hunter2")));
  EXPECT_FALSE((*other).stats().is_ready);
}

TEST(RedisStore, SwitchesFromAReplicaToItsPrimary) {
  const RedisProcess primary;
  const RedisProcess replica({"--replicaof", "127.0.0.1 " + std::to_string(primary.port())});
  StoreClient store(replica);
  store.until_ready();
  EXPECT_TRUE(store.write("a", "first").value());
  EXPECT_EQ(primary.ask({"GET", "a"}), "first");
}

TEST(RedisStore, SpeaksTlsAndRefusesAnUnknownAuthority) {
  const fakes::TempDir dir;
  const auto authority = fakes::make_certificate(dir.path(), {.name = "ca"});
  const auto other_authority = fakes::make_certificate(dir.path(), {.name = "other"});
  const auto own = fakes::make_certificate(dir.path(), {.name = "redis", .authority = authority});
  const RedisProcess redis({"--tls-cert-file", own.certificate, "--tls-key-file", own.key,
                            "--tls-ca-cert-file", authority.certificate},
                           true);
  auto settings = redis_settings_from(redis.url()).value();
  settings.tls_files.ca = authority.certificate;
  StoreClient store(StoreClient::patient(settings));
  store.until_ready();
  const std::string bytes = some_bytes(300'000, 3);
  EXPECT_TRUE(store.write("a", bytes).value());
  std::string back(bytes.size(), '\0');
  EXPECT_TRUE(store.read("a", back).value());
  EXPECT_TRUE(back == bytes);

  settings.tls_files.ca = other_authority.certificate;
  StoreClient untrusting(settings);
  std::string reported;
  while (reported.empty()) {
    const auto stats = (*untrusting).stats();
    if (!stats.nodes.empty()) reported = stats.nodes.front().last_error;
    std::this_thread::yield();
  }
  EXPECT_THAT(reported, HasSubstr("certificate verify failed"));
  settings.tls_files.ca = "/nowhere";
  EXPECT_EQ(make_redis_store(settings).error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace cairn::testing
