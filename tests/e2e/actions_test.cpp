// Actions, pins, contains and cache_control, over HTTP.
#include <openssl/sha.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>

#include "base/hex.hpp"
#include "tests/e2e/shared_server.hpp"
#include "tests/e2e/support/served_test.hpp"

namespace cairn::e2e {
namespace {

class ActionsTest : public ServedTest {
 protected:
  static constexpr int kRoom = 16;

  ActionsTest()
      : cache_(TestCache::made_of(rest_, body_of({.pinned = kRoom, .disk = 2 * kRoom}))) {}

  static json body_of(const Shape& shape) {
    json body = cache_body(shape);
    body["eviction"] = "lru";
    body["pins"] = {{"max_share", 0.5}};
    return body;
  }
  Reply act(const json& actions) {
    return rest_.post(cache_.path("/actions"), {{"actions", actions}});
  }
  // The result of one action.
  json result_of(const json& action) {
    const json document = act(json::array({action})).document();
    return document.at("results").at(0);
  }
  json pins() {
    const json document = rest_.get(cache_.path("/pins")).document();
    return document.at("pins");
  }
  // Stores as many other blocks in memory as fit ten times. They go to disk, and on from there.
  void flood() {
    for (int i = 0; i < 10 * kRoom; ++i) cache_.store(next_++);
  }
  std::string tiers(const json& keys, const json& more = json::object()) {
    json body = more;
    body["keys"] = keys;
    const json document = rest_.post(cache_.path("/contains"), body).document();
    return document.at("tiers");
  }

