// Servers that share blocks through a Redis of the test's own.
#include <csignal>
#include <fstream>

#include "tests/e2e/support/served_test.hpp"
#include "tests/store/redis_process.hpp"

namespace cairn::e2e {
namespace {

// A server on a store. Its matches wait for the store's word for as long as it takes: a test is no
// place for a deadline of 2 ms.
struct SharedHost {
  explicit SharedHost(const RedisProcess& redis, json shared = json::object())
      : server({.flags = {"--config", written(dir, redis, std::move(shared)), "--log-level",
                          "debug"}}),
        rest(server.endpoint()) {}
  static std::string written(const fakes::TempDir& dir, const RedisProcess& redis, json shared) {
    shared["url"] = redis.url();
    shared["match_deadline_us"] = 10'000'000;
    shared["timeout_ms"] = 30'000;
    const std::string path = (dir.path() / "config.json").string();
    std::ofstream(path) << json{{"shared", shared}}.dump();
    return path;
  }

  fakes::TempDir dir;
  ServerProcess server;
  Rest rest;
};

json shared_body(const json& shared = json::object()) {
  json body = cache_body({.pinned = 32});
  body["shared"] = shared;
  return body;
}

// Until so many values are in the store.
void wait_for_values(const RedisProcess& redis, int count) {
  while (std::stoi(redis.ask({"DBSIZE"})) < count) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(SharedTest, WhatOneServerStoresAnotherHasUnderALease) {
  const RedisProcess redis;
  SharedHost one(redis);
  SharedHost other(redis);
  TestCache here = TestCache::made_of(one.rest, shared_body({{"namespace", "both"}}));
  TestCache there = TestCache::made_of(other.rest, shared_body({{"namespace", "both"}}));
  for (int n = 0; n < 6; ++n) here.store(n, n > 0 ? "?parent=" + key(n - 1) : "");
  wait_for_values(redis, 6);

  const std::string match = there.path("/match");
  const json not_asked =
      other.rest.post(match, {{"keys", keys(0, 8)}, {"shared", false}}).document();
  EXPECT_EQ(not_asked.at("shared_matched"), 0);
  EXPECT_EQ(not_asked.at("transfer"), nullptr);
  const json told = other.rest.post(match, {{"keys", keys(0, 8)}}).document();
  EXPECT_EQ(told.at("matched"), 0);
  EXPECT_EQ(told.at("shared_matched"), 6);
  ASSERT_TRUE(told.at("transfer").is_string());
  const json ended =
      other.rest.get("/v1/transfers/" + told.at("transfer").get<std::string>() + "?wait_ms=30000")
          .document();
  EXPECT_EQ(ended.at("state"), "done") << ended;
  const json now = other.rest.post(match, {{"keys", keys(0, 8)}}).document();
  EXPECT_EQ(now.at("matched"), 6);
  EXPECT_TRUE(now.at("lease").is_string());
  for (int n = 0; n < 6; ++n) there.expect_intact(n);

  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"shared\""), 6);
  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"pinned\""), 6);
  // All 8 were missed where the store was not asked; then 2, and 2.
  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"miss\""), 8 + 2 + 2);
  EXPECT_EQ(there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 6);
  EXPECT_EQ(here.metric("cairn_shared_blocks_total", "event=\"stored\""), 6);
  const json system = other.rest.get("/v1/system").document().at("shared");
  EXPECT_EQ(system.at("ready"), true);
  EXPECT_EQ(system.at("nodes").at(0).at("address"), redis.address());
}

