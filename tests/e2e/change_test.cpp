// PATCH of a cache, and the blocks on their way to a lower tier.
#include <algorithm>
#include <fstream>

#include "tests/e2e/support/served_test.hpp"

namespace cairn::e2e {
namespace {

class ChangeTest : public ServedTest {
 protected:
  Reply patch(const TestCache& cache, const json& body) {
    return rest_.send({.method = "PATCH",
                       .target = cache.path(),
                       .body = body.dump(),
                       .content_type = "application/json"});
  }
};

TEST_F(ChangeTest, ChangesPoliciesAndSizes) {
  TestCache cache(rest_, {.device = 2, .pinned = 4, .disk = 8});
  const Reply reply = patch(
      cache, {{"offload", "on_commit"},
              {"default_lease_ms", 4321},
              {"eviction", "lru"},
              {"pressure", {{"pinned", {{"elevated", 0.5}, {"warning", 0.6}, {"critical", 0.7}}}}},
              {"tiers", {{"pinned", {{"num_blocks", 6}}}, {"disk", {{"num_blocks", 12}}}}}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  for (const json& body : {reply.document(), rest_.get(cache.path()).document()}) {
    EXPECT_EQ(body.at("offload"), "on_commit");
    EXPECT_EQ(body.at("eviction"), "lru");
    EXPECT_EQ(body.at("default_lease_ms"), 4321);
    EXPECT_EQ(body.at("pressure").at("pinned").at("elevated"), 0.5);
    EXPECT_EQ(body.at("tiers").at("pinned").at("num_blocks"), 6);
    EXPECT_EQ(body.at("tiers").at("pinned").at("capacity_blocks"), 6);
    EXPECT_EQ(body.at("tiers").at("disk").at("capacity_blocks"), 12);
    EXPECT_EQ(body.at("tiers").at("device").at("num_blocks"), 2);
  }
  EXPECT_EQ(cache.metric("cairn_block_capacity", "tier=\"pinned\""), 6);
  EXPECT_EQ(cache.metric("cairn_block_capacity", "tier=\"disk\""), 12);
}

TEST_F(ChangeTest, BadFieldIsNamedAndChangesNothing) {
  TestCache cache(rest_, {.device = 2, .pinned = 4});
  const json before = rest_.get(cache.path()).document();
  const json good = {{"num_blocks", 9}};
  EXPECT_THAT(patch(cache, {{"default_lease_ms", 5}, {"layout", json::object()}}),
              is_problem(400, "unknown_field"));
  EXPECT_THAT(patch(cache, {{"tiers", {{"pinned", {{"num_blocks", 9}, {"path", "x"}}}}}}),
              is_problem(400, "unknown_field"));
  EXPECT_THAT(patch(cache, {{"tiers", {{"pinned", good}, {"device", good}}}}),
              is_problem(422, "impossible"));
  EXPECT_THAT(patch(cache, {{"tiers", {{"pinned", good}, {"disk", good}}}}),
              is_problem(422, "unknown_tier"));
  EXPECT_THAT(patch(cache, {{"tiers", {{"pinned", {{"num_blocks", 0}}}}}}), is_problem(422));
  EXPECT_THAT(patch(cache, {{"eviction", "none"}}), is_problem(400));
  EXPECT_EQ(patch(cache, json::object()).status, 200);
  EXPECT_EQ(rest_.get(cache.path()).document(), before);
}

TEST_F(ChangeTest, RefusesToShrinkBelowTheLeasedBlocks) {
  TestCache cache(rest_, {.pinned = 4});
  for (int n = 0; n < 4; ++n) cache.store(n, n == 0 ? "" : "?parent=" + key(n - 1));
  const json held = cache.match(keys(0, 4), 30'000);
  EXPECT_THAT(patch(cache, {{"tiers", {{"pinned", {{"num_blocks", 3}}}}}}),
              is_problem(409, "leased"));
  EXPECT_THAT(rest_.del("/v1/leases/" + held.at("lease").get<std::string>()), has_status(200));
  ASSERT_EQ(patch(cache, {{"tiers", {{"pinned", {{"num_blocks", 3}}}}}}).status, 200);
  EXPECT_EQ(cache.match(keys(0, 4), 0).at("matched"), 3);
  for (int n = 0; n < 3; ++n) cache.expect_intact(n);
}

TEST_F(ChangeTest, QuotaBoundsAllLeasesOfTheCache) {
  TestCache cache(rest_, {.pinned = 8});
  for (int n = 0; n < 4; ++n) cache.store(n, n == 0 ? "" : "?parent=" + key(n - 1));
  const json quota = {{"max_leased_blocks", 3}};
  ASSERT_EQ(patch(cache, {{"quota", quota}}).status, 200);
  EXPECT_EQ(rest_.get(cache.path()).document().at("quota"), quota);
  const auto match = [&] {
    return rest_.post(cache.path("/match"), {{"keys", keys(0, 4)}, {"lease_ms", 30'000}});
  };
  EXPECT_THAT(match(), is_problem(429, "lease_quota"));
  const json held = cache.match(keys(0, 3), 30'000);
  EXPECT_THAT(rest_.post(cache.path("/allocate"), {{"count", 1}, {"tier", "pinned"}}),
              is_problem(429, "lease_quota"));
  EXPECT_THAT(patch(cache, {{"quota", {{"max_leased_blocks", 0}}}}),
              is_problem(400, "out_of_range"));
  EXPECT_THAT(patch(cache, {{"quota", {{"pinned", 1}}}}), is_problem(400, "unknown_field"));
  ASSERT_EQ(patch(cache, {{"quota", json::object()}}).status, 200);
  EXPECT_FALSE(rest_.get(cache.path()).document().contains("quota"));
  EXPECT_THAT(match(), has_status(200));
}

// A PUT is compared with the cache's current body.
TEST_F(ChangeTest, PutComparesWithTheChangedBody) {
  json body = cache_body({.pinned = 4});
  TestCache cache = TestCache::made_of(rest_, body);
  ASSERT_EQ(patch(cache, {{"tiers", {{"pinned", {{"num_blocks", 5}}}}}}).status, 200);
  EXPECT_THAT(rest_.put(cache.path(), body), is_problem(409, "cache_exists"));
  body["tiers"]["pinned"]["num_blocks"] = 5;
  EXPECT_THAT(rest_.put(cache.path(), body), has_status(200));
}

TEST_F(ChangeTest, AllocationLargerThanItsTierIsImpossible) {
  TestCache cache(rest_, {.pinned = 4});
  EXPECT_THAT(rest_.post(cache.path("/allocate"), {{"count", 5}, {"tier", "pinned"}}),
              is_problem(422, "impossible"));
  cache.allocate(3, "pinned");
  EXPECT_THAT(rest_.post(cache.path("/allocate"), {{"count", 2}, {"tier", "pinned"}}),
              is_problem(507, "no_capacity"));
}

TEST_F(ChangeTest, DrainedCacheHasEveryBlockInItsLowestTier) {
  TestCache cache(rest_, {.device = 4, .pinned = 4, .disk = 16});
  for (int n = 0; n < 8; ++n) cache.store(n, n < 4 ? "?tier=device" : "?tier=pinned");
  const json drained = rest_.post(cache.path("/drain"), {{"wait_ms", 60'000}}).document();
  EXPECT_EQ(drained.at("state"), "done");
  EXPECT_EQ(drained.at("blocks_done"), drained.at("blocks_total"));
  EXPECT_EQ(cache.count("disk", "evictable"), 8);
  EXPECT_THAT(rest_.post(cache.path("/drain"), {{"to", "shared"}}), is_problem(400));
  const json pending = rest_.get(cache.path("/pending")).document();
  EXPECT_EQ(pending, json({{"pending", json::array()}, {"next_cursor", nullptr}}));
}

// Copies that have not arrived at the first poll stay pending until the second, one second later.
TEST(PendingTest, ListsPendingBlocksPageByPage) {
  const fakes::TempDir folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"caches": [], "transfers":
    {"polling_interval_us": 1000000, "strategy": {"store": "polling"}}})";
  ServerProcess server({.flags = {"--config", config}});
  Rest rest(server.endpoint());
  TestCache cache(rest, {.device = 64, .pinned = 64, .offload = "on_commit"});
  const auto page = [&](const std::string& query) {
    return rest.get(cache.path("/pending" + query)).document();
  };
  const auto expect_on_the_way = [](const json& block, const std::string& key) {
    EXPECT_EQ(block.at("key"), key);
    EXPECT_EQ(block.at("from"), "device");
    EXPECT_EQ(block.at("to"), "pinned");
    EXPECT_LE(block.at("age_ms"), 60'000);
  };
  bool seen = false;
  int stored = 0;
  for (int first = 0; !seen && first < 64; first += 2) {
    ASSERT_THAT(rest.post_bytes(
                    cache.path("/write"),
                    write_body({{"keys", keys(first, 2)}, {"tier", "device"}}, blocks(first, 2))),
                has_status(200));
    stored += 2;
    const json one = page("?limit=1");
    if (one.at("next_cursor").is_null()) continue;
    const json other = page("?limit=1&cursor=" + one.at("next_cursor").get<std::string>());
    if (other.at("pending").empty()) continue;
    expect_on_the_way(one.at("pending").at(0), key(first));
    expect_on_the_way(other.at("pending").at(0), key(first + 1));
    EXPECT_EQ(other.at("next_cursor"), nullptr);
    seen = true;
  }
  EXPECT_TRUE(seen) << "none of " << stored << " blocks was pending";
  EXPECT_TRUE(eventually([&] { return page("").at("pending").empty(); }));
  EXPECT_TRUE(eventually([&] { return cache.count("pinned", "evictable") == stored; }));
  EXPECT_EQ(server.stop(), 0) << server.output();
}

// As above, for movements that clients ask for.
TEST(PendingTest, ListsWhatADrainAndATransferMove) {
  const fakes::TempDir folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"caches": [], "transfers":
    {"polling_interval_us": 1000000, "strategy": {"store": "polling"}}})";
  ServerProcess server({.flags = {"--config", config}});
  Rest rest(server.endpoint());
  for (const std::string way : {"drain", "copy", "move"}) {
    TestCache cache(rest, {.device = 64, .pinned = 64, .offload = "never"});
    bool seen = false;
    for (int n = 0; !seen && n < 64; ++n) {
      cache.store(n, "?tier=device");
      const Reply asked = way == "drain"
                              ? rest.post(cache.path("/drain"))
                              : rest.post(cache.path("/transfers"),
                                          {{"keys", keys(n, 1)}, {"to", "pinned"}, {"mode", way}});
      ASSERT_THAT(asked, has_status(202));
      const json pending = rest.get(cache.path("/pending")).document().at("pending");
      if (pending.empty()) continue;
      EXPECT_EQ(pending.back().at("key"), key(n));
      EXPECT_EQ(pending.back().at("from"), "device");
      EXPECT_EQ(pending.back().at("to"), "pinned");
      EXPECT_LE(pending.back().at("age_ms"), 60'000);
      seen = true;
    }
    EXPECT_TRUE(seen) << way;
    EXPECT_TRUE(eventually([&] {
      return rest.get(cache.path("/pending")).document().at("pending").empty();
    })) << way;
  }
  EXPECT_EQ(server.stop(), 0) << server.output();
}

}  // namespace
}  // namespace cairn::e2e
