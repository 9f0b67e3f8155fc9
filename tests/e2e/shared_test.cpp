// Servers that share blocks through the test's own Redis.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "tests/e2e/shared_server.hpp"
#include "tests/fakes/tls/certificates.hpp"

namespace cairn::e2e {
namespace {

TestCache made_in(SharedHost& host, const Shape& shape) {
  host.wait_until_ready();
  json body = cache_body(shape);
  body["shared"] = {{"namespace", "both"}};
  return TestCache::made_of(host.rest, body);
}

TEST(SharedTest, FetchesBlocksThatAnotherServerStored) {
  TwoHosts hosts;
  auto& [redis, one, other, here, there] = hosts;
  for (int n = 0; n < 6; ++n) here.store(n, n > 0 ? "?parent=" + key(n - 1) : "");
  wait_for_values(redis, 6);

  const std::string match = there.path("/match");
  const json not_asked =
      other.rest.post(match, {{"keys", keys(0, 8)}, {"shared", false}}).document();
  EXPECT_EQ(not_asked.at("shared_matched"), 0);
  EXPECT_EQ(not_asked.at("transfer"), nullptr);
  const json reply = other.rest.post(match, {{"keys", keys(0, 8)}}).document();
  EXPECT_EQ(reply.at("matched"), 0);
  EXPECT_EQ(reply.at("shared_matched"), 6);
  ASSERT_TRUE(reply.at("transfer").is_string());
  const json ended =
      other.rest.get("/v1/transfers/" + reply.at("transfer").get<std::string>() + "?wait_ms=30000")
          .document();
  EXPECT_EQ(ended.at("state"), "done") << ended;
  const json now = other.rest.post(match, {{"keys", keys(0, 8)}}).document();
  EXPECT_EQ(now.at("matched"), 6);
  EXPECT_TRUE(now.at("lease").is_string());
  for (int n = 0; n < 6; ++n) there.expect_intact(n);

  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"shared\""), 6);
  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"pinned\""), 6);
  // All 8 were missed without the store; then 2, and 2.
  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"miss\""), 8 + 2 + 2);
  EXPECT_EQ(there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 6);
  EXPECT_EQ(here.metric("cairn_shared_blocks_total", "event=\"stored\""), 6);
  const json system = other.rest.get("/v1/system").document().at("shared");
  EXPECT_EQ(system.at("ready"), true);
  EXPECT_EQ(system.at("nodes").at(0).at("address"), redis.address());
  const std::string took = "cairn_shared_node_request_duration_seconds_count{node=\"" +
                           redis.address() + "\",operation=\"";
  EXPECT_EQ(other.rest.metric(took + "read\"}"), 6);
  EXPECT_EQ(one.rest.metric(took + "write\"}"), 6);
}

TEST(SharedTest, BlocksOfACodecComeBackUnchanged) {
  TwoHosts hosts(json{{"codec", "bytes"}});
  auto& [redis, one, other, here, there] = hosts;
  EXPECT_EQ(one.rest.get(here.path()).document().at("shared").at("codec"), "bytes");
  const std::string even(kBlockBytes, '\x3F');
  ASSERT_EQ(one.rest.put_bytes(here.key_path(0), even).status, 201U);
  here.store(1);  // noise
  wait_for_values(redis, 2);
  const json reply =
      other.rest.post(there.path("/match"), {{"keys", keys(0, 2)}, {"wait_ms", 30'000}}).document();
  EXPECT_EQ(reply.at("matched"), 2);
  EXPECT_EQ(other.rest.get(there.key_path(0)).body, even);
  there.expect_intact(1);
  EXPECT_EQ(here.metric("cairn_codec_blocks_total", "tier=\"shared\",result=\"encoded\""), 1);
  EXPECT_EQ(here.metric("cairn_codec_blocks_total", "tier=\"shared\",result=\"noise\""), 1);
  EXPECT_EQ(there.metric("cairn_codec_blocks_total", "tier=\"shared\",result=\"decoded\""), 1);
}

TEST(SharedTest, WaitingMatchReturnsFetchedBlocks) {
  TwoHosts hosts;
  auto& [redis, one, other, here, there] = hosts;
  for (int n = 0; n < 4; ++n) here.store(n);
  wait_for_values(redis, 4);
  there.store(0);
  const json reply =
      other.rest.post(there.path("/match"), {{"keys", keys(0, 5)}, {"wait_ms", 30'000}}).document();
  EXPECT_EQ(reply.at("matched"), 4);
  EXPECT_EQ(reply.at("blocks").size(), 4U);
  EXPECT_EQ(reply.at("shared_matched"), 0);
  EXPECT_EQ(other.rest.get(there.path("/leases")).document().at("leases").size(), 1U);
  // One match of five keys, however often it looked them up.
  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"pinned\""), 1);
  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"shared\""), 3);
  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"miss\""), 1);
}

