#include <openssl/sha.h>

#include "base/hex.hpp"
#include "tests/e2e/support/served_test.hpp"

// Leases and how they end; and matching by tokens.
namespace cairn::e2e {
namespace {

class LeaseTest : public ServedTest {
 protected:
  // Short enough to wait for, and long enough for the next request.
  static constexpr std::uint32_t kShortMs = 300;

  std::string at(const json& lease, const std::string& rest = "") {
    return "/v1/leases/" + lease.get<std::string>() + rest;
  }
  static std::int64_t now_ms() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

TEST_F(LeaseTest, PinsMatchedBlocksUntilItIsDeleted) {
  TestCache cache(rest_, {.device = 2});
  cache.store(1);
  const json lease = cache.match(keys(1, 1), 30'000).at("lease");
  EXPECT_EQ(cache.count("device", "committed"), 1);
  EXPECT_EQ(cache.metric("cairn_leased_blocks", "tier=\"device\""), 1);
  EXPECT_TRUE(rest_.del(at(lease)).ok());
  EXPECT_EQ(cache.count("device", "evictable"), 1);
  EXPECT_EQ(cache.counts().at("leases"), 0);
  EXPECT_EQ(cache.metric("cairn_leased_blocks", "tier=\"device\""), 0);
  cache.expect_intact(1);
}

TEST_F(LeaseTest, ExpiresAndReleasesItsBlocks) {
  TestCache cache(rest_, {.device = 4});
  cache.store(1);
  const json lease = cache.match(keys(1, 1), kShortMs).at("lease");
  static_cast<void>(cache.allocate(2, "device", kShortMs));
  EXPECT_TRUE(eventually([&] { return cache.counts().at("leases") == 0; }));
  EXPECT_EQ(cache.count("device", "evictable"), 1);
  EXPECT_EQ(cache.count("device", "free"), 3) << "uncommitted slots are freed";
  EXPECT_EQ(cache.metric("cairn_lease_expirations_total"), 2);
  EXPECT_THAT(rest_.post(at(lease, "/renew"), {{"lease_ms", 1000}}),
              is_problem(410, "lease_expired"));
  EXPECT_THAT(rest_.del(at(lease)), is_problem(410, "lease_expired"));
  cache.expect_intact(1);
}

TEST_F(LeaseTest, ExpiredLeaseRefusesWritesAndCommits) {
  TestCache cache(rest_, {.device = 4});
  const json allocation = cache.allocate(1, "device", kShortMs);
  const json& handle = allocation.at("blocks").at(0);
  ASSERT_TRUE(eventually([&] { return cache.counts().at("leases") == 0; }));
  EXPECT_THAT(rest_.put_bytes(cache.data_path(handle, allocation.at("lease")), block(1)),
              is_problem(410, "lease_expired"));
  EXPECT_THAT(rest_.post(cache.path("/commit"), {{"lease", allocation.at("lease")},
                                                 {"blocks", {TestCache::commit_block(handle, 1)}}}),
              is_problem(410, "lease_expired"));
  EXPECT_FALSE(cache.holds(1));
}

TEST_F(LeaseTest, MakesRoomForAnAllocationWhenItExpires) {
  TestCache cache(rest_, {.device = 2});
  static_cast<void>(cache.allocate(2, "device", kShortMs));
  EXPECT_TRUE(eventually([&] {
    return rest_.post(cache.path("/allocate"), {{"count", 2}, {"tier", "device"}}).ok();
  }));
}

TEST_F(LeaseTest, RenewalExtendsTheLease) {
  TestCache cache(rest_, {.device = 2});
  cache.store(1);
  const json match = cache.match(keys(1, 1), kShortMs);
  const Reply renewed = rest_.post(at(match.at("lease"), "/renew"), {{"lease_ms", 60'000}});
  ASSERT_THAT(renewed, has_status(200));
  const auto ends = renewed.document().at("expires_at_ms").get<std::int64_t>();
  EXPECT_GT(ends, match.at("expires_at_ms").get<std::int64_t>());
  // A later lease of the original length expires first.
  static_cast<void>(cache.allocate(1, "device", kShortMs));
  ASSERT_TRUE(eventually([&] { return cache.metric("cairn_lease_expirations_total") == 1; }));
  EXPECT_EQ(cache.counts().at("leases"), 1);
  EXPECT_EQ(cache.count("device", "committed"), 1);
}

TEST_F(LeaseTest, ReportsItsEndInUnixMilliseconds) {
  TestCache cache(rest_, {.device = 2});
  const std::int64_t before = now_ms();
  const json allocation = cache.allocate(1, "device", 50'000);
  const auto ends = allocation.at("expires_at_ms").get<std::int64_t>();
  EXPECT_GE(ends, before + 50'000 - 1);
  EXPECT_LE(ends, now_ms() + 50'000 + 1);
}

TEST_F(LeaseTest, UsesTheDefaultTimeOfTheCache) {
  json body = cache_body({.device = 2});
  body["default_lease_ms"] = 77'000;
  TestCache cache = TestCache::made_of(rest_, body);
  const std::int64_t before = now_ms();
  const json allocation =
      rest_.post(cache.path("/allocate"), {{"count", 1}, {"tier", "device"}}).document();
  const auto ends = allocation.at("expires_at_ms").get<std::int64_t>();
  EXPECT_GE(ends, before + 77'000 - 1);
  EXPECT_LE(ends, now_ms() + 77'000 + 1);
}

TEST_F(LeaseTest, ReleasesSomeOfItsBlocks) {
  TestCache cache(rest_, {.device = 4});
  for (int n = 0; n < 3; ++n) cache.store(n);
  const json match = cache.match(keys(0, 3), 30'000);
  const json& blocks = match.at("blocks");
  const json& handle = blocks.at(1);  // with its key, as the server returned it
  EXPECT_TRUE(rest_.post(at(match.at("lease"), "/release"), {{"blocks", {handle}}}).ok());
  EXPECT_EQ(cache.count("device", "committed"), 2);
  EXPECT_EQ(cache.count("device", "evictable"), 1);
  EXPECT_EQ(cache.counts().at("leases"), 1);
  EXPECT_THAT(rest_.post(at(match.at("lease"), "/release"), {{"blocks", {handle}}}),
              is_problem(409))
      << "the lease no longer holds it";
  EXPECT_TRUE(rest_.del(at(match.at("lease"))).ok());
  EXPECT_EQ(cache.count("device", "evictable"), 3);
}

TEST_F(LeaseTest, FreesReleasedUncommittedSlots) {
  TestCache cache(rest_, {.device = 4});
  const json allocation = cache.allocate(3, "device");
  EXPECT_TRUE(rest_
                  .post(at(allocation.at("lease"), "/release"),
                        {{"blocks", {allocation.at("blocks").at(2)}}})
                  .ok());
  EXPECT_EQ(cache.count("device", "free"), 2);
  EXPECT_TRUE(rest_.del(at(allocation.at("lease"))).ok());
  EXPECT_EQ(cache.count("device", "free"), 4);
}

TEST_F(LeaseTest, ReleasesAllOrNone) {
  TestCache cache(rest_, {.device = 4});
  const json allocation = cache.allocate(2, "device");
  json stale = allocation.at("blocks").at(1);
  stale["generation"] = stale["generation"].get<int>() + 1;
  EXPECT_THAT(rest_.post(at(allocation.at("lease"), "/release"),
                         {{"blocks", {allocation.at("blocks").at(0), stale}}}),
              is_problem(409, "stale_generation"));
  EXPECT_EQ(cache.count("device", "allocated"), 2);
}

TEST_F(LeaseTest, BlockStaysPinnedUntilItsLastLeaseEnds) {
  TestCache cache(rest_, {.device = 1});
  cache.store(1);
  const json first = cache.match(keys(1, 1), 30'000).at("lease");
  const json second = cache.match(keys(1, 1), 30'000).at("lease");
  EXPECT_NE(first, second);
  EXPECT_TRUE(rest_.del(at(first)).ok());
  EXPECT_THAT(rest_.post(cache.path("/allocate"), {{"count", 1}, {"tier", "device"}}),
              is_problem(507, "no_capacity"));
  EXPECT_TRUE(rest_.del(at(second)).ok());
  EXPECT_EQ(cache.allocate(1, "device").at("blocks").size(), 1U);
}

TEST_F(LeaseTest, ReportsAnUnknownOrDeletedLease) {
  TestCache cache(rest_, {.device = 1});
  const json lease = cache.allocate(1, "device").at("lease");
  EXPECT_TRUE(rest_.del(at(lease)).ok());
  EXPECT_THAT(rest_.del(at(lease)), is_problem(404, "unknown_lease"));
  EXPECT_THAT(rest_.post(at(lease, "/renew"), {{"lease_ms", 1000}}),
              is_problem(404, "unknown_lease"));
  for (const std::string& never : {std::string(32, '0'), std::string(32, 'f')}) {
    EXPECT_THAT(rest_.del(at(never)), is_problem(404, "unknown_lease")) << never;
  }
  EXPECT_THAT(rest_.del("/v1/leases/nonsense"), is_refusal());
}

TEST_F(LeaseTest, RefusesALeaseThatIsTooLong) {
  TestCache cache(rest_, {.device = 1});
  EXPECT_THAT(rest_.post(cache.path("/allocate"),
                         {{"count", 1}, {"tier", "device"}, {"lease_ms", 4'000'000'000U}}),
              is_problem(400, "out_of_range"));
  EXPECT_EQ(cache.count("device", "free"), 1);
}

// Computes the keys of tokens as the contract specifies.
std::string sha256(const std::string& text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

std::vector<std::string> token_keys(const std::vector<std::uint32_t>& tokens, std::string parent) {
  std::vector<std::string> hex_keys;
  for (std::size_t at = 0; at + kPageSize <= tokens.size(); at += kPageSize) {
    std::string text = parent;
    for (std::size_t i = at; i < at + kPageSize; ++i) {
      for (unsigned shift = 0; shift < 32; shift += 8) {
        text += static_cast<char>(tokens[i] >> shift & 0xFFU);
      }
    }
    parent = sha256(text);
    hex_keys.push_back(to_hex(std::as_bytes(std::span(parent))));
  }
  return hex_keys;
}

class TokensTest : public LeaseTest {
 protected:
  // Two full pages and a part of a third.
  const std::vector<std::uint32_t> tokens_ = {1, 2, 3, 4, 0xFFFFFFFF, 0, 0x01020304, 7, 8, 9, 10};

  void store(TestCache& cache, const std::vector<std::string>& hex_keys) {
    for (const std::string& hex : hex_keys) {
      EXPECT_THAT(rest_.put_bytes(cache.path("/keys/" + hex), block(1)), has_status(201));
    }
  }
};

TEST_F(TokensTest, HashChainNamesBlocks) {
  TestCache cache(rest_, {.device = 4});
  const auto hex_keys = token_keys(tokens_, "");
  ASSERT_EQ(hex_keys.size(), 2U);
  store(cache, hex_keys);
  const Reply reply = rest_.post(cache.path("/match"), {{"tokens", tokens_}, {"lease_ms", 0}});
  ASSERT_THAT(reply, has_status(200));
  EXPECT_EQ(reply.document().at("matched"), 2);
  EXPECT_EQ(reply.document().at("blocks").at(0).at("key"), hex_keys[0]);
  EXPECT_EQ(reply.document().at("blocks").at(1).at("key"), hex_keys[1]);
}

TEST_F(TokensTest, SaltNamesOtherBlocks) {
  TestCache cache(rest_, {.device = 4});
  store(cache, token_keys(tokens_, sha256("tenant-7")));
  const auto matched = [&](const json& extra) {
    json body = {{"tokens", tokens_}, {"lease_ms", 0}};
    body.update(extra);
    return rest_.post(cache.path("/match"), body).document().at("matched");
  };
  EXPECT_EQ(matched({{"salt", "tenant-7"}}), 2);
  EXPECT_EQ(matched({{"salt", "tenant-8"}}), 0);
  EXPECT_EQ(matched(json::object()), 0);
}

TEST_F(TokensTest, LessThanAPageMatchesNothing) {
  TestCache cache(rest_, {.device = 4});
  const Reply reply =
      rest_.post(cache.path("/match"), {{"tokens", {1, 2, 3}}, {"lease_ms", 30'000}});
  ASSERT_THAT(reply, has_status(200));
  EXPECT_EQ(reply.document().at("matched"), 0);
  EXPECT_TRUE(reply.document().at("lease").is_null());
}

TEST_F(TokensTest, RefusesTokensBesideKeys) {
  TestCache cache(rest_, {.device = 4});
  EXPECT_THAT(rest_.post(cache.path("/match"), {{"tokens", tokens_}, {"keys", keys(1, 1)}}),
              is_problem(400));
  EXPECT_THAT(rest_.post(cache.path("/match"), {{"lease_ms", 0}}), is_problem(400));
  EXPECT_THAT(rest_.post(cache.path("/match"), {{"tokens", {1, 2, 4294967296U}}}),
              is_problem(400, "out_of_range"));
}

}  // namespace
}  // namespace cairn::e2e