TEST(SharedTest, AMatchThatWaitsHasWhatWasFetched) {
  const RedisProcess redis;
  SharedHost one(redis);
  SharedHost other(redis);
  TestCache here = TestCache::made_of(one.rest, shared_body({{"namespace", "both"}}));
  TestCache there = TestCache::made_of(other.rest, shared_body({{"namespace", "both"}}));
  for (int n = 0; n < 4; ++n) here.store(n);
  wait_for_values(redis, 4);
  there.store(0);
  const json told =
      other.rest.post(there.path("/match"), {{"keys", keys(0, 5)}, {"wait_ms", 30'000}}).document();
  EXPECT_EQ(told.at("matched"), 4);
  EXPECT_EQ(told.at("blocks").size(), 4U);
  EXPECT_EQ(told.at("shared_matched"), 0);
  EXPECT_EQ(other.rest.get(there.path("/leases")).document().at("leases").size(), 1U);
}

TEST(SharedTest, APackedAnswerNamesBlocksOfTheSharedTier) {
  const RedisProcess redis;
  SharedHost one(redis);
  SharedHost other(redis);
  TestCache here = TestCache::made_of(one.rest, shared_body({{"namespace", "both"}}));
  TestCache there = TestCache::made_of(other.rest, shared_body({{"namespace", "both"}}));
  for (int n = 0; n < 3; ++n) here.store(n);
  wait_for_values(redis, 3);
  there.store(0);
  const auto answer = other.rest.send({.method = "POST",
                                       .target = there.path("/match"),
                                       .body = json{{"keys", keys(0, 3)}}.dump(),
                                       .content_type = "application/json",
                                       .headers = {{"Accept", "application/octet-stream"}}});
  ASSERT_EQ(answer.status, 200);
  constexpr std::size_t kHead = 32;
  constexpr std::size_t kRecord = 16;
  ASSERT_EQ(answer.body.size(), kHead + 3 * kRecord);
  EXPECT_EQ(answer.body[0], 3);
  EXPECT_EQ(answer.body[kHead], 1);
  EXPECT_EQ(answer.body[kHead + kRecord], 3);
  EXPECT_EQ(answer.body.substr(kHead + 2 * kRecord + 1, kRecord - 1),
            std::string(kRecord - 1, '\0'));
}

TEST(SharedTest, AStoreThatDiesIsAMissAndTheServerStaysReady) {
  RedisProcess redis;
  SharedHost one(redis);
  TestCache cache = TestCache::made_of(one.rest, shared_body());
  cache.store(0);
  wait_for_values(redis, 1);
  redis.kill();
  const json told = one.rest.post(cache.path("/match"), {{"keys", keys(0, 3)}}).document();
  EXPECT_EQ(told.at("matched"), 1);
  EXPECT_EQ(told.at("shared_matched"), 0);
  EXPECT_EQ(one.rest.get("/readyz").status, 200);
  cache.store(1);
  redis.start();
  // What is committed from here on goes there again.
  for (int n = 2; std::stoi(redis.ask({"DBSIZE"})) == 0; ++n) {
    cache.store(n);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST(SharedTest, WithoutAStoreACacheWithASharedTierIsRefused) {
  ServerProcess server;
  Rest rest(server.endpoint());
  const auto refused = rest.put("/v1/caches/a", shared_body());
  EXPECT_EQ(refused.status, 422);
  EXPECT_THAT(refused.document().at("detail").get<std::string>(), ::testing::HasSubstr("--shared"));
}

TEST(SharedTest, WrongFieldsAreRefusedByName) {
  const RedisProcess redis;
  SharedHost one(redis);
  const auto refused = [&](const json& shared, const std::string& name) {
    const auto answer = one.rest.put("/v1/caches/a", shared_body(shared));
    EXPECT_EQ(answer.status, 400) << shared;
    EXPECT_THAT(answer.document().at("detail").get<std::string>(), ::testing::HasSubstr(name));
  };
  refused({{"store", "s3"}}, "shared.store");
  refused({{"placement", "everywhere"}}, "shared.placement");
  refused({{"write", "never"}}, "shared.write");
  refused({{"namespace", "a{b}"}}, "shared.namespace");
  refused({{"ttl_ms", -1}}, "shared.ttl_ms");
  refused({{"ttl", 1}}, "shared.ttl");
}

TEST(SharedTest, APasswordComesFromAFileAndIsToldNowhere) {
  const fakes::TempDir dir;
  const std::string file = (dir.path() / "password").string();
  std::ofstream(file) << "hunter2\n";
  const RedisProcess redis({"--requirepass", "sesame"});
  SharedHost one(redis, {{"password_file", file}});
  json system;
  do {
    system = one.rest.get("/v1/system").document().at("shared");
  } while (system.at("nodes").empty() || system.at("nodes").at(0).at("last_error") == nullptr);
  EXPECT_THAT(system.dump(), ::testing::HasSubstr("WRONGPASS"));
  EXPECT_THAT(system.dump(), ::testing::Not(::testing::HasSubstr("hunter2")));
  EXPECT_THAT(one.server.output(), ::testing::Not(::testing::HasSubstr("hunter2")));
  EXPECT_EQ(system.at("ready"), false);
}

}  // namespace
}  // namespace cairn::e2e