  TestCache cache_;
  int next_ = 1'000;
};

TEST_F(ActionsTest, SessionsAreListedWithTheirBlocksByTier) {
  cache_.store(1, "?tier=pinned&session=chat");
  cache_.store(2, "?tier=disk&session=chat");
  cache_.store(3, "?tier=disk&session=chat");
  cache_.store(4, "?tier=pinned&session=later");
  ASSERT_THAT(rest_.del(cache_.path("/keys/" + key(3))), has_status(204));
  const json list = rest_.get(cache_.path("/sessions")).document();
  EXPECT_EQ(list.at("known"), 2);
  ASSERT_EQ(list.at("sessions").size(), 2u);
  EXPECT_EQ(list.at("sessions").at(0).at("session"), "later");
  const json& chat = list.at("sessions").at(1);
  EXPECT_EQ(chat.at("session"), "chat");
  EXPECT_EQ(chat.at("token"), nullptr);
  EXPECT_EQ(chat.at("blocks"), (json{{"pinned", 1}, {"disk", 1}}));
  EXPECT_EQ(chat.at("missing"), 1);
  EXPECT_EQ(chat.at("bytes"), 2 * block(1).size());
  EXPECT_GT(chat.at("last_use_ms"), 0);

  const json one = rest_.get(cache_.path("/sessions?limit=1")).document();
  EXPECT_EQ(one.at("sessions").size(), 1u);
  EXPECT_EQ(one.at("known"), 2);
}

TEST_F(ActionsTest, ContainsNamesTheTierOfEachKey) {
  cache_.store(1, "?tier=pinned");
  cache_.store(2, "?tier=disk");
  EXPECT_EQ(tiers({key(1), key(3), key(2)}), "p.k");
  EXPECT_EQ(tiers(json::array()), "");
}

TEST_F(ActionsTest, ContainsTakesAndGivesBytes) {
  cache_.store(1, "?tier=pinned");
  cache_.store(2, "?tier=disk");
  const std::string target =
      cache_.path("/contains?key_bytes=" + std::to_string(key(1).size() / 2));
  const Reply reply = rest_.send({.method = "POST",
                                  .target = target,
                                  .body = packed(keys(1, 3)),
                                  .content_type = "application/octet-stream",
                                  .headers = {{"Accept", "application/octet-stream"}}});
  EXPECT_THAT(reply, has_status(200));
  EXPECT_EQ(reply.body, std::string("\2\3\0", 3));
}

// One more block evicts the least recently used one, which is still the first.
TEST_F(ActionsTest, ContainsTouchesNothing) {
  for (int n = 1; n <= kRoom; ++n) cache_.store(n, "?tier=pinned");
  const double matches = cache_.metric("cairn_matches_total");
  const double misses = cache_.metric("cairn_match_blocks_total", "result=\"miss\"");
  EXPECT_EQ(tiers({key(1), key(500)}), "p.");
  cache_.store(next_++, "?tier=pinned");
  EXPECT_EQ(tiers({key(1)}), "k");
  EXPECT_EQ(cache_.metric("cairn_matches_total"), matches);
  EXPECT_EQ(cache_.metric("cairn_match_blocks_total", "result=\"miss\""), misses);
  EXPECT_EQ(cache_.count("pinned", "committed"), 0);
}

TEST_F(ActionsTest, ContainsTakesAHundredThousandKeys) {
  constexpr int kKeys = 100'000;
  cache_.store(kKeys);
  const std::string found = tiers(keys(1, kKeys));
  ASSERT_EQ(found.size(), kKeys);
  EXPECT_EQ(found.find_first_not_of('.'), kKeys - 1);
}

TEST_F(ActionsTest, ContainsRefusesMoreThanItsLimit) {
  const json document = rest_.get("/openapi.json").document();
  const int most = document.at("components")
                       .at("schemas")
                       .at("ContainsRequest")
                       .at("properties")
                       .at("keys")
                       .at("maxItems");
  const std::string bytes(static_cast<std::size_t>(most + 1), 'k');
  EXPECT_THAT(rest_.post_bytes(cache_.path("/contains?key_bytes=1"), bytes),
              is_problem(400, "out_of_range"));
  EXPECT_THAT(rest_.post_bytes(cache_.path("/contains?key_bytes=1"), bytes.substr(1)),
              has_status(200));
}

TEST_F(ActionsTest, APinSurvivesAFlood) {
  cache_.store_prefix(1, 6, "pinned");
  const json result = result_of(
      {{"id", "a1"}, {"type", "pin"}, {"target", {{"keys", keys(1, 6)}}}, {"ttl_ms", 600'000}});
  EXPECT_EQ(result.at("id"), "a1");
  EXPECT_EQ(result.at("outcome"), "accepted");
  EXPECT_EQ(result.at("blocks"), 6);
  EXPECT_EQ(result.at("missing"), 0);
  flood();
  EXPECT_EQ(tiers(keys(1, 6)), "pppppp");
  for (int n = 1; n <= 6; ++n) EXPECT_EQ(cache_.expect_intact(n), "pinned");
  const json list = pins();
  ASSERT_EQ(list.size(), 1);
  EXPECT_EQ(list.at(0).at("pin"), result.at("pin"));
  EXPECT_EQ(list.at(0).at("token"), nullptr);
  EXPECT_EQ(list.at(0).at("blocks"), 6);
  EXPECT_EQ(list.at(0).at("bytes"), 6 * block(1).size());
  EXPECT_EQ(cache_.metric("cairn_pins"), 1);
  EXPECT_EQ(cache_.metric("cairn_pinned_by_pins_blocks", "tier=\"pinned\""), 6);
  EXPECT_EQ(cache_.metric("cairn_actions_total", "type=\"pin\",outcome=\"accepted\""), 1);
}

TEST_F(ActionsTest, ADeletedPinLetsItsBlocksGo) {
  cache_.store(1);
  const json result = result_of({{"type", "pin"}, {"target", {{"keys", keys(1, 1)}}}});
  const std::string pin = result.at("pin");
  const Reply ended = rest_.del("/v1/pins/" + pin);
  EXPECT_THAT(ended, has_status(200));
  const json document = ended.document();
  EXPECT_EQ(document, json({{"pin", pin}, {"blocks", 1}}));
  EXPECT_THAT(rest_.del("/v1/pins/" + pin), is_problem(404, "unknown_pin"));
  EXPECT_THAT(rest_.del("/v1/pins/none"), is_problem(404, "unknown_pin"));
  EXPECT_TRUE(pins().empty());
  flood();
  EXPECT_EQ(tiers(keys(1, 1)), ".");
}

TEST_F(ActionsTest, WhatDoesNotFitIsClipped) {
  cache_.store_prefix(1, 12, "pinned");
  const json result = result_of({{"type", "pin"}, {"target", {{"keys", keys(1, 14)}}}});
  EXPECT_EQ(result.at("outcome"), "clipped");
  EXPECT_EQ(result.at("reason"), "budget");
  EXPECT_EQ(result.at("blocks"), kRoom / 2);
  EXPECT_EQ(result.at("missing"), 2);
  const json more = result_of({{"type", "pin"}, {"target", {{"keys", keys(12, 1)}}}});
  EXPECT_EQ(more.at("outcome"), "rejected");
  EXPECT_EQ(more.at("reason"), "budget");
  EXPECT_FALSE(more.contains("pin"));
  ASSERT_THAT(rest_.send({.method = "PATCH",
                          .target = cache_.path(),
                          .body = R"({"pins": {"max_share": 0.75}})",
                          .content_type = "application/json"}),
              has_status(200));
  const json cache = rest_.get(cache_.path()).document();
  EXPECT_EQ(cache.at("pins").at("max_share"), 0.75);
  EXPECT_EQ(cache.at("pins").at("max_share_of_token"), 0.1);
  EXPECT_EQ(result_of({{"type", "pin"}, {"target", {{"keys", keys(12, 1)}}}}).at("outcome"),
            "accepted");
}

TEST_F(ActionsTest, SharesAreBounded) {
  for (const double share : {-0.1, 0.91}) {
    json body = body_of({.pinned = 4});
    body["pins"] = {{"max_share", share}};
    EXPECT_THAT(rest_.put("/v1/caches/refused", body), is_problem(400, "out_of_range")) << share;
  }
}

TEST_F(ActionsTest, MaxBlocksClips) {
  cache_.store_prefix(1, 4, "pinned");
  const json result =
      result_of({{"type", "pin"}, {"target", {{"keys", keys(1, 4)}}}, {"max_blocks", 3}});
  EXPECT_EQ(result.at("outcome"), "clipped");
  EXPECT_EQ(result.at("reason"), "max_blocks");
  EXPECT_EQ(result.at("blocks"), 3);
}

TEST_F(ActionsTest, ResultsComeInTheOrderOfActions) {
  cache_.store(1);
  const json document = act({{{"id", "x"}, {"type", "pin"}, {"target", {{"keys", keys(1, 1)}}}},
                             {{"id", "y"}, {"type", "pin"}, {"target", {{"keys", keys(50, 2)}}}},
                             {{"type", "unpin"}, {"target", {{"keys", keys(1, 1)}}}},
                             {{"type", "share"}, {"target", {{"keys", keys(1, 1)}}}},
                             {{"type", "unpin"}, {"target", {{"session", "nobody"}}}}})
                            .document();
  const json results = document.at("results");
  ASSERT_EQ(results.size(), 5);
  EXPECT_EQ(results.at(0).at("outcome"), "accepted");
  EXPECT_EQ(results.at(1).at("outcome"), "missing");
  EXPECT_EQ(results.at(1).at("missing"), 2);
  EXPECT_EQ(results.at(1).at("id"), "y");
  EXPECT_EQ(results.at(2).at("outcome"), "accepted");
  EXPECT_EQ(results.at(2).at("id"), nullptr);
  EXPECT_EQ(results.at(3).at("outcome"), "rejected");
  EXPECT_EQ(results.at(3).at("reason"), "no_shared_tier");
  EXPECT_EQ(results.at(4).at("outcome"), "missing");
  EXPECT_TRUE(pins().empty());
}

TEST_F(ActionsTest, ASessionIsATarget) {
  cache_.store_prefix(1, 3, "pinned");
  json match = {{"keys", keys(1, 3)}, {"lease_ms", 0}, {"session", "chat"}};
  ASSERT_THAT(rest_.post(cache_.path("/match"), match), has_status(200));
  const json result = result_of({{"type", "pin"}, {"target", {{"session", "chat"}}}});
  EXPECT_EQ(result.at("blocks"), 3);
  EXPECT_EQ(pins().at(0).at("session"), "chat");
  EXPECT_EQ(result_of({{"type", "unpin"}, {"target", {{"session", "chat"}}}}).at("blocks"), 3);
  EXPECT_TRUE(pins().empty());
}

TEST_F(ActionsTest, TokensAreATarget) {
  json tokens = json::array();
  const json cache = rest_.get(cache_.path()).document();
  const int page = cache.at("layout").at("page_size");
  for (int i = 0; i < 2 * page; ++i) tokens.push_back(i);
  const json target = {{"tokens", tokens}, {"salt", "s"}};
  const json result = result_of({{"type", "pin"}, {"target", target}});
  EXPECT_EQ(result.at("outcome"), "missing");
  EXPECT_EQ(result.at("missing"), 2);
}

TEST_F(ActionsTest, AMalformedActionRefusesAll) {
  cache_.store(1);
  const json good = {{"type", "pin"}, {"target", {{"keys", keys(1, 1)}}}};
  const auto refused = [&](json bad) { return act({good, std::move(bad)}); };
  json bad = good;
  bad["ttl_ms"] = 86'400'001;
  EXPECT_THAT(refused(bad), is_problem(400, "out_of_range"));
  bad = good;
  bad["type"] = "evict";
  EXPECT_THAT(refused(bad), is_problem(400, "out_of_range"));
  bad = good;
  bad["colour"] = "red";
  EXPECT_THAT(refused(bad), is_problem(400, "unknown_field"));
  bad = good;
  bad["target"]["session"] = "chat";
  EXPECT_THAT(refused(bad), is_problem(400, "malformed"));
  EXPECT_THAT(refused({{"type", "pin"}}), is_problem(400, "missing_field"));
  EXPECT_THAT(act(json::array()), is_problem(400, "out_of_range"));
  EXPECT_THAT(act(json(257, good)), is_problem(400, "out_of_range"));
  EXPECT_THAT(act(json(256, good)), has_status(200));
  EXPECT_THAT(rest_.del(cache_.path("/keys/" + key(1))), has_status(204));
}

TEST_F(ActionsTest, TheEnvelopeOfEnginesIsTaken) {
  cache_.store(1);
  const json payload = {{"target", {{"keys", keys(1, 1)}}}};
  const auto action = [&](const char* id, const json& type, const json& version) {
    return json{{"action_id", id},
                {"action_type", type},
                {"action_version", version},
                {"payload", payload}};
  };
  const json body = {
      {"protocol_version", "1"},
      {"message_id", "m-1"},
      {"actions", {action("a", "pin", 1), action("b", "compress", 1), action("c", "pin", 2)}}};
  const Reply reply = rest_.post(cache_.path("/actions"), body);
  ASSERT_THAT(reply, has_status(200));
  const json document = reply.document();
  EXPECT_EQ(document.at("message_id"), "m-1");
  const json results = document.at("results");
  EXPECT_EQ(results.at(0).at("outcome"), "accepted");
  EXPECT_EQ(results.at(1).at("id"), "b");
  EXPECT_EQ(results.at(1).at("outcome"), "rejected");
  EXPECT_EQ(results.at(1).at("reason"), "unknown_type");
  EXPECT_EQ(results.at(2).at("outcome"), "rejected");
  EXPECT_EQ(results.at(2).at("reason"), "unknown_version");
}

TEST_F(ActionsTest, APrefetchBringsBlocksUp) {
  cache_.store_prefix(1, 3, "disk");
  const json result = result_of({{"type", "prefetch"},
                                 {"target", {{"keys", keys(1, 4)}}},
                                 {"to", "pinned"},
                                 {"deadline_ms", 60'000},
                                 {"wait_ms", 60'000}});
  EXPECT_EQ(result.at("outcome"), "accepted");
  EXPECT_EQ(result.at("blocks"), 3);
  EXPECT_EQ(result.at("missing"), 1);
  EXPECT_TRUE(result.contains("transfer"));
  EXPECT_EQ(tiers(keys(1, 4)), "ppp.");
  const json found = cache_.match(keys(1, 3), 0);
  EXPECT_EQ(found.at("blocks").at(2).at("tier"), "pinned");
  EXPECT_EQ(cache_.metric("cairn_prefetch_blocks_total", "result=\"used\""), 3);
  EXPECT_EQ(cache_.metric("cairn_prefetch_blocks_total", "result=\"missing\""), 1);
}

TEST_F(ActionsTest, ADemotionFreesTheTierAbove) {
  cache_.store_prefix(1, 3, "pinned");
  const json result =
      result_of({{"type", "demote"}, {"target", {{"keys", keys(1, 3)}}}, {"wait_ms", 60'000}});
  EXPECT_EQ(result.at("outcome"), "accepted");
  EXPECT_EQ(result.at("blocks"), 3);
  EXPECT_EQ(tiers(keys(1, 3)), "kkk");
  EXPECT_EQ(cache_.count("pinned", "free"), kRoom);
}

TEST_F(ActionsTest, ADemotionNeedsALowerTier) {
  TestCache single = TestCache::made_of(rest_, body_of({.pinned = 4}));
  single.store(1);
  const json document =
      rest_
          .post(single.path("/actions"),
                {{"actions", {{{"type", "demote"}, {"target", {{"keys", keys(1, 1)}}}}}}})
          .document();
  EXPECT_EQ(document.at("results").at(0).at("reason"), "no_lower_tier");
}

TEST_F(ActionsTest, RetainedBlocksGoLater) {
  for (int n = 1; n <= 3; ++n) cache_.store(n, "?tier=disk");
  EXPECT_EQ(result_of({{"type", "retain"}, {"target", {{"keys", keys(1, 1)}}}, {"priority", 90}})
                .at("outcome"),
            "accepted");
  for (int i = 0; i < 4 * kRoom; ++i) cache_.store(next_++, "?tier=disk");
  EXPECT_EQ(tiers(keys(1, 3)), "k..");
}

TEST_F(ActionsTest, CacheControlPinsWhatIsStored) {
  const std::string control = "%7B%22type%22:%22ephemeral%22,%22ttl%22:%221h%22%7D";
  const Reply put = rest_.put_bytes(cache_.key_path(1, "?cache_control=" + control), block(1));
  EXPECT_THAT(put, has_status(201));
  EXPECT_EQ(pins().at(0).at("pin"), put.header("Cairn-Pin"));
  const json header = {{"keys", keys(2, 2)}, {"cache_control", {{"type", "ephemeral"}}}};
  EXPECT_THAT(rest_.post_bytes(cache_.path("/write"), write_body(header, blocks(2, 2))),
              has_status(200));
  const json slots = cache_.allocate(1, "pinned");
  const std::string lease = slots.at("lease");
  const json handle = slots.at("blocks").at(0);
  ASSERT_THAT(rest_.put_bytes(cache_.data_path(handle, lease), block(4)), has_status(204));
  EXPECT_THAT(rest_.post(cache_.path("/commit"),
                         {{"lease", lease},
                          {"blocks", {TestCache::commit_block(handle, 4)}},
                          {"release", true},
                          {"cache_control", {{"type", "ephemeral"}, {"ttl", "5m"}}}}),
              has_status(200));
  cache_.store(5);
  const std::string second = cache_.match(keys(5, 1), 30'000).at("lease");
  EXPECT_THAT(rest_.post("/v1/leases/" + second + "/release",
                         {{"cache_control", {{"type", "ephemeral"}, {"ttl", "5m"}}}}),
              has_status(200));
  EXPECT_EQ(pins().size(), 4);
  flood();
  EXPECT_EQ(tiers(keys(1, 5)), "ppppp");
}

TEST_F(ActionsTest, CacheControlIsChecked) {
  const json header = {{"keys", keys(1, 1)},
                       {"cache_control", {{"type", "ephemeral"}, {"ttl", "2h"}}}};
  EXPECT_THAT(rest_.post_bytes(cache_.path("/write"), write_body(header, blocks(1, 1))),
              is_problem(400, "out_of_range"));
  EXPECT_THAT(rest_.post(cache_.path("/match"),
                         {{"keys", keys(1, 1)}, {"cache_control", {{"type", "ephemeral"}}}}),
              is_problem(400, "unknown_field"));
}

// A configuration without the large cache named default.
std::string config_in(const fakes::TempDir& folder) {
  const std::string path = (folder.path() / "config.json").string();
  std::ofstream(path) << R"({"caches": []})";
  return path;
}

// Tokens of their own: what one of them may keep.
class ActionsOfTokensTest : public ::testing::Test {
 protected:
  static constexpr int kRoom = 40;

  ActionsOfTokensTest() {
    const std::string path = (folder_.path() / "tokens.json").string();
    std::ofstream(path) << json{{"tokens",
                                 {caller("root", "admin"), caller("a", "write"),
                                  caller("b", "write"), caller("r", "read")}}};
    server_ = std::make_unique<ServerProcess>(
        ServerSetup{.flags = {"--config", config_in(folder_), "--tokens", path}});
    rest_ = std::make_unique<Rest>(server_->endpoint());
    EXPECT_THAT(as("root", "PUT", "", cache_body({.pinned = kRoom})), has_status(201));
  }
  static std::string token_of(const std::string& who) { return who + "-0123456789abcdef"; }
  static json caller(const std::string& who, const std::string& role) {
    const std::string token = token_of(who);
    std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
    ::SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
    return {{"name", who}, {"role", role}, {"sha256", to_hex(std::as_bytes(std::span(digest)))}};
  }
  Reply as(const std::string& who, const std::string& method, const std::string& path,
           const json& body = nullptr) {
    const std::string target = path.starts_with("/v1/") ? path : "/v1/caches/theirs" + path;
    return rest_->send({.method = method,
                        .target = target,
                        .body = body.is_null() ? "" : body.dump(),
                        .content_type = body.is_null() ? "" : "application/json",
                        .headers = {{"Authorization", "Bearer " + token_of(who)}}});
  }
  void store(const std::string& who, int first, int count) {
    for (int n = first; n < first + count; ++n) {
      const Reply put = rest_->send({.method = "PUT",
                                     .target = "/v1/caches/theirs/keys/" + key(n),
                                     .body = block(n),
                                     .content_type = "application/octet-stream",
                                     .headers = {{"Authorization", "Bearer " + token_of(who)}}});
      ASSERT_THAT(put, has_status(201));
    }
  }
  json pin(const std::string& who, int first, int count) {
    const json document =
        as(who, "POST", "/actions",
           {{"actions", {{{"type", "pin"}, {"target", {{"keys", keys(first, count)}}}}}}})
            .document();
    return document.at("results").at(0);
  }

  fakes::TempDir folder_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<Rest> rest_;
};

// The default shares: a quarter of the tier for all, a tenth for one.
TEST_F(ActionsOfTokensTest, OneThatPinsEverythingLeavesTheOthersTheirBlocks) {
  for (int first = 1; first < 200; first += 20) {
    store("a", first, 20);
    pin("a", first, 20);
  }
  const json list = as("a", "GET", "/pins").document().at("pins");
  int blocks = 0;
  for (const json& one : list) blocks += one.at("blocks").get<int>();
  EXPECT_EQ(blocks, kRoom / 10);
  store("b", 1'000, 9 * kRoom / 10);
  const json found =
      as("b", "POST", "/contains", {{"keys", keys(1'000, 9 * kRoom / 10)}}).document();
  EXPECT_EQ(found.at("tiers"), std::string(9 * kRoom / 10, 'p'));
}

TEST_F(ActionsOfTokensTest, EachSeesItsOwnSessions) {
  store("a", 1, 2);
  const auto talk = [&](const char* token, const char* session) {
    return as(token, "POST", "/match",
              {{"keys", keys(1, 2)}, {"session", session}, {"lease_ms", 0}});
  };
  EXPECT_THAT(talk("a", "of a"), has_status(200));
  EXPECT_THAT(talk("b", "of b"), has_status(200));
  const auto seen_by = [&](const char* token) {
    std::vector<std::string> names;
    const json document = as(token, "GET", "/sessions").document();
    for (const json& one : document.at("sessions")) names.push_back(one.at("session"));
    return names;
  };
  EXPECT_THAT(seen_by("a"), testing::ElementsAre("of a"));
  EXPECT_THAT(seen_by("b"), testing::ElementsAre("of b"));
  EXPECT_THAT(seen_by("root"), testing::ElementsAre("of b", "of a"));
}

TEST_F(ActionsOfTokensTest, EachSeesAndEndsItsOwnPins) {
  store("a", 1, 2);
  const json pinned = pin("a", 1, 2);
  const std::string path = "/v1/pins/" + pinned.at("pin").get<std::string>();
  EXPECT_TRUE(as("b", "GET", "/pins").document().at("pins").empty());
  EXPECT_EQ(as("root", "GET", "/pins").document().at("pins").at(0).at("token"), "a");
  EXPECT_THAT(as("b", "DELETE", path), is_problem(404, "unknown_pin"));
  EXPECT_THAT(as("r", "DELETE", path), is_problem(403, "forbidden"));
  EXPECT_THAT(as("r", "POST", "/actions", {{"actions", json::array()}}),
              is_problem(403, "forbidden"));
  EXPECT_THAT(as("r", "POST", "/contains", {{"keys", keys(1, 1)}}), has_status(200));
  EXPECT_THAT(as("root", "DELETE", path), has_status(200));
}

TEST(ActionsRestartTest, PinsOutliveARestartOnDisk) {
  const fakes::TempDir folder;
  const ServerSetup setup{.flags = {"--config", config_in(folder)},
                          .data_dir = folder.path() / "data"};
  std::string pin;
  {
    ServerProcess server(setup);
    Rest rest(server.endpoint());
    ASSERT_THAT(rest.put("/v1/caches/kept", cache_body({.pinned = 4, .disk = 16})),
                has_status(201));
    const json header = {{"keys", keys(1, 2)}, {"tier", "disk"}};
    ASSERT_THAT(rest.post_bytes("/v1/caches/kept/write", write_body(header, blocks(1, 2))),
                has_status(200));
    const json document =
        rest.post("/v1/caches/kept/actions",
                  {{"actions", {{{"type", "pin"}, {"target", {{"keys", keys(1, 2)}}}}}}})
            .document();
    pin = document.at("results").at(0).at("pin");
    EXPECT_EQ(server.stop(), 0);
  }
  ServerProcess server(setup);
  Rest rest(server.endpoint());
  const json list = rest.get("/v1/caches/kept/pins").document().at("pins");
  ASSERT_EQ(list.size(), 1);
  EXPECT_EQ(list.at(0).at("pin"), pin);
  EXPECT_EQ(list.at(0).at("blocks"), 2);
  for (int n = 100; n < 150; ++n) {
    ASSERT_THAT(rest.put_bytes("/v1/caches/kept/keys/" + key(n) + "?tier=disk", block(n)),
                has_status(201));
  }
  const json found = rest.post("/v1/caches/kept/contains", {{"keys", keys(1, 2)}}).document();
  EXPECT_EQ(found.at("tiers"), "kk");
}

TEST(ActionsSharedTest, SharedBlocksComeUpBeforeTheirRequest) {
  TwoHosts hosts(json{{"write", "second_use"}});
  auto& [redis, one, other, here, there] = hosts;
  here.store_prefix(0, 4, "pinned");
  const auto act = [](Rest& rest, const TestCache& cache, const json& action) {
    const json body = {{"actions", json::array({action})}};
    const json document = rest.post(cache.path("/actions"), body).document();
    return document.at("results").at(0);
  };
  const json target = {{"keys", keys(0, 5)}};
  const json shared = act(one.rest, here, {{"type", "share"}, {"target", target}});
  EXPECT_EQ(shared.at("outcome"), "accepted");
  EXPECT_EQ(shared.at("blocks"), 4);
  EXPECT_EQ(shared.at("missing"), 1);
  wait_for_values(redis, 4);

  const auto tiers = [&](bool with_shared) {
    const json body = {{"keys", keys(0, 5)}, {"shared", with_shared}};
    const json document = other.rest.post(there.path("/contains"), body).document();
    return document.at("tiers");
  };
  EXPECT_EQ(tiers(false), ".....");
  EXPECT_EQ(tiers(true), "ssss.");
  const json fetched =
      act(other.rest, there, {{"type", "prefetch"}, {"target", target}, {"wait_ms", 30'000}});
  EXPECT_EQ(fetched.at("outcome"), "accepted");
  EXPECT_EQ(fetched.at("blocks"), 4);
  EXPECT_EQ(fetched.at("missing"), 1);
  EXPECT_TRUE(fetched.contains("transfer"));
  EXPECT_EQ(tiers(false), "pppp.");
  EXPECT_EQ(there.match(keys(0, 4), 0).at("matched"), 4);
  EXPECT_EQ(there.metric("cairn_prefetch_blocks_total", "result=\"used\""), 4);
}

json result_of(Rest& rest, const TestCache& cache, const json& action) {
  const json body = {{"actions", json::array({action})}};
  const json document = rest.post(cache.path("/actions"), body).document();
  return document.at("results").at(0);
}

json share_with(const std::string& url, const json& of) {
  return {{"type", "share"}, {"target", {{"keys", of}}}, {"peer", url}};
}

TEST(ActionsSharedTest, APeerFetchesWhatIsSharedWithIt) {
  for (const std::string placement : {"values", "holders"}) {
    const json body =
        shared_body({{"write", "second_use"}, {"placement", placement}, {"namespace", "both"}});
    TwinHosts hosts(body);
    auto& [redis, one, other, here, there] = hosts;
    here.store_prefix(0, 4, "pinned");
    const json shared = result_of(one.rest, here, share_with(other.server.url(), keys(0, 5)));
    EXPECT_EQ(shared.at("outcome"), "accepted") << placement << shared;
    EXPECT_EQ(shared.at("blocks"), 4);
    EXPECT_EQ(shared.at("missing"), 1);
    EXPECT_TRUE(eventually([&] {
      const json found =
          other.rest.post(there.path("/contains"), {{"keys", keys(0, 5)}}).document();
      return found.at("tiers") == "pppp.";
    })) << placement;
    for (int n = 0; n < 4; ++n) there.expect_intact(n);
  }
}

TEST(ActionsSharedTest, AShareSaysWhyThePeerHasNothing) {
  TwoHosts hosts;
  auto& [redis, one, other, here, there] = hosts;
  here.store_prefix(0, 2, "pinned");
  const auto reason = [&](const std::string& url) {
    const json result = result_of(one.rest, here, share_with(url, keys(0, 2)));
    EXPECT_EQ(result.at("outcome"), "rejected") << result;
    return result.at("reason").get<std::string>();
  };
  EXPECT_EQ(reason("http://127.0.0.1:1"), "peer_unavailable");
  EXPECT_EQ(reason("nowhere"), "peer_malformed");
  ASSERT_NE(here.name(), there.name());
  EXPECT_EQ(reason(other.server.url()), "peer_unknown_cache");
}

TEST(ActionsSharedTest, APeerMayOnlyPrefetchAndAWriterMayNotNameAPeer) {
  const RedisProcess redis;
  const Tokens tokens;
  const std::vector<std::string> flags = {"--tokens", tokens.path("tokens")};
  SharedHost one(redis, {{"peer", {{"token_file", tokens.path("peer")}}}}, flags);
  SharedHost other(redis, json::object(), flags);
  const std::string name = "/v1/caches/c";
  for (SharedHost* host : {&one, &other}) {
    EXPECT_TRUE(eventually([&] {
      const json system = send_as("admin", *host, "GET", "/v1/system").document();
      return system.at("shared").at("ready") == true;
    }));
    ASSERT_EQ(
        send_as("admin", *host, "PUT", name, shared_body({{"namespace", "both"}}).dump()).status,
        201U);
  }
  ASSERT_EQ(send_as("write", one, "PUT", name + "/keys/" + key(0), block(0)).status, 201U);
  const auto act = [&](const std::string& role, SharedHost& host, const json& action) {
    const json body = {{"actions", json::array({action})}};
    const json document = send_as(role, host, "POST", name + "/actions", body.dump()).document();
    return document.at("results").at(0);
  };
  const json share = share_with(other.server.url(), keys(0, 1));
  EXPECT_EQ(act("write", one, share).at("reason"), "forbidden");
  EXPECT_EQ(act("admin", one, share).at("outcome"), "accepted");
  EXPECT_TRUE(eventually(
      [&] { return send_as("write", other, "GET", name + "/keys/" + key(0)).status == 200U; }));
  for (const char* type : {"pin", "unpin", "retain", "demote", "share"}) {
    const json action = {{"type", type}, {"target", {{"keys", keys(0, 1)}}}};
    EXPECT_EQ(act("peer", other, action).at("reason"), "forbidden") << type;
  }
}

TEST(ActionsSharedTest, PrefetchesFromTheStoreHaveAShareOfTheTier) {
  TwoHosts hosts;
  auto& [redis, one, other, here, there] = hosts;
  const int quarter = static_cast<int>(there.metric("cairn_block_capacity", "tier=\"pinned\"")) / 4;
  here.store_prefix(0, quarter + 2, "pinned");
  wait_for_values(redis, quarter + 2);
  const auto prefetch = [&](int first, int count) {
    const json action = {
        {"type", "prefetch"}, {"target", {{"keys", keys(first, count)}}}, {"wait_ms", 30'000}};
    const json body = {{"actions", json::array({action})}};
    const json document = other.rest.post(there.path("/actions"), body).document();
    return document.at("results").at(0);
  };
  const json first = prefetch(0, quarter + 2);
  EXPECT_EQ(first.at("outcome"), "clipped");
  EXPECT_EQ(first.at("reason"), "budget");
  EXPECT_EQ(first.at("blocks"), quarter);
  EXPECT_EQ(first.at("missing"), 0);
  there.match(keys(0, quarter), 0);
  const json rest = prefetch(0, quarter + 2);
  EXPECT_EQ(rest.at("outcome"), "accepted");
  EXPECT_EQ(rest.at("blocks"), quarter + 2);
}

}  // namespace
}  // namespace cairn::e2e
