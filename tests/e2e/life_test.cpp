#include "tests/e2e/support/served_test.hpp"

// A block's life: matched, allocated, written, committed, leased, released.
namespace cairn::e2e {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class LifeTest : public ServedTest {
 protected:
  static std::string lease_path(const json& lease, const std::string& rest = "") {
    return "/v1/leases/" + lease.get<std::string>() + rest;
  }
  // Commits one block; returns its status word, or the reply's code.
  std::string commit(TestCache& cache, const json& lease, const json& block_body) {
    const Reply reply =
        rest_.post(cache.path("/commit"), {{"lease", lease}, {"blocks", {block_body}}});
    if (!reply.ok()) return reply.code();
    return reply.document().at("blocks").at(0).at("status");
  }
  // Allocates one slot, writes block(n) and commits it under key(n); returns the allocation.
  json store_through_slot(TestCache& cache, int n, const std::string& tier) {
    json allocation = cache.allocate(1, tier);
    const json& handle = allocation.at("blocks").at(0);
    EXPECT_TRUE(rest_.put_bytes(cache.data_path(handle, allocation.at("lease")), block(n)).ok());
    EXPECT_EQ(commit(cache, allocation.at("lease"), TestCache::commit_block(handle, n)),
              "committed");
    return allocation;
  }
};

class LifeOnTierTest : public LifeTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Tiers, LifeOnTierTest, testing::ValuesIn(kTierNames),
                         [](const auto& tier) { return std::string(tier.param); });

