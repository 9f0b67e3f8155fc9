// Servers that share the blocks of several KV groups through the test's own Redis.
#include <cstdint>

#include "tests/e2e/shared_server.hpp"
#include "tests/e2e/support/kv_groups.hpp"

namespace cairn::e2e {
namespace {

using testing::ElementsAre;

const json kFull = full_group();
const json kWindow = window_group();
const json kState = state_group();

json body_of(const json& groups) {
  return {{"block_tokens", kBlockTokens},
          {"kv_groups", groups},
          {"tiers", {{"pinned", {{"size_bytes", 8 << 20}}}}},
          {"shared", {{"namespace", "both"}}}};
}

std::string kv_group(const std::string& group) { return "?kv_group=" + group; }

void put(SharedHost& host, const TestCache& cache, int n, const std::string& group) {
  std::string target = cache.key_path(n, kv_group(group));
  if (n > 1) target += "&parent=" + key(n - 1);
  ASSERT_EQ(host.rest.put_bytes(target, data_of(n, group)).status, 201u);
}

// Stores keys 1 to 6, and the window and the state that end at key 6.
void store_prompt(SharedHost& host, const TestCache& cache) {
  for (int n = 1; n <= 6; ++n) put(host, cache, n, "full");
  for (int n = 5; n <= 6; ++n) put(host, cache, n, "swa");
  put(host, cache, 6, "state");
}

// Keys 1 to 3, and the window and the state that end at key 3.
void store_shorter_prompt(SharedHost& host, const TestCache& cache) {
  for (int n = 1; n <= 3; ++n) put(host, cache, n, "full");
  for (int n = 2; n <= 3; ++n) put(host, cache, n, "swa");
  put(host, cache, 3, "state");
}

struct Hosts {
  explicit Hosts(const json& groups_there = {kFull, kWindow, kState})
      : here(made(one, {kFull, kWindow, kState})), there(made(other, groups_there)) {}
  static TestCache made(SharedHost& host, const json& groups) {
    host.wait_until_ready();
    return TestCache::made_of(host.rest, body_of(groups));
  }
  json match(const json& asked) { return other.rest.post(there.path("/match"), asked).document(); }