TEST(SharedTest, OnboardAsksTheSharedTierAsAnyMatch) {
  RedisProcess redis;
  SharedHost one(redis);
  SharedHost other(redis);
  TestCache here = made_in(one, {.pinned = 8});
  TestCache there = made_in(other, {.device = 8, .pinned = 8});
  for (int n = 0; n < 4; ++n) here.store(n);
  wait_for_values(redis, 4);
  there.store(0, "?tier=pinned");
  const json asked = {{"keys", keys(0, 5)}, {"onboard", "device"}, {"wait_ms", 30'000}};
  const json reply = other.rest.post(there.path("/match"), asked).document();
  EXPECT_EQ(reply.at("matched"), 4) << reply;
  EXPECT_EQ(reply.at("shared_matched"), 0);
  EXPECT_TRUE(reply.at("transfer").is_string());
  ASSERT_EQ(reply.at("blocks").size(), 4U);
  for (const json& block : reply.at("blocks")) EXPECT_EQ(block.at("tier"), "device") << reply;
  for (int n = 0; n < 4; ++n) there.expect_intact(n);
  EXPECT_EQ(there.count("device", "committed"), 4);
  EXPECT_EQ(other.rest.get(there.path("/leases")).document().at("leases").size(), 1U);
  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"pinned\""), 1);
  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"shared\""), 3);
  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"miss\""), 1);
  EXPECT_EQ(there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 3);

  // Kept local on request, and then all beyond is missing.
  json local = asked;
  local["shared"] = false;
  local["keys"] = {key(0), key(9)};
  EXPECT_EQ(other.rest.post(there.path("/match"), local).document().at("matched"), 1);
  EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"miss\""), 2);
}

TEST(SharedTest, OnboardWithoutWaitingNamesTheTransfers) {
  RedisProcess redis;
  SharedHost one(redis);
  SharedHost other(redis);
  TestCache here = made_in(one, {.pinned = 8});
  TestCache there = made_in(other, {.device = 8, .pinned = 8});
  for (int n = 0; n < 3; ++n) here.store(n);
  wait_for_values(redis, 3);
  const json asked = {{"keys", keys(0, 3)}, {"onboard", "device"}};
  const json reply = other.rest.post(there.path("/match"), asked).document();
  EXPECT_EQ(reply.at("matched"), 0);
  EXPECT_EQ(reply.at("shared_matched"), 3);
  const std::string fetch = reply.at("transfer");
  const json ended = other.rest.get("/v1/transfers/" + fetch + "?wait_ms=30000").document();
  EXPECT_EQ(ended.at("state"), "done") << ended;
  EXPECT_EQ(there.count("device", "evictable"), 3);
}

// Blocks may arrive between the lookup of a match in the cache and the reply of the store: another
// match fetched them, or another engine computed them. The reply must not end at the first of them.
// A match without a lease finds them as well, and so does one whose lease ends before the reply.
TEST(SharedTest, MatchesBlocksThatArriveDuringTheLookup) {
  for (const std::uint32_t lease_ms : {60'000U, 1U, 0U}) {
    SCOPED_TRACE(lease_ms);
    TwoHosts hosts;
    auto& [redis, one, other, here, there] = hosts;
    for (int n = 0; n < 4; ++n) here.store(n);
    wait_for_values(redis, 4);
    there.store(0);
    redis.signal(SIGSTOP);
    json reply;
    std::thread matching([&] {
      reply = Rest(other.server.endpoint())
                  .post(there.path("/match"), {{"keys", keys(0, 5)}, {"lease_ms", lease_ms}})
                  .document();
    });
    EXPECT_TRUE(eventually(
        [&] { return there.metric("cairn_shared_looks_total", "result=\"asked\"") == 1; }));
    for (int n = 1; n < 4; ++n) there.store(n);
    redis.signal(SIGCONT);
    matching.join();
    EXPECT_EQ(reply.at("matched"), 4) << reply;
    EXPECT_EQ(reply.at("blocks").size(), 4U);
    EXPECT_EQ(reply.at("shared_matched"), 0);
    if (lease_ms == 60'000) {
      EXPECT_EQ(other.rest.get(there.path("/leases")).document().at("leases").size(), 1U);
    }
    EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"pinned\""), 1);
    EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"shared\""), 3);
    EXPECT_EQ(there.metric("cairn_match_blocks_total", "result=\"miss\""), 1);
  }
}