TEST_P(LifeOnTierTest, GoesFromMissThroughAllocationToHit) {
  TestCache cache(rest_, {.device = 4, .pinned = 4, .disk = 4});
  const auto before = cache.counts();
  const json miss = cache.match(keys(1, 2), 30'000);
  EXPECT_EQ(miss.at("matched"), 0);
  EXPECT_TRUE(miss.at("lease").is_null());
  EXPECT_THAT(miss.at("blocks"), IsEmpty());

  const json allocation = cache.allocate(2, GetParam());
  const json lease = allocation.at("lease");
  json committed = json::array();
  for (int i = 0; i < 2; ++i) {
    const json& handle = allocation.at("blocks").at(static_cast<std::size_t>(i));
    EXPECT_EQ(handle.at("tier"), GetParam());
    EXPECT_TRUE(rest_.put_bytes(cache.data_path(handle, lease), block(1 + i)).ok());
    committed.push_back(TestCache::commit_block(handle, 1 + i));
  }
  const Reply commit_reply =
      rest_.post(cache.path("/commit"), {{"lease", lease}, {"blocks", committed}});
  EXPECT_THAT(commit_reply, has_status(200));
  const json commit_body = commit_reply.document();
  for (const json& one : commit_body.at("blocks")) {
    EXPECT_EQ(one.at("status"), "committed");
  }
  EXPECT_TRUE(rest_.del(lease_path(lease)).ok());

  const json hit = cache.match(keys(1, 3), 30'000);
  EXPECT_EQ(hit.at("matched"), 2);
  EXPECT_EQ(hit.at("blocks").at(1).at("key"), key(2));
  EXPECT_EQ(hit.at("blocks").at(1).at("tier"), GetParam());
  EXPECT_EQ(hit.at("blocks").at(1).at("slot"), committed.at(1).at("slot"));
  EXPECT_EQ(hit.at("blocks").at(1).at("generation"), committed.at(1).at("generation"));
  EXPECT_EQ(cache.expect_intact(1), GetParam());
  EXPECT_EQ(cache.expect_intact(2), GetParam());
  EXPECT_TRUE(rest_.del(lease_path(hit.at("lease"))).ok());

  EXPECT_TRUE(rest_.post(cache.path("/clear")).ok());
  EXPECT_EQ(cache.counts(), before);
}

TEST_P(LifeOnTierTest, ReadsAnUnwrittenBlockAsZeros) {
  TestCache cache(rest_, {.device = 1, .pinned = 1, .disk = 1});
  // The earlier block has left its bytes in the slot.
  cache.store(1, std::string("?tier=") + GetParam());
  EXPECT_TRUE(rest_.del(cache.key_path(1)).ok());
  const json allocation = cache.allocate(1, GetParam());
  EXPECT_EQ(commit(cache, allocation.at("lease"),
                   TestCache::commit_block(allocation.at("blocks").at(0), 2)),
            "committed");
  EXPECT_TRUE(rest_.get(cache.key_path(2)).body == std::string(kBlockBytes, '\0'));
}

TEST_P(LifeOnTierTest, WritesABlockRegionByRegion) {
  TestCache cache(rest_, {.device = 1, .pinned = 1, .disk = 1, .layout = "second"});
  const json allocation = cache.allocate(1, GetParam());
  const json& handle = allocation.at("blocks").at(0);
  for (std::size_t layer = kLayers; layer-- > 0;) {
    for (std::size_t outer = 0; outer < kOuter; ++outer) {
      const std::string path =
          cache.data_path(handle, allocation.at("lease"),
                          "&layer=" + std::to_string(layer) + "&outer=" + std::to_string(outer));
      EXPECT_TRUE(rest_.put_bytes(path, region(1, layer, outer)).ok());
    }
  }
  EXPECT_EQ(commit(cache, allocation.at("lease"), TestCache::commit_block(handle, 1)), "committed");
  cache.expect_intact(1);
}

TEST_P(LifeOnTierTest, ReadsUnwrittenRegionsAsZeros) {
  TestCache cache(rest_, {.device = 1, .pinned = 1, .disk = 1});
  cache.store(1, std::string("?tier=") + GetParam());
  EXPECT_TRUE(rest_.del(cache.key_path(1)).ok());
  const json allocation = cache.allocate(1, GetParam());
  const json& handle = allocation.at("blocks").at(0);
  EXPECT_TRUE(rest_
                  .put_bytes(cache.data_path(handle, allocation.at("lease"), "&layer=1&outer=1"),
                             region(2, 1, 1))
                  .ok());
  EXPECT_EQ(commit(cache, allocation.at("lease"), TestCache::commit_block(handle, 2)), "committed");
  std::string want(kBlockBytes, '\0');
  want.replace((kOuter + 1) * kRegionBytes, kRegionBytes, region(2, 1, 1));
  EXPECT_TRUE(rest_.get(cache.key_path(2)).body == want);
}

TEST_F(LifeTest, MatchStopsAtTheFirstMiss) {
  TestCache cache(rest_, {.device = 8});
  cache.store(1);
  cache.store(2);
  cache.store(4);
  const json match = cache.match(keys(1, 4), 0);
  EXPECT_EQ(match.at("matched"), 2);
  EXPECT_EQ(match.at("blocks").size(), 2U);
  EXPECT_EQ(cache.match(keys(3, 2), 0).at("matched"), 0);
}

TEST_F(LifeTest, ZeroLeaseMatchesWithoutPinning) {
  TestCache cache(rest_, {.device = 2});
  cache.store(1);
  const json match = cache.match(keys(1, 1), 0);
  EXPECT_EQ(match.at("matched"), 1);
  EXPECT_TRUE(match.at("lease").is_null());
  EXPECT_EQ(match.at("blocks").at(0).at("tier"), "device");
  EXPECT_EQ(cache.counts().at("leases"), 0);
  EXPECT_EQ(cache.count("device", "evictable"), 1);
}

TEST_F(LifeTest, AcceptsKeysInEitherCaseAndReturnsLowerCase) {
  TestCache cache(rest_, {.device = 2});
  ASSERT_THAT(rest_.put_bytes(cache.path("/keys/ABCDEF01"), block(1)), has_status(201));
  const json match = cache.match({"abCDEF01"}, 0);
  EXPECT_EQ(match.at("matched"), 1);
  EXPECT_EQ(match.at("blocks").at(0).at("key"), "abcdef01");
}

TEST_F(LifeTest, DistinguishesKeysWithACommonPrefix) {
  TestCache cache(rest_, {.device = 8});
  const std::vector<std::string> similar = {"00", "0000", "000000", std::string(126, '0'),
                                            std::string(128, '0')};
  for (std::size_t i = 0; i < similar.size(); ++i) {
    ASSERT_THAT(rest_.put_bytes(cache.path("/keys/" + similar[i]), block(static_cast<int>(i))),
                has_status(201));
  }
  for (std::size_t i = 0; i < similar.size(); ++i) {
    EXPECT_TRUE(rest_.get(cache.path("/keys/" + similar[i])).body == block(static_cast<int>(i)));
  }
  EXPECT_EQ(cache.match(similar, 0).at("matched"), similar.size());
}

TEST_F(LifeTest, MatchesThePackedForm) {
  TestCache cache(rest_, {.device = 4});
  cache.store(1);
  cache.store(2);
  const Reply reply =
      rest_.post_bytes(cache.path("/match?key_bytes=16&lease_ms=30000"), packed(keys(1, 3)));
  ASSERT_THAT(reply, has_status(200));
  EXPECT_EQ(reply.document().at("matched"), 2);
  EXPECT_EQ(reply.document().at("blocks").at(1).at("key"), key(2));
  EXPECT_EQ(cache.count("device", "committed"), 2);
  EXPECT_TRUE(rest_.del(lease_path(reply.document().at("lease"))).ok());
  EXPECT_THAT(rest_.post_bytes(cache.path("/match?key_bytes=16"), packed({key(1), "00"})),
              is_problem(400));
}

TEST_F(LifeTest, RepliesWithHandlesNameTheirMemory) {
  TestCache cache(rest_, {.pinned = 4});
  const auto memories = [&] {
    const std::string match = cache.path("/match?key_bytes=16&lease_ms=0");
    std::set<std::string> named;
    for (const Reply& reply :
         {rest_.post_bytes(match, packed({key(1)})),
          rest_.post(cache.path("/match"), {{"keys", json::array({key(1)})}, {"lease_ms", 0}}),
          rest_.send({.method = "POST",
          .target = cache.path("/allocate"),
          .body = R"({"count": 1, "lease_ms": 1})",
          .content_type = "application/json",
          .headers = {{"Accept", "application/octet-stream"}}}),
          rest_.post(cache.path("/allocate"), {{"count", 1}, {"lease_ms", 1}}),
          rest_.post(cache.path("/tiers/pinned/export"))}) {
      EXPECT_THAT(reply, has_status(200));
      named.insert(reply.header("Cairn-Memory"));
    }
    return named;
  };
  const std::set<std::string> first = memories();
  EXPECT_THAT(first, ElementsAre(testing::MatchesRegex("[0-9a-f]{16}")));
  EXPECT_EQ(memories(), first);
  TestCache other(rest_, {.pinned = 4});
  EXPECT_NE(rest_.post(other.path("/tiers/pinned/export")).header("Cairn-Memory"), *first.begin());
}

TEST_F(LifeTest, SpeaksMessagePack) {
  TestCache cache(rest_, {.device = 4});
  cache.store(1);
  const auto ask = [&](const std::string& target, const json& body) {
    const auto bytes = json::to_msgpack(body);
    const Reply reply = rest_.send({"POST",
                                    target,
                                    {bytes.begin(), bytes.end()},
                                    "application/msgpack",
                                    {{"Accept", "application/msgpack"}}});
    EXPECT_TRUE(reply.ok()) << testing::PrintToString(reply);
    EXPECT_EQ(reply.header("Content-Type"), "application/msgpack");
    return json::from_msgpack(reply.body);
  };
  const json match = ask(cache.path("/match"), {{"keys", keys(1, 2)}, {"lease_ms", 30'000}});
  EXPECT_EQ(match.at("matched"), 1);
  EXPECT_EQ(match.at("blocks").at(0).at("key"), key(1));
  ask(lease_path(match.at("lease"), "/renew"), {{"lease_ms", 60'000}});
  const json allocation = ask(cache.path("/allocate"), {{"count", 1}, {"tier", "device"}});
  const json& handle = allocation.at("blocks").at(0);
  EXPECT_TRUE(rest_.put_bytes(cache.data_path(handle, allocation.at("lease")), block(2)).ok());
  const json done = ask(cache.path("/commit"), {{"lease", allocation.at("lease")},
                                                {"blocks", {TestCache::commit_block(handle, 2)}}});
  EXPECT_EQ(done.at("blocks").at(0).at("status"), "committed");
  cache.expect_intact(2);
}

TEST_F(LifeTest, AcceptHeaderSelectsMessagePack) {
  TestCache cache(rest_, {.device = 1});
  const Reply reply =
      rest_.send({.target = cache.path(), .headers = {{"Accept", "application/msgpack"}}});
  EXPECT_EQ(reply.header("Content-Type"), "application/msgpack");
  EXPECT_EQ(json::from_msgpack(reply.body).at("block_bytes"), kBlockBytes);
}

TEST_F(LifeTest, AllocatesAllOrNone) {
  TestCache cache(rest_, {.device = 4});
  const json allocation = cache.allocate(3, "device");
  EXPECT_EQ(allocation.at("blocks").size(), 3U);
  EXPECT_THAT(rest_.post(cache.path("/allocate"), {{"count", 2}, {"tier", "device"}}),
              is_problem(507, "no_capacity"));
  EXPECT_THAT(cache.counts(), testing::Contains(testing::Pair("device/allocated", 3)));
  EXPECT_EQ(cache.count("device", "free"), 1);
  EXPECT_EQ(cache.counts().at("leases"), 1);
}

TEST_F(LifeTest, NeverEvictsALeasedBlockForAnAllocation) {
  TestCache cache(rest_, {.device = 4});
  for (int n = 0; n < 4; ++n) cache.store(n);
  const json match = cache.match(keys(0, 3), 30'000);
  EXPECT_THAT(rest_.post(cache.path("/allocate"), {{"count", 2}, {"tier", "device"}}),
              is_problem(507, "no_capacity"));
  EXPECT_TRUE(cache.holds(3)) << "an impossible allocation evicts nothing";
  EXPECT_EQ(cache.allocate(1, "device").at("blocks").size(), 1U);
  EXPECT_FALSE(cache.holds(3));
  for (int n = 0; n < 3; ++n) cache.expect_intact(n);
}

TEST_F(LifeTest, EvictsTheLowerPriorityFirst) {
  TestCache cache(rest_, {.device = 3});
  for (const auto& [n, priority] : {std::pair(1, 90), std::pair(2, 10), std::pair(3, 50)}) {
    const json allocation = rest_
                                .post(cache.path("/allocate"),
                                      {{"count", 1}, {"tier", "device"}, {"priority", priority}})
                                .document();
    const json& handle = allocation.at("blocks").at(0);
    EXPECT_TRUE(rest_.put_bytes(cache.data_path(handle, allocation.at("lease")), block(n)).ok());
    commit(cache, allocation.at("lease"), TestCache::commit_block(handle, n));
    EXPECT_TRUE(rest_.del(lease_path(allocation.at("lease"))).ok());
  }
  const json one = cache.allocate(1, "device");
  EXPECT_FALSE(cache.holds(2));
  const json two = cache.allocate(1, "device");
  EXPECT_FALSE(cache.holds(3));
  EXPECT_TRUE(cache.holds(1));
}

TEST_F(LifeTest, EvictsTheLeastRecentlyUsedFirst) {
  TestCache cache(rest_, {.device = 3});
  for (int n = 0; n < 3; ++n) cache.store(n);
  cache.match(keys(0, 1), 0);
  static_cast<void>(cache.allocate(1, "device"));
  EXPECT_FALSE(cache.holds(1));
  EXPECT_TRUE(cache.holds(0));
  EXPECT_TRUE(cache.holds(2));
}

TEST_F(LifeTest, EvictsAPrefixFromItsTail) {
  TestCache cache(rest_, {.device = 4});
  cache.store_prefix(0, 4, "device");
  for (int left = 3; left > 0; --left) {
    static_cast<void>(cache.allocate(1, "device"));
    EXPECT_EQ(cache.match(keys(0, 4), 0).at("matched"), left);
  }
}

TEST_F(LifeTest, HidesABlockUntilItsCommit) {
  TestCache cache(rest_, {.device = 2});
  const json allocation = cache.allocate(1, "device");
  const json& handle = allocation.at("blocks").at(0);
  EXPECT_TRUE(rest_.put_bytes(cache.data_path(handle, allocation.at("lease")), block(1)).ok());
  EXPECT_EQ(cache.match(keys(1, 1), 0).at("matched"), 0);
  EXPECT_THAT(rest_.get(cache.key_path(1)), is_problem(404, "unknown_key"));
  EXPECT_EQ(commit(cache, allocation.at("lease"), TestCache::commit_block(handle, 1)), "committed");
  EXPECT_EQ(cache.match(keys(1, 1), 0).at("matched"), 1);
}

TEST_F(LifeTest, RefusesAWriteIntoACommittedBlock) {
  TestCache cache(rest_, {.device = 2});
  const json allocation = store_through_slot(cache, 1, "device");
  const Reply reply = rest_.put_bytes(
      cache.data_path(allocation.at("blocks").at(0), allocation.at("lease")), block(2));
  EXPECT_THAT(reply, is_problem(409, "state_conflict"));
  cache.expect_intact(1);
}

TEST_F(LifeTest, DuplicateCommitKeepsTheFirstBlockAndFreesTheSlot) {
  TestCache cache(rest_, {.device = 4});
  cache.store(1);
  const json allocation = cache.allocate(1, "device");
  const json& handle = allocation.at("blocks").at(0);
  EXPECT_TRUE(rest_.put_bytes(cache.data_path(handle, allocation.at("lease")), block(2)).ok());
  EXPECT_EQ(commit(cache, allocation.at("lease"), TestCache::commit_block(handle, 1)), "duplicate");
  cache.expect_intact(1);
  EXPECT_EQ(cache.count("device", "free"), 3);
  EXPECT_EQ(cache.count("device", "allocated"), 0);
  // The handle is no longer valid.
  EXPECT_THAT(rest_.put_bytes(cache.data_path(handle, allocation.at("lease")), block(2)),
              is_problem(409));
}

TEST_F(LifeTest, RepeatedKeyInOneCommitIsADuplicate) {
  TestCache cache(rest_, {.device = 4});
  const json allocation = cache.allocate(2, "device");
  const json& handles = allocation.at("blocks");
  EXPECT_TRUE(
      rest_.put_bytes(cache.data_path(handles.at(0), allocation.at("lease")), block(1)).ok());
  const Reply reply = rest_.post(
      cache.path("/commit"),
      {{"lease", allocation.at("lease")},
       {"blocks",
        {TestCache::commit_block(handles.at(0), 1), TestCache::commit_block(handles.at(1), 1)}}});
  ASSERT_THAT(reply, has_status(200));
  EXPECT_EQ(reply.document().at("blocks").at(0).at("status"), "committed");
  EXPECT_EQ(reply.document().at("blocks").at(1).at("status"), "duplicate");
  cache.expect_intact(1);
  EXPECT_EQ(cache.count("device", "free"), 3);
}

TEST_F(LifeTest, CommitsAllOrNone) {
  TestCache cache(rest_, {.device = 4});
  const json allocation = cache.allocate(2, "device");
  const json good = TestCache::commit_block(allocation.at("blocks").at(0), 1);
  json stale = TestCache::commit_block(allocation.at("blocks").at(1), 2);
  stale["generation"] = 99;
  EXPECT_THAT(rest_.post(cache.path("/commit"),
                         {{"lease", allocation.at("lease")}, {"blocks", {good, stale}}}),
              is_problem(409, "stale_generation"));
  EXPECT_FALSE(cache.holds(1));
  EXPECT_EQ(cache.count("device", "allocated"), 2);
  EXPECT_EQ(commit(cache, allocation.at("lease"), good), "committed");
}

TEST_F(LifeTest, AcceptsAMissingParent) {
  TestCache cache(rest_, {.device = 4});
  const json allocation = cache.allocate(1, "device");
  json child = TestCache::commit_block(allocation.at("blocks").at(0), 1);
  child["parent"] = key(1000);
  child["metadata"] = {{"model", "m"}};
  EXPECT_EQ(commit(cache, allocation.at("lease"), child), "committed");
  EXPECT_EQ(rest_.get(cache.key_path(1) + "/metadata").document(), json({{"model", "m"}}));
  EXPECT_FALSE(cache.holds(1000));
}

TEST_F(LifeTest, EvictionHonoursAParentStoredLater) {
  TestCache cache(rest_, {.device = 3});
  cache.store(2, "?parent=" + key(1));
  cache.store(1);
  cache.match(keys(2, 1), 0);  // the child is the most recent
  cache.store(3);
  static_cast<void>(cache.allocate(1, "device"));
  EXPECT_TRUE(cache.holds(1)) << "a parent went before its child";
}

}  // namespace
}  // namespace cairn::e2e