  RedisProcess redis;
  SharedHost one{redis};
  SharedHost other{redis};
  TestCache here;
  TestCache there;
};

TEST(SharedGroups, AMatchFetchesWhatEachGroupNeeds) {
  Hosts hosts;
  store_prompt(hosts.one, hosts.here);
  wait_for_values(hosts.redis, 9);
  const json found = hosts.match({{"keys", keys(1, 8)}, {"wait_ms", 30'000}});
  EXPECT_EQ(found.at("matched"), 6) << found;
  EXPECT_EQ(found.at("shared_matched"), 0);
  EXPECT_THAT(listed(found), ElementsAre("full1", "full2", "full3", "full4", "full5", "full6",
                                         "swa5", "swa6", "state6"));
  for (const std::string block : {"full1", "full6", "swa5", "swa6", "state6"}) {
    const std::string group = block.substr(0, block.size() - 1);
    const int n = block.back() - '0';
    EXPECT_EQ(hosts.other.rest.get(hosts.there.key_path(n, kv_group(group))).body,
              data_of(n, group))
        << block;
  }
  EXPECT_EQ(hosts.there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 9);
  EXPECT_EQ(hosts.there.metric("cairn_match_blocks_total", "result=\"shared\""), 6);
}

TEST(SharedGroups, OnboardAsksTheSharedTierAsAnyMatch) {
  RedisProcess redis;
  SharedHost one(redis);
  SharedHost other(redis);
  TestCache here = Hosts::made(one, {kFull, kWindow, kState});
  json body = body_of({kFull, kWindow, kState});
  body["tiers"]["device"] = {{"size_bytes", 1 << 20}};
  other.wait_until_ready();
  TestCache there = TestCache::made_of(other.rest, body);
  store_prompt(one, here);
  wait_for_values(redis, 9);
  const json found = other.rest
                         .post(there.path("/match"),
                               {{"keys", keys(1, 8)}, {"onboard", "device"}, {"wait_ms", 30'000}})
                         .document();
  EXPECT_EQ(found.at("matched"), 6) << found;
  EXPECT_EQ(found.at("shared_matched"), 0);
  for (const json& block : found.at("blocks")) EXPECT_EQ(block.at("tier"), "device") << found;
  EXPECT_EQ(there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 9);
}

TEST(SharedGroups, AnUnwaitedMatchReportsTheKeysAndTheTransfer) {
  Hosts hosts;
  store_prompt(hosts.one, hosts.here);
  wait_for_values(hosts.redis, 9);
  const json asked = hosts.match({{"keys", keys(1, 8)}, {"lease_ms", 0}, {"shared", false}});
  EXPECT_EQ(asked.at("shared_matched"), 0);
  const json found = hosts.match({{"keys", keys(1, 8)}, {"lease_ms", 0}});
  EXPECT_EQ(found.at("matched"), 0);
  EXPECT_EQ(found.at("shared_matched"), 6);
  EXPECT_TRUE(
      hosts.other.rest
          .get("/v1/transfers/" + found.at("transfer").get<std::string>() + "?wait_ms=30000")
          .ok());
  EXPECT_EQ(hosts.match({{"keys", keys(1, 8)}, {"lease_ms", 0}}).at("matched"), 6);
}

TEST(SharedGroups, ALocalPrefixIsContinuedFromTheStore) {
  Hosts hosts;
  store_prompt(hosts.one, hosts.here);
  wait_for_values(hosts.redis, 9);
  store_shorter_prompt(hosts.other, hosts.there);
  EXPECT_EQ(hosts.match({{"keys", keys(1, 8)}, {"shared", false}}).at("matched"), 3);
  const json found = hosts.match({{"keys", keys(1, 8)}, {"wait_ms", 30'000}});
  EXPECT_EQ(found.at("matched"), 6) << found;
  EXPECT_EQ(hosts.there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 3 + 2 + 1);
}

TEST(SharedGroups, TheCallersOwnBlocksAreNotFetched) {
  Hosts hosts;
  store_prompt(hosts.one, hosts.here);
  wait_for_values(hosts.redis, 9);
  const json found = hosts.match({{"keys", keys(1, 8)}, {"have", 4}, {"wait_ms", 30'000}});
  EXPECT_EQ(found.at("matched"), 6) << found;
  EXPECT_THAT(listed(found), ElementsAre("full5", "full6", "swa5", "swa6", "state6"));
  EXPECT_EQ(hosts.there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 5);
}

// A question takes 3,072 names, and three for each key would be more. The window and the state lie
// behind the keys that it could name in full; such a prompt was once not found at all.
TEST(SharedGroups, TheEndOfALongPromptIsFound) {
  constexpr int kKeys = 1'300;
  Hosts hosts;
  for (int n = 1; n <= kKeys; ++n) put(hosts.one, hosts.here, n, "full");
  for (int n = kKeys - 1; n <= kKeys; ++n) put(hosts.one, hosts.here, n, "swa");
  put(hosts.one, hosts.here, kKeys, "state");
  wait_for_values(hosts.redis, kKeys + 3);
  const json found = hosts.match({{"keys", keys(1, kKeys + 5)}, {"lease_ms", 0}});
  EXPECT_EQ(found.at("matched"), 0);
  EXPECT_EQ(found.at("shared_matched"), kKeys);
  EXPECT_TRUE(eventually([&] {
    const json asked = {{"keys", keys(1, kKeys + 5)}, {"lease_ms", 0}, {"shared", false}};
    return hosts.match(asked).at("matched") == kKeys;
  }));
}

TEST(SharedGroups, WithoutItsStateAPrefixIsNotFetched) {
  Hosts hosts;
  for (int n = 1; n <= 6; ++n) put(hosts.one, hosts.here, n, "full");
  for (int n = 5; n <= 6; ++n) put(hosts.one, hosts.here, n, "swa");
  wait_for_values(hosts.redis, 8);
  const json found = hosts.match({{"keys", keys(1, 8)}, {"wait_ms", 30'000}});
  EXPECT_EQ(found.at("matched"), 0);
  EXPECT_EQ(found.at("shared_matched"), 0);
  EXPECT_EQ(hosts.there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 0);
}

json prefetch(Hosts& hosts, json action = json::object()) {
  action.update({{"type", "prefetch"}, {"target", {{"keys", keys(1, 8)}}}, {"wait_ms", 30'000}});
  const json asked = {{"actions", json::array({action})}};
  return hosts.other.rest.post(hosts.there.path("/actions"), asked).document().at("results").at(0);
}

json match_here(Hosts& hosts) {
  return hosts.match({{"keys", keys(1, 8)}, {"lease_ms", 0}, {"shared", false}});
}

TEST(SharedGroups, APrefetchBringsWhatEachGroupNeeds) {
  Hosts hosts;
  store_prompt(hosts.one, hosts.here);
  put(hosts.one, hosts.here, 3, "swa");  // no prefix of 6 keys needs it
  wait_for_values(hosts.redis, 10);
  const json result = prefetch(hosts);
  EXPECT_EQ(result.at("outcome"), "accepted") << result;
  EXPECT_EQ(result.at("blocks"), 9);
  EXPECT_EQ(result.at("missing"), 2);
  EXPECT_EQ(match_here(hosts).at("matched"), 6);
  EXPECT_EQ(hosts.there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 9);
  EXPECT_EQ(hosts.there.metric("cairn_prefetch_blocks_total", "result=\"missing\""), 2);
  EXPECT_EQ(hosts.match({{"keys", keys(1, 8)}, {"shared", false}}).at("matched"), 6);
  EXPECT_EQ(hosts.there.metric("cairn_prefetch_blocks_total", "result=\"used\""), 9);
}

TEST(SharedGroups, APrefetchContinuesALocalPrefix) {
  Hosts hosts;
  store_prompt(hosts.one, hosts.here);
  wait_for_values(hosts.redis, 9);
  store_shorter_prompt(hosts.other, hosts.there);
  const json result = prefetch(hosts);
  EXPECT_EQ(result.at("outcome"), "accepted") << result;
  EXPECT_EQ(result.at("blocks"), 6 + 3 + 2 + 1);
  EXPECT_EQ(result.at("missing"), 2);
  EXPECT_EQ(match_here(hosts).at("matched"), 6);
  EXPECT_EQ(hosts.there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 3 + 2 + 1);
}

// All full blocks are here, so no key is missing, but no state ends at one of them.
TEST(SharedGroups, APrefetchBringsTheStateThatLacks) {
  Hosts hosts;
  store_prompt(hosts.one, hosts.here);
  wait_for_values(hosts.redis, 9);
  for (int n = 1; n <= 8; ++n) put(hosts.other, hosts.there, n, "full");
  const json result = prefetch(hosts);
  EXPECT_EQ(result.at("outcome"), "accepted") << result;
  EXPECT_EQ(result.at("blocks"), 8 + 2 + 1);
  EXPECT_EQ(result.at("missing"), 0);
  EXPECT_EQ(match_here(hosts).at("matched"), 6);
}

TEST(SharedGroups, APrefetchWithoutRoomForAllBringsAShorterPrefix) {
  Hosts hosts;
  store_prompt(hosts.one, hosts.here);
  for (int n = 2; n <= 3; ++n) put(hosts.one, hosts.here, n, "swa");
  put(hosts.one, hosts.here, 3, "state");
  wait_for_values(hosts.redis, 12);
  const json nothing = prefetch(hosts, {{"max_blocks", 1}});
  EXPECT_EQ(nothing.at("outcome"), "rejected") << nothing;
  EXPECT_EQ(nothing.at("reason"), "budget");
  EXPECT_EQ(nothing.at("blocks"), 0);
  const json result = prefetch(hosts, {{"max_blocks", 7}});
  EXPECT_EQ(result.at("outcome"), "clipped") << result;
  EXPECT_EQ(result.at("reason"), "budget");
  EXPECT_EQ(result.at("blocks"), 3 + 2 + 1);
  EXPECT_EQ(result.at("missing"), 2);
  EXPECT_EQ(match_here(hosts).at("matched"), 3);
  EXPECT_EQ(hosts.there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 6);
}

TEST(SharedGroups, APeerFetchesWhatEachGroupNeeds) {
  // In the second order most keys have no block of the first group.
  for (const json& groups : {json{kFull, kWindow, kState}, json{kState, kWindow, kFull}}) {
    json body = body_of(groups);
    body["shared"]["write"] = "second_use";
    TwinHosts hosts(body);
    auto& [redis, one, other, here, there] = hosts;
    store_prompt(one, here);
    const json share = {
        {"type", "share"}, {"target", {{"keys", keys(1, 6)}}}, {"peer", other.server.url()}};
    const json result = one.rest.post(here.path("/actions"), {{"actions", json::array({share})}})
                            .document()
                            .at("results")
                            .at(0);
    EXPECT_EQ(result.at("outcome"), "accepted") << result;
    EXPECT_EQ(result.at("blocks"), 9);
    EXPECT_TRUE(eventually([&] {
      const json asked = {{"keys", keys(1, 6)}, {"lease_ms", 0}, {"shared", false}};
      return other.rest.post(there.path("/match"), asked).document().at("matched") == 6;
    })) << groups;
  }
}

TEST(SharedGroups, GroupsInAnotherOrderAreFound) {
  Hosts hosts({kState, kWindow, kFull});
  store_prompt(hosts.one, hosts.here);
  wait_for_values(hosts.redis, 9);
  const json found = hosts.match({{"keys", keys(1, 8)}, {"wait_ms", 30'000}});
  EXPECT_EQ(found.at("matched"), 6) << found;
  EXPECT_EQ(hosts.other.rest.get(hosts.there.key_path(6, kv_group("state"))).body,
            data_of(6, "state"));
}

// A window of the same shape, but of another length, is another model's.
TEST(SharedGroups, AnotherModelsBlocksAreNotFound) {
  json window = kWindow;
  window["window_tokens"] = kBlockTokens + 1;
  Hosts hosts({kFull, window, kState});
  store_prompt(hosts.one, hosts.here);
  wait_for_values(hosts.redis, 9);
  const json found = hosts.match({{"keys", keys(1, 8)}, {"wait_ms", 30'000}});
  EXPECT_EQ(found.at("matched"), 0);
  EXPECT_EQ(found.at("shared_matched"), 0);
}

TEST(SharedGroups, PlacementWithHoldersIsRefused) {
  const RedisProcess redis;
  SharedHost host(redis);
  json body = body_of({kFull, kState});
  body["shared"]["placement"] = "holders";
  const Reply refused = host.rest.put("/v1/caches/a", body);
  EXPECT_EQ(refused.status, 422u) << refused.body;
}

}  // namespace
}  // namespace cairn::e2e