// The quota suffices for the blocks that were here, but not for those that arrived. The match must
// return the former, and must not fail and leave its lease behind.
TEST(SharedTest, MatchOmitsFetchedBlocksBeyondTheQuota) {
  TwoHosts hosts;
  auto& [redis, one, other, here, there] = hosts;
  for (int n = 0; n < 4; ++n) here.store(n);
  wait_for_values(redis, 4);
  for (int n = 0; n < 2; ++n) there.store(n);
  ASSERT_EQ(other.rest
                .send({.method = "PATCH",
                       .target = there.path(),
                       .body = json{{"quota", {{"max_leased_blocks", 3}}}}.dump(),
                       .content_type = "application/json"})
                .status,
            200U);
  const json reply =
      other.rest.post(there.path("/match"), {{"keys", keys(0, 4)}, {"wait_ms", 30'000}}).document();
  EXPECT_EQ(reply.at("matched"), 2) << reply;
  EXPECT_EQ(reply.at("shared_matched"), 2);
  EXPECT_EQ(other.rest.get(there.path("/leases")).document().at("leases").size(), 1U);
}

TEST(SharedTest, PackedReplyNamesSharedBlocks) {
  TwoHosts hosts;
  auto& [redis, one, other, here, there] = hosts;
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

TEST(SharedTest, DeadStoreIsAMissAndTheServerStaysReady) {
  RedisProcess redis;
  SharedHost one(redis);
  one.wait_until_ready();
  TestCache cache = TestCache::made_of(one.rest, shared_body());
  cache.store(0);
  wait_for_values(redis, 1);
  redis.kill();
  const json reply = one.rest.post(cache.path("/match"), {{"keys", keys(0, 3)}}).document();
  EXPECT_EQ(reply.at("matched"), 1);
  EXPECT_EQ(reply.at("shared_matched"), 0);
  EXPECT_EQ(one.rest.get("/readyz").status, 200);
  cache.store(1);
  redis.start();
  // Blocks that are committed from here on go to the store again.
  int n = 2;
  EXPECT_TRUE(eventually([&] {
    cache.store(n++);
    return std::stoi(redis.ask({"DBSIZE"})) > 0;
  }));
}

TEST(SharedTest, OnEvictAnotherServerFindsEvictedBlocks) {
  const RedisProcess redis;
  SharedHost one(redis, {{"evict_wait_ms", 60'000}});
  SharedHost other(redis);
  one.wait_until_ready();
  const json shared = {{"namespace", "both"}, {"write", "on_evict"}};
  json body = cache_body({.pinned = 4});
  body["shared"] = shared;
  TestCache here = TestCache::made_of(one.rest, body);
  TestCache there = TestCache::made_of(other.rest, shared_body(shared));
  for (int n = 0; n < 12; ++n) here.store(n, n > 0 ? "?parent=" + key(n - 1) : "");
  EXPECT_EQ(redis.ask({"DBSIZE"}), "8");
  for (int n = 0; n < 12; ++n) {
    const json reply =
        other.rest.post(there.path("/match"), {{"keys", {key(n)}}, {"wait_ms", 30'000}}).document();
    EXPECT_EQ(reply.at("matched"), here.holds(n) ? 0 : 1) << n;
    if (!here.holds(n)) there.expect_intact(n);
  }
  EXPECT_EQ(here.metric("cairn_shared_blocks_total", "event=\"dropped_full\""), 0);
}

// A cache of the default shape whose placement is `holders`.
json holders_body() { return shared_body({{"namespace", "both"}, {"placement", "holders"}}); }

// The match's reply once its fetch has ended.
json match_and_wait(SharedHost& host, const TestCache& cache, int count) {
  return host.rest
      .post(cache.path("/match"), {{"keys", keys(0, count)}, {"wait_ms", 60'000}, {"lease_ms", 0}})
      .document();
}

TEST(SharedTest, ReadsBlocksFromTheirHolder) {
  TwoHosts hosts(json{{"placement", "holders"}});
  auto& [redis, one, other, here, there] = hosts;
  for (int n = 0; n < 6; ++n) here.store(n, n > 0 ? "?parent=" + key(n - 1) : "");
  wait_for_values(redis, 6);
  const json not_asked =
      other.rest.post(there.path("/match"), {{"keys", keys(0, 8)}, {"shared", false}}).document();
  EXPECT_EQ(not_asked.at("shared_matched"), 0);
  EXPECT_EQ(match_and_wait(other, there, 8).at("matched"), 6);
  for (int n = 0; n < 6; ++n) there.expect_intact(n);
  EXPECT_EQ(there.metric("cairn_shared_blocks_total", "event=\"fetched\""), 6);
  // One request reads all blocks of a step.
  EXPECT_EQ(
      other.rest.metric("cairn_shared_requests_total{operation=\"peer_read\",outcome=\"done\"}"),
      1);
  const json peers = other.rest.get("/v1/system").document().at("shared").at("peers");
  ASSERT_EQ(peers.size(), 1U);
  EXPECT_EQ(peers[0].at("address"), one.server.url());
  EXPECT_EQ(other.rest.metric("cairn_shared_node_request_duration_seconds_count{node=\"" +
                              one.server.url() + "\",operation=\"peer_read\"}"),
            1);
  EXPECT_EQ(peers[0].at("state"), "reached");
  // A block that is deleted everywhere has no holder.
  for (int n = 0; n < 6; ++n) {
    EXPECT_EQ(one.rest.del(here.key_path(n)).status, 204U);
    EXPECT_EQ(other.rest.del(there.key_path(n)).status, 204U);
  }
  EXPECT_TRUE(eventually([&] { return blocks_in(hosts.redis) == 0; }));
}

TEST(SharedTest, PeerReadNeedsTheSameNamespace) {
  const RedisProcess redis;
  SharedHost one(redis);
  TestCache cache = TestCache::made_of(one.rest, holders_body());
  cache.store(0);
  cache.store(1);
  const auto read = [&](const std::string& name_space, int count) {
    return one.rest.post(cache.path("/read?shared=" + name_space), {{"keys", keys(0, count)}});
  };
  const auto whole = read("both", 4);
  EXPECT_EQ(whole.status, 200U);
  EXPECT_EQ(whole.header("cairn-matched"), "2");
  const std::size_t part = 176 + block(0).size();
  ASSERT_EQ(whole.body.size(), 2 * part);
  for (int n = 0; n < 2; ++n) {
    const auto at = static_cast<std::size_t>(n) * part;
    EXPECT_EQ(whole.body.substr(at, block(n).size()), block(n));
    const std::string header = whole.body.substr(at + block(n).size(), 176);
    EXPECT_THAT(header, ::testing::HasSubstr(from_hex(key(n)))) << "it names the block";
  }
  EXPECT_THAT(read("other", 1), is_problem(409, "state_conflict"));
  EXPECT_THAT(read("both", 257), is_problem(400, "out_of_range"));
  EXPECT_EQ(one.rest.get(cache.key_path(0, "?shared=both")).status, 400U);
}

// A holder computes the checksum of 512 KiB at a time while it sends them; at the second read it
// knows the checksum. The block is in one piece, and in many that end elsewhere.
TEST(SharedTest, LongBlockArrivesIntactFromItsHolder) {
  TwoHosts hosts(json{{"placement", "holders"}});
  for (const std::string layout : {"fully_contiguous", "first"}) {
    json body = shared_body({{"namespace", layout}, {"placement", "holders"}});
    body["layout"] = {{"num_layers", 10},  {"outer_dim", 2},         {"page_size", 16},
                      {"inner_dim", 1056}, {"dtype_width_bytes", 2}, {"alignment", 512}};
    body["tiers"] = {{"pinned", tier_body(4, layout)}};
    TestCache here = TestCache::made_of(hosts.one.rest, body);
    TestCache there = TestCache::made_of(hosts.other.rest, body);
    std::string bytes(10 * 2 * 16 * 1056 * 2, '\0');
    std::minstd_rand random{7};
    for (char& byte : bytes) byte = static_cast<char>(random());
    ASSERT_EQ(hosts.one.rest.put_bytes(here.key_path(0), bytes).status, 201U);
    for (int read = 0; read < 2; ++read) {
      EXPECT_TRUE(eventually([&] {
        return match_and_wait(hosts.other, there, 1).at("matched") == 1;
      })) << layout;
      EXPECT_TRUE(hosts.other.rest.get(there.key_path(0)).body == bytes) << layout;
      EXPECT_EQ(hosts.other.rest.del(there.key_path(0)).status, 204U);
    }
  }
}

TEST(SharedTest, ReadsALocalHolderOverItsSocket) {
  const RedisProcess redis;
  const fakes::TempDir dir;
  const std::string path = (dir.path() / "cairn.sock").string();
  SharedHost one(redis, json::object(), {"--unix", path});
  SharedHost other(redis);
  TestCache here = TestCache::made_of(one.rest, holders_body());
  TestCache there = TestCache::made_of(other.rest, holders_body());
  here.store(0);
  wait_for_values(redis, 1);
  EXPECT_EQ(match_and_wait(other, there, 1).at("matched"), 1);
  there.expect_intact(0);
  const json peers = other.rest.get("/v1/system").document().at("shared").at("peers");
  ASSERT_EQ(peers.size(), 1U);
  EXPECT_EQ(peers[0].at("address"), "unix:" + path);
}

TEST(SharedTest, KilledHolderIsAMissAndTheNextOneIsAsked) {
  const RedisProcess redis;
  SharedHost one(redis);
  SharedHost two(redis);
  SharedHost other(redis);
  TestCache here = TestCache::made_of(one.rest, holders_body());
  TestCache also = TestCache::made_of(two.rest, holders_body());
  TestCache there = TestCache::made_of(other.rest, holders_body());
  for (int n = 0; n < 8; ++n) here.store(n);
  wait_for_values(redis, 8);
  one.server.kill();
  const json alone = match_and_wait(other, there, 8);
  EXPECT_EQ(alone.at("matched"), 0);
  EXPECT_EQ(other.rest.get("/readyz").status, 200U);
  for (int n = 0; n < 8; ++n) also.store(n);
  // A missed key is not requested again for half a second, and the new holder must register first.
  EXPECT_TRUE(eventually([&] { return match_and_wait(other, there, 8).at("matched") == 8; }));
  for (int n = 0; n < 8; ++n) there.expect_intact(n);
}

// Stops a process and waits until none of its threads answers any more: they stop one after the
// other.
void freeze(::pid_t process) {
  ::kill(process, SIGSTOP);
  const auto is_running = [](const auto& task) {
    std::ifstream stat(task.path() / "stat");
    const std::string text{std::istreambuf_iterator<char>(stat), {}};
    const std::size_t name_end = text.rfind(')');  // the state follows it
    return name_end != std::string::npos && text.at(name_end + 2) != 'T';
  };
  const std::filesystem::path tasks = "/proc/" + std::to_string(process) + "/task";
  while (std::ranges::any_of(std::filesystem::directory_iterator(tasks), is_running)) {
    std::this_thread::yield();
  }
}

// SIGSTOP alone is not enough: one of the threads could still answer after it.
TEST(SharedTest, HolderKilledDuringAFetchIsAMiss) {
  TwoHosts hosts(json{{"placement", "holders"}});
  auto& [redis, one, other, here, there] = hosts;
  for (int n = 0; n < 8; ++n) here.store(n);
  wait_for_values(redis, 8);
  freeze(one.server.pid());
  const json reply = other.rest.post(there.path("/match"), {{"keys", keys(0, 8)}}).document();
  EXPECT_EQ(reply.at("shared_matched"), 8);
  const std::string transfer = "/v1/transfers/" + reply.at("transfer").get<std::string>();
  EXPECT_EQ(other.rest.get(transfer).document().at("state"), "running");
  one.server.kill();
  EXPECT_EQ(other.rest.get(transfer + "?wait_ms=60000").document().at("state"), "failed");
  EXPECT_EQ(other.rest.get("/readyz").status, 200U);
  EXPECT_EQ(there.counts().at("leases"), 0);
}

// Otherwise a client could have other clients' blocks evicted first.
TEST(SharedTest, ClientCannotDemoteBlocksByAPeerRead) {
  const RedisProcess redis;
  const Tokens tokens;
  SharedHost one(redis, json::object(), {"--tokens", tokens.path("tokens")});
  const std::string name = "/v1/caches/c";
  json body = holders_body();
  body["tiers"]["pinned"]["num_blocks"] = 4;
  body["eviction"] = "lru";
  ASSERT_EQ(send_as("admin", one, "PUT", name, body.dump()).status, 201U);
  for (int n = 0; n < 4; ++n) {
    ASSERT_EQ(send_as("write", one, "PUT", name + "/keys/" + key(n), block(n)).status, 201U);
    // Ages have a resolution of milliseconds.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // This counts as a use, like any other read by a client.
  const std::string asked = json{{"keys", {key(1)}}}.dump();
  EXPECT_EQ(send_as("write", one, "POST", name + "/read?shared=both", asked).status, 200U);
  ASSERT_EQ(send_as("write", one, "PUT", name + "/keys/" + key(4), block(4)).status, 201U);
  EXPECT_EQ(send_as("write", one, "GET", name + "/keys/" + key(1)).status, 200U);
  EXPECT_EQ(send_as("write", one, "GET", name + "/keys/" + key(0)).status, 404U);
}

TEST(SharedTest, HolderAcceptsOnlyATokenOfRolePeer) {
  const RedisProcess redis;
  const Tokens tokens;
  SharedHost one(redis, json::object(), {"--tokens", tokens.path("tokens")});
  SharedHost stranger(redis);
  SharedHost foreign(redis, {{"peer", {{"token_file", tokens.path("metrics")}}}});
  SharedHost other(redis, {{"peer", {{"token_file", tokens.path("peer")}}}});
  const std::string name = "/v1/caches/guarded";
  ASSERT_EQ(send_as("admin", one, "PUT", name, holders_body().dump()).status, 201U);
  ASSERT_EQ(send_as("admin", one, "PUT", name + "/keys/" + key(0), block(0)).status, 201U);
  wait_for_values(redis, 1);
  for (SharedHost* refused : {&stranger, &foreign}) {
    TestCache there = TestCache::made_of(refused->rest, holders_body());
    EXPECT_EQ(match_and_wait(*refused, there, 1).at("matched"), 0);
    const json peers = refused->rest.get("/v1/system").document().at("shared").at("peers");
    ASSERT_EQ(peers.size(), 1U);
    EXPECT_THAT(peers[0].at("last_error").get<std::string>(), ::testing::HasSubstr("answered 40"));
  }
  TestCache there = TestCache::made_of(other.rest, holders_body());
  EXPECT_EQ(match_and_wait(other, there, 1).at("matched"), 1);
  there.expect_intact(0);
  EXPECT_THAT(other.server.output(),
              ::testing::Not(::testing::HasSubstr(Tokens::token_of("peer"))));
}

TEST(SharedTest, RefusesAHolderWithAnUntrustedCertificate) {
  const RedisProcess redis;
  const fakes::TempDir dir;
  const auto authority = fakes::make_certificate(dir.path(), {.name = "ca"});
  const auto stranger = fakes::make_certificate(dir.path(), {.name = "other"});
  const auto own = fakes::make_certificate(dir.path(), {.name = "one", .authority = authority});
  const std::string socket = (dir.path() / "admin.sock").string();
  SharedHost one(redis, json::object(),
                 {"--tls-cert", own.certificate, "--tls-key", own.key, "--unix", socket});
  Rest admin(client::Endpoint::parse("unix:" + socket).value());
  TestCache here = TestCache::made_of(admin, holders_body());
  here.store(0);
  wait_for_values(redis, 1);
  // A server that starts now finds no socket and uses TCP.
  std::filesystem::remove(socket);
  SharedHost fooled(redis, {{"peer", {{"ca", stranger.certificate}}}});
  TestCache nowhere = TestCache::made_of(fooled.rest, holders_body());
  EXPECT_EQ(match_and_wait(fooled, nowhere, 1).at("matched"), 0);
  const json peers = fooled.rest.get("/v1/system").document().at("shared").at("peers");
  EXPECT_THAT(peers.dump(), ::testing::HasSubstr("certificate verify failed"));
  SharedHost other(redis, {{"peer", {{"ca", authority.certificate}}}});
  TestCache there = TestCache::made_of(other.rest, holders_body());
  EXPECT_EQ(match_and_wait(other, there, 1).at("matched"), 1);
  there.expect_intact(0);
}

TEST(SharedTest, RefusesOptionsThatHoldersCannotHave) {
  const RedisProcess redis;
  SharedHost one(redis);
  EXPECT_EQ(
      one.rest.put("/v1/caches/a", shared_body({{"placement", "holders"}, {"write", "on_evict"}}))
          .status,
      422U);
  EXPECT_EQ(
      one.rest.put("/v1/caches/a", shared_body({{"placement", "holders"}, {"ttl_ms", 5}})).status,
      400U);
}

TEST(SharedTest, RefusesASharedTierWithoutAStore) {
  ServerProcess server;
  Rest rest(server.endpoint());
  const auto refused = rest.put("/v1/caches/a", shared_body());
  EXPECT_EQ(refused.status, 422);
  EXPECT_THAT(refused.document().at("detail").get<std::string>(), ::testing::HasSubstr("--shared"));
}

TEST(SharedTest, RefusesWrongFieldsByName) {
  const RedisProcess redis;
  SharedHost one(redis);
  const auto refused = [&](const json& shared, const std::string& name) {
    const auto answer = one.rest.put("/v1/caches/a", shared_body(shared));
    EXPECT_EQ(answer.status, 400) << shared;
    EXPECT_THAT(answer.document().at("detail").get<std::string>(), ::testing::HasSubstr(name));
  };
  refused({{"store", "memcached"}}, "shared.store");
  refused({{"placement", "everywhere"}}, "shared.placement");
  refused({{"write", "never"}}, "shared.write");
  refused({{"codec", "zstd"}}, "shared.codec");
  refused({{"namespace", "a{b}"}}, "shared.namespace");
  refused({{"ttl_ms", -1}}, "shared.ttl_ms");
  refused({{"ttl", 1}}, "shared.ttl");
}

TEST(SharedTest, AListHasOneOrTwoStores) {
  const RedisProcess redis;
  SharedHost one(redis);
  const auto put = [&](const std::string& name, const json& shared) {
    json body = shared_body();
    body["shared"] = shared;
    return one.rest.put("/v1/caches/" + name, body);
  };
  EXPECT_EQ(put("a", json::array({{{"codec", "bytes"}}})).status, 201U);
  EXPECT_EQ(one.rest.get("/v1/caches/a").document().at("shared").at("codec"), "bytes");
  EXPECT_THAT(put("b", json::array()), is_problem(400, "out_of_range"));
  EXPECT_THAT(put("b", json::array({json::object(), json::object(), json::object()})),
              is_problem(400, "out_of_range"));
  const Reply wrong = put("b", json::array({json::object(), {{"store", "disk"}}}));
  EXPECT_THAT(wrong.document().at("detail").get<std::string>(),
              ::testing::HasSubstr("shared[1].store"));
  const Reply bucket = put("b", json::array({json::object(), {{"store", "s3"}}}));
  EXPECT_EQ(bucket.status, 422U);
  EXPECT_THAT(bucket.document().at("detail").get<std::string>(),
              ::testing::HasSubstr("shared.s3.bucket"));
}

TEST(SharedTest, ReadsAPasswordFromAFileAndNeverShowsIt) {
  const fakes::TempDir dir;
  const std::string file = (dir.path() / "password").string();
  std::ofstream(file) << "hunter2\n";
  const RedisProcess redis({"--requirepass", "sesame"});
  SharedHost one(redis, {{"password_file", file}});
  json system;
  EXPECT_TRUE(eventually([&] {
    system = one.rest.get("/v1/system").document().at("shared");
    return !system.at("nodes").empty() && system.at("nodes").at(0).at("last_error") != nullptr;
  }));
  EXPECT_THAT(system.dump(), ::testing::HasSubstr("WRONGPASS"));
  EXPECT_THAT(system.dump(), ::testing::Not(::testing::HasSubstr("hunter2")));
  EXPECT_THAT(one.server.output(), ::testing::Not(::testing::HasSubstr("hunter2")));
  EXPECT_THAT(one.rest.get("/metrics").body, ::testing::Not(::testing::HasSubstr("hunter2")));
  // Everyone on the host may read cmdline; the user of the server may read environ.
  for (const std::string name : {"cmdline", "environ"}) {
    std::ifstream shown("/proc/" + std::to_string(one.server.pid()) + "/" + name);
    const std::string text{std::istreambuf_iterator<char>(shown), {}};
    EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("hunter2"))) << name;
  }
  EXPECT_EQ(system.at("ready"), false);
}

}  // namespace
}  // namespace cairn::e2e
