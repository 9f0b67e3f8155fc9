// The options of every way to store a block, and the lists of leases and transfers.
#include "tests/e2e/support/served_test.hpp"

namespace cairn::e2e {
namespace {

using testing::ElementsAre;
using testing::MatchesRegex;

std::uint64_t little(const std::string& bytes, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = size; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

class OptionsTest : public ServedTest {
 protected:
  static std::string at(const json& lease, const std::string& rest = "") {
    return "/v1/leases/" + lease.get<std::string>() + rest;
  }
  // The listed block of key(n).
  json listed(TestCache& cache, int n) {
    const json blocks = rest_.get(cache.path("/blocks")).document().at("blocks");
    for (const json& one : blocks) {
      if (one.at("key") == key(n)) return one;
    }
    return nullptr;
  }
  Reply commit(TestCache& cache, const json& allocation, json block, const json& more = {}) {
    json body = {{"lease", allocation.at("lease")}, {"blocks", {std::move(block)}}};
    if (more.is_object()) body.update(more);
    return rest_.post(cache.path("/commit"), body);
  }
  Reply write(TestCache& cache, json header, int first, int count) {
    header["keys"] = keys(first, count);
    return rest_.post_bytes(cache.path("/write"), write_body(header, blocks(first, count)));
  }
  void write_slot(TestCache& cache, const json& allocation, int n) {
    EXPECT_TRUE(
        rest_
            .put_bytes(cache.data_path(allocation.at("blocks").at(0), allocation.at("lease")),
                       block(n))
            .ok());
  }
};

TEST_F(OptionsTest, PutTakesAllOptions) {
  TestCache cache(rest_, {.device = 4});
  cache.store(1,
              "?priority=7&metadata=%7B%22a%22%3A%5B1%5D%7D&if_exists=error&ttl_ms=600000&parent=" +
                  key(9));
  const json stored = listed(cache, 1);
  EXPECT_EQ(stored.at("priority"), 7);
  EXPECT_EQ(stored.at("metadata"), (json{{"a", {1}}}));
  EXPECT_EQ(stored.at("parent"), key(9));
  EXPECT_THAT(rest_.put_bytes(cache.key_path(2, "?priority=101"), block(2)),
              is_problem(400, "out_of_range"));
  EXPECT_THAT(rest_.put_bytes(cache.key_path(2, "?metadata=%5B%5D"), block(2)),
              is_problem(400, "malformed"));
  EXPECT_THAT(rest_.put_bytes(cache.key_path(2, "?if_exists=maybe"), block(2)),
              is_problem(400, "out_of_range"));
}

TEST_F(OptionsTest, BatchWriteTakesAllOptions) {
  TestCache cache(rest_, {.device = 4});
  ASSERT_THAT(
      write(cache,
            {{"priority", 8}, {"metadata", {{"b", 2}}}, {"ttl_ms", 600'000}, {"parent", key(9)}}, 1,
            2),
      has_status(200));
  for (int n = 1; n <= 2; ++n) {
    EXPECT_EQ(listed(cache, n).at("priority"), 8);
    EXPECT_EQ(listed(cache, n).at("metadata"), (json{{"b", 2}}));
  }
  EXPECT_EQ(listed(cache, 1).at("parent"), key(9));
  EXPECT_EQ(listed(cache, 2).at("parent"), key(1));
  EXPECT_THAT(write(cache, {{"parent", key(9)}, {"parents", {nullptr}}}, 3, 1),
              is_problem(400, "malformed"));
}

TEST_F(OptionsTest, CommitTakesAllOptions) {
  TestCache cache(rest_, {.device = 4});
  const json allocation = cache.allocate(1, "device");
  json one = TestCache::commit_block(allocation.at("blocks").at(0), 1);
  one.update(
      {{"priority", 9}, {"metadata", {{"c", 3}}}, {"parent", key(8)}, {"if_exists", "error"}});
  ASSERT_THAT(commit(cache, allocation, one), has_status(200));
  EXPECT_EQ(listed(cache, 1).at("priority"), 9);
  EXPECT_EQ(listed(cache, 1).at("metadata"), (json{{"c", 3}}));
}

TEST_F(OptionsTest, IfExistsErrorRefusesAnExistingKey) {
  TestCache cache(rest_, {.device = 8});
  cache.store(1);
  EXPECT_THAT(rest_.put_bytes(cache.key_path(1, "?if_exists=error"), block(2)),
              is_problem(409, "exists"));
  EXPECT_THAT(rest_.put_bytes(cache.key_path(1, "?if_exists=duplicate"), block(2)),
              has_status(200));
  EXPECT_THAT(write(cache, {{"if_exists", "error"}}, 0, 3), is_problem(409, "exists"));
  EXPECT_FALSE(cache.holds(0)) << "all or none";

  const json allocation = cache.allocate(2, "device");
  json fresh = TestCache::commit_block(allocation.at("blocks").at(0), 2);
  json old = TestCache::commit_block(allocation.at("blocks").at(1), 1);
  old["if_exists"] = "error";
  const auto both = [&] {
    return rest_.post(cache.path("/commit"),
                      {{"lease", allocation.at("lease")}, {"blocks", {fresh, old}}});
  };
  EXPECT_THAT(both(), is_problem(409, "exists"));
  EXPECT_FALSE(cache.holds(2)) << "nothing was committed";
  old["key"] = key(2);
  EXPECT_THAT(both(), is_problem(409, "exists")) << "the block before it has that key";
  old["key"] = key(3);
  EXPECT_THAT(both(), has_status(200)) << "the lease and its slots are unchanged";
  cache.expect_intact(1);
}

TEST_F(OptionsTest, CommitCanEndItsLease) {
  TestCache cache(rest_, {.device = 4});
  const json allocation = cache.allocate(2, "device");
  write_slot(cache, allocation, 1);
  json one = TestCache::commit_block(allocation.at("blocks").at(0), 1);
  json refused = one;
  refused["generation"] = one.at("generation").get<int>() + 1;
  EXPECT_THAT(commit(cache, allocation, refused, {{"release", true}}), is_problem(409));
  EXPECT_EQ(cache.counts().at("leases"), 1) << "nothing was committed";
  ASSERT_THAT(commit(cache, allocation, one, {{"release", true}}), has_status(200));
  EXPECT_EQ(cache.counts().at("leases"), 0);
  EXPECT_EQ(cache.count("device", "evictable"), 1);
  EXPECT_EQ(cache.count("device", "free"), 3);
  EXPECT_THAT(rest_.del(at(allocation.at("lease"))), is_problem(404, "unknown_lease"));
  cache.expect_intact(1);
}

TEST_F(OptionsTest, ReleaseHandsBlocksToAnotherLease) {
  TestCache cache(rest_, {.device = 4});
  cache.store(1);
  cache.store(2);
  const json both = cache.match(keys(1, 2), 30'000);
  const json other = cache.match(keys(1, 1), 30'000);
  const json second = both.at("blocks").at(1);
  ASSERT_THAT(rest_.post(at(both.at("lease"), "/release"),
                         {{"blocks", {second}}, {"to_lease", other.at("lease")}}),
              has_status(200));
  ASSERT_THAT(rest_.del(at(both.at("lease"))), has_status(200));
  EXPECT_EQ(cache.count("device", "committed"), 2) << "the other lease holds both";
  EXPECT_THAT(rest_.post(at(other.at("lease"), "/release"), {{"to_lease", other.at("lease")}}),
              is_problem(422, "impossible"));
  EXPECT_THAT(rest_.post(at(other.at("lease"), "/release"), {{"to_lease", both.at("lease")}}),
              is_problem(404, "unknown_lease"));
  ASSERT_THAT(rest_.del(at(other.at("lease"))), has_status(200));
  EXPECT_EQ(cache.count("device", "evictable"), 2);
}

TEST_F(OptionsTest, ReleaseHandsOverUncommittedBlocksToo) {
  TestCache cache(rest_, {.device = 4});
  cache.store(5);
  const json from = cache.allocate(1, "device");
  write_slot(cache, from, 1);
  const json to = cache.match(keys(5, 1), 30'000);
  ASSERT_THAT(rest_.post(at(from.at("lease"), "/release"), {{"to_lease", to.at("lease")}}),
              has_status(200));
  EXPECT_THAT(rest_.del(at(from.at("lease"))), is_problem(404, "unknown_lease"))
      << "the lease has ended";
  ASSERT_THAT(commit(cache, to, TestCache::commit_block(from.at("blocks").at(0), 1)),
              has_status(200));
  ASSERT_THAT(rest_.del(at(to.at("lease"))), has_status(200));
  cache.expect_intact(1);
  EXPECT_EQ(cache.count("device", "evictable"), 2);
}

TEST_F(OptionsTest, EpochCountsChangesOfMetadata) {
  TestCache cache(rest_, {.device = 4});
  cache.store(1);
  EXPECT_EQ(listed(cache, 1).at("epoch"), 1);
  for (int change = 1; change <= 2; ++change) {
    ASSERT_TRUE(rest_.put(cache.key_path(1) + "/metadata", {{"n", change}}).ok());
    EXPECT_EQ(listed(cache, 1).at("epoch"), 1 + change);
  }
  ASSERT_TRUE(rest_.del(cache.key_path(1)).ok());
  cache.store(1);
  EXPECT_EQ(listed(cache, 1).at("epoch"), 1) << "another block";
}

TEST_F(OptionsTest, ListsLeasesAndTheirBlocks) {
  TestCache cache(rest_, {.device = 4, .pinned = 4});
  cache.store(1);
  const json matched = cache.match(keys(1, 1), 30'000);
  const json allocated = cache.allocate(3, "pinned", 60'000);
  const json all = rest_.get(cache.path("/leases")).document();
  ASSERT_EQ(all.at("leases").size(), 2U);
  EXPECT_TRUE(all.at("next_cursor").is_null());
  const json& first = all.at("leases").at(0);
  EXPECT_EQ(first.at("lease"), matched.at("lease"));
  EXPECT_TRUE(first.at("token").is_null());
  EXPECT_EQ(first.at("blocks"), (json{{"device", 1}}));
  EXPECT_NEAR(first.at("expires_at_ms").get<double>(), matched.at("expires_at_ms").get<double>(),
              1);
  EXPECT_EQ(all.at("leases").at(1).at("lease"), allocated.at("lease"));
  EXPECT_EQ(all.at("leases").at(1).at("blocks"), (json{{"pinned", 3}}));

  const json page = rest_.get(cache.path("/leases?limit=1")).document();
  EXPECT_EQ(page.at("leases").size(), 1U);
  const std::string cursor = page.at("next_cursor");
  const json rest = rest_.get(cache.path("/leases?limit=1&cursor=" + cursor)).document();
  EXPECT_EQ(rest.at("leases").at(0).at("lease"), allocated.at("lease"));
  EXPECT_TRUE(rest.at("next_cursor").is_null());

  ASSERT_TRUE(rest_.del(at(allocated.at("lease"))).ok());
  EXPECT_EQ(rest_.get(cache.path("/leases")).document().at("leases").size(), 1U);
  EXPECT_THAT(rest_.get("/v1/caches/none/leases"), is_problem(404, "unknown_cache"));
}

TEST_F(OptionsTest, ListsTransfersByCacheAndState) {
  TestCache cache(rest_, {.device = 4, .disk = 4});
  TestCache other(rest_, {.device = 4, .disk = 4});
  for (TestCache* one : {&cache, &other}) {
    one->store(1);
    one->transfer({key(1)}, "disk");
  }
  cache.transfer({key(1)}, "device");
  const auto list = [&](const std::string& query) {
    return rest_.get("/v1/transfers" + query).document();
  };
  const json of_cache = list("?state=done&cache=" + cache.name());
  ASSERT_EQ(of_cache.at("transfers").size(), 2U);
  EXPECT_EQ(of_cache.at("transfers").at(0).at("cache"), cache.name());
  EXPECT_EQ(of_cache.at("transfers").at(0).at("blocks_done"), 1);
  EXPECT_EQ(of_cache.at("transfers").at(0).at("blocks_failed"), 0);
  EXPECT_TRUE(list("?state=running&cache=" + cache.name()).at("transfers").empty());
  const json page = list("?limit=1&cache=" + cache.name());
  const std::string cursor = page.at("next_cursor");
  const json rest = list("?cache=" + cache.name() + "&cursor=" + cursor);
  ASSERT_EQ(rest.at("transfers").size(), 1U);
  EXPECT_EQ(rest.at("transfers").at(0).at("transfer"),
            of_cache.at("transfers").at(1).at("transfer"));
  EXPECT_THAT(rest_.get("/v1/transfers?state=lost"), is_problem(400, "out_of_range"));
}

TEST_F(OptionsTest, PacksTheRepliesOfMatchAndAllocate) {
  TestCache cache(rest_, {.device = 4, .pinned = 4});
  cache.store(1, "?tier=pinned");
  const auto packed = [&](const std::string& route, const json& body) {
    return rest_.send({.method = "POST",
                       .target = cache.path(route),
                       .body = body.dump(),
                       .content_type = "application/json",
                       .headers = {{"Accept", "application/octet-stream"}}});
  };
  const Reply found = packed("/match", {{"keys", keys(1, 2)}, {"lease_ms", 30'000}});
  ASSERT_THAT(found, has_status(200));
  EXPECT_EQ(found.header("Content-Type"), "application/octet-stream");
  ASSERT_EQ(found.body.size(), 32U + 16U);
  const json same = cache.match(keys(1, 1), 0).at("blocks").at(0);
  EXPECT_EQ(little(found.body, 0, 4), 1U);
  EXPECT_EQ(little(found.body, 4, 4), 0U);
  EXPECT_EQ(little(found.body, 32, 4), 1U) << "pinned";
  EXPECT_EQ(little(found.body, 36, 4), same.at("slot").get<std::uint64_t>());
  EXPECT_EQ(little(found.body, 40, 8), same.at("generation").get<std::uint64_t>());
  const json leases = rest_.get(cache.path("/leases")).document().at("leases");
  ASSERT_EQ(leases.size(), 1U);
  EXPECT_EQ(from_hex(leases.at(0).at("lease")), found.body.substr(8, 16))
      << "the lease is the bytes of its text";
  EXPECT_NEAR(static_cast<double>(little(found.body, 24, 8)),
              leases.at(0).at("expires_at_ms").get<double>(), 1);

  const Reply none = packed("/match", {{"keys", keys(7, 1)}});
  EXPECT_EQ(none.body, std::string(32, '\0'));
  const Reply room = packed("/allocate", {{"count", 2}, {"tier", "device"}});
  ASSERT_EQ(room.body.size(), 32U + 2 * 16U);
  EXPECT_EQ(little(room.body, 0, 4), 2U);
  EXPECT_EQ(little(room.body, 32, 4), 0U) << "device";
  EXPECT_THAT(packed("/allocate", {{"count", 0}}), is_problem(400, "out_of_range"));
}

TEST_F(OptionsTest, LocationNamesTheNewResource) {
  TestCache cache(rest_, {.device = 2, .disk = 2});
  const Reply made = rest_.put("/v1/caches/located", cache_body({.device = 1}));
  EXPECT_THAT(made, has_status(201));
  EXPECT_EQ(made.header("Location"), "/v1/caches/located");
  EXPECT_EQ(rest_.put_bytes(cache.key_path(1), block(1)).header("Location"), cache.key_path(1));
  const Reply moving = rest_.post(cache.path("/transfers"), {{"keys", {key(1)}}, {"to", "disk"}});
  if (moving.status == 202) {
    EXPECT_EQ(moving.header("Location"),
              "/v1/transfers/" + moving.document().at("transfer").get<std::string>());
  }
  EXPECT_TRUE(rest_.del("/v1/caches/located").ok());
}

TEST_F(OptionsTest, EveryReplyHasADate) {
  for (const char* target : {"/healthz", "/v1/caches", "/nothing"}) {
    EXPECT_THAT(rest_.get(target).header("Date"),
                MatchesRegex("[A-Z][a-z][a-z], [0-9][0-9] [A-Z][a-z][a-z] [0-9]+ "
                             "[0-9][0-9]:[0-9][0-9]:[0-9][0-9] GMT"))
        << target;
  }
}

}  // namespace
}  // namespace cairn::e2e
