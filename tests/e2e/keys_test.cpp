#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"

// Blocks by key: one at a time and many at once.
namespace cairn::e2e {
namespace {

using testing::HasSubstr;

class KeysTest : public ServedTest {
 protected:
  Reply get_with(const std::string& target, const std::string& name, const std::string& value) {
    return rest_.send({.target = target, .headers = {{name, value}}});
  }
};

TEST_F(KeysTest, StoresABlockOnce) {
  TestCache cache(rest_, {.device = 4});
  EXPECT_THAT(rest_.put_bytes(cache.key_path(1), block(1)), has_status(201));
  EXPECT_THAT(rest_.put_bytes(cache.key_path(1), block(2)), has_status(200)) << "a duplicate";
  cache.expect_intact(1);
  EXPECT_EQ(cache.count("device", "evictable"), 1);
  EXPECT_EQ(cache.count("device", "free"), 3);
}

TEST_F(KeysTest, ReturnsTheTagTheTierAndTheLength) {
  TestCache cache(rest_, {.pinned = 2});
  cache.store(1);
  const Reply reply = rest_.get(cache.key_path(1));
  EXPECT_EQ(reply.header("Content-Type"), "application/octet-stream");
  EXPECT_EQ(reply.header("Cairn-Tier"), "pinned");
  EXPECT_EQ(reply.header("Content-Length"), std::to_string(kBlockBytes));
  EXPECT_EQ(reply.header("Accept-Ranges"), "bytes");
  EXPECT_NE(reply.header("ETag"), "");
  const Reply head = rest_.head(cache.key_path(1));
  EXPECT_THAT(head, has_status(200));
  EXPECT_EQ(head.body, "");
  for (const char* name : {"Content-Length", "ETag", "Cairn-Tier"}) {
    EXPECT_EQ(head.header(name), reply.header(name)) << name;
  }
}

TEST_F(KeysTest, MatchingTagReturns304) {
  TestCache cache(rest_, {.device = 2, .disk = 2});
  cache.store(1);
  cache.store(2);
  const std::string tag = rest_.get(cache.key_path(1)).header("ETag");
  const Reply unchanged = get_with(cache.key_path(1), "If-None-Match", tag);
  EXPECT_THAT(unchanged, has_status(304));
  EXPECT_EQ(unchanged.body, "");
  EXPECT_EQ(unchanged.header("ETag"), tag);
  EXPECT_THAT(get_with(cache.key_path(1), "If-None-Match", "\"other\", " + tag), has_status(304));
  EXPECT_THAT(get_with(cache.key_path(1), "If-None-Match", "*"), has_status(304));
  EXPECT_THAT(get_with(cache.key_path(1), "If-None-Match", "\"other\""), has_status(200));
  EXPECT_THAT(get_with(cache.key_path(2), "If-None-Match", tag), has_status(200));
  cache.transfer({key(1)}, "disk", "move");
  EXPECT_EQ(rest_.get(cache.key_path(1)).header("ETag"), tag) << "the same bytes in another tier";
}

TEST_F(KeysTest, HeadHonoursTheTag) {
  TestCache cache(rest_, {.device = 2});
  cache.store(1);
  const std::string tag = rest_.head(cache.key_path(1)).header("ETag");
  const auto head_with = [&](int n, const std::string& tags) {
    return rest_.send(
        {.method = "HEAD", .target = cache.key_path(n), .headers = {{"If-None-Match", tags}}});
  };
  const Reply unchanged = head_with(1, tag);
  EXPECT_THAT(unchanged, has_status(304));
  EXPECT_EQ(unchanged.header("ETag"), tag);
  EXPECT_THAT(head_with(1, "\"other\""), has_status(200));
  EXPECT_THAT(head_with(2, tag), has_status(404));
}

TEST_F(KeysTest, StaleIfRangeReturnsTheWholeBlock) {
  TestCache cache(rest_, {.device = 2});
  cache.store(1);
  const std::string tag = rest_.head(cache.key_path(1)).header("ETag");
  const auto get_if_range = [&](const std::string& validator) {
    return rest_.send({.target = cache.key_path(1),
                       .headers = {{"Range", "bytes=3-9"}, {"If-Range", validator}}});
  };
  const Reply part = get_if_range(tag);
  EXPECT_THAT(part, has_status(206));
  EXPECT_EQ(part.body, block(1).substr(3, 7));
  for (const std::string& other :
       {std::string("\"other\""), "W/" + tag, std::string("Sat, 29 Oct 1994 19:43:31 GMT")}) {
    const Reply whole = get_if_range(other);
    EXPECT_THAT(whole, has_status(200)) << other;
    EXPECT_TRUE(whole.body == block(1)) << other;
  }
}

// A tag made from the key alone would let a client join halves of two different blocks.
TEST_F(KeysTest, ReusedKeyNeverMixesBytes) {
  TestCache cache(rest_, {.device = 1, .pinned = 1, .disk = 1});
  for (const char* tier : {"device", "pinned", "disk"}) {
    for (const bool head : {false, true}) {
      cache.store(1, std::string("?tier=") + tier);
      const std::string tag =
          (head ? rest_.head(cache.key_path(1)) : rest_.get(cache.key_path(1))).header("ETag");
      EXPECT_THAT(get_with(cache.key_path(1), "If-None-Match", tag), has_status(304));
      ASSERT_TRUE(rest_.del(cache.key_path(1)).ok());
      ASSERT_THAT(rest_.put_bytes(cache.key_path(1, std::string("?tier=") + tier), block(2)),
                  has_status(201));
      const Reply other = rest_.send(
          {.target = cache.key_path(1), .headers = {{"Range", "bytes=3-9"}, {"If-Range", tag}}});
      EXPECT_THAT(other, has_status(200)) << tier;
      EXPECT_TRUE(other.body == block(2)) << tier;
      EXPECT_NE(other.header("ETag"), tag);
      EXPECT_THAT(get_with(cache.key_path(1), "If-None-Match", tag), has_status(200));
      ASSERT_TRUE(rest_.del(cache.key_path(1)).ok());
    }
  }
}

TEST_F(KeysTest, KeyIsUnknownBeforeStoreAndAfterDelete) {
  TestCache cache(rest_, {.device = 2, .disk = 2});
  EXPECT_THAT(rest_.get(cache.key_path(1)), is_problem(404, "unknown_key"));
  EXPECT_THAT(rest_.head(cache.key_path(1)), has_status(404));
  EXPECT_THAT(rest_.del(cache.key_path(1)), is_problem(404, "unknown_key"));
  cache.store(1);
  cache.transfer({key(1)}, "disk");
  EXPECT_TRUE(rest_.del(cache.key_path(1)).ok());
  EXPECT_THAT(rest_.get(cache.key_path(1)), is_problem(404, "unknown_key"));
  EXPECT_EQ(cache.count("device", "free"), 2);
  EXPECT_EQ(cache.count("disk", "free"), 2);
}

TEST_F(KeysTest, RefusesToDeleteALeasedKey) {
  TestCache cache(rest_, {.device = 2});
  cache.store(1);
  const std::string lease = cache.match(keys(1, 1), 30'000).at("lease");
  EXPECT_THAT(rest_.del(cache.key_path(1)), is_problem(409, "leased"));
  cache.expect_intact(1);
  EXPECT_TRUE(rest_.del("/v1/leases/" + lease).ok());
  EXPECT_TRUE(rest_.del(cache.key_path(1)).ok());
}

// A key must not vanish during a request that counts on it: nothing would be stored.
TEST_F(KeysTest, RefusesToDeleteAKeyThatIsSentAgain) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store(0);
  const auto before = cache.counts();
  const auto send_half = [&](RawConnection& writer) {
    writer.send(head_text("PUT", cache.key_path(0),
                          {"Content-Type: application/octet-stream",
                           "Content-Length: " + std::to_string(kBlockBytes)}));
    writer.send(block(0).substr(0, kBlockBytes / 2));
    return eventually([&] { return cache.counts().at("leases") == 1; });
  };
  {
    RawConnection writer(server().endpoint());
    ASSERT_TRUE(send_half(writer));
    EXPECT_THAT(rest_.del(cache.key_path(0)), is_problem(409, "leased"));
    writer.send(block(0).substr(kBlockBytes / 2));
    const Reply reply = writer.receive();
    EXPECT_THAT(reply, has_status(200));
    EXPECT_EQ(reply.document().at("status"), "duplicate");
    EXPECT_EQ(cache.counts(), before);
  }
  {
    RawConnection gone(server().endpoint());
    ASSERT_TRUE(send_half(gone));
  }
  EXPECT_TRUE(eventually([&] { return cache.counts() == before; }));
  EXPECT_TRUE(rest_.del(cache.key_path(0)).ok());
}

TEST_F(KeysTest, StoresInTheNamedTier) {
  TestCache cache(rest_, {.device = 2, .pinned = 2, .disk = 2});
  cache.store(0);
  EXPECT_EQ(cache.expect_intact(0), "device") << "the highest tier by default";
  int n = 1;
  for (const std::string tier : kTierNames) {
    cache.store(n, "?tier=" + tier);
    EXPECT_EQ(cache.expect_intact(n++), tier);
  }
  const TestCache small(rest_, {.pinned = 2});
  EXPECT_THAT(rest_.put_bytes(small.key_path(1, "?tier=disk"), block(1)),
              is_problem(422, "unknown_tier"));
  EXPECT_THAT(rest_.put_bytes(small.key_path(1, "?tier=tape"), block(1)), is_problem(400));
}

TEST_F(KeysTest, KeyExpiresAfterItsTtl) {
  TestCache cache(rest_, {.device = 2, .disk = 2});
  cache.store(1, "?ttl_ms=200&tier=disk");
  cache.store(2, "?ttl_ms=600000");
  EXPECT_TRUE(eventually([&] { return cache.count("disk", "free") == 2; }));
  EXPECT_FALSE(cache.holds(1));
  EXPECT_TRUE(cache.holds(2));
  EXPECT_EQ(cache.metric("cairn_evictions_total", "tier=\"disk\",reason=\"expired\""), 1);
  cache.store(1);
}

TEST_F(KeysTest, ReadsSingleRegions) {
  TestCache cache(rest_, {.device = 2, .layout = "first"});
  cache.store(1);
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    for (std::size_t outer = 0; outer < kOuter; ++outer) {
      const std::string query =
          "?layer=" + std::to_string(layer) + "&outer=" + std::to_string(outer);
      const Reply reply = rest_.get(cache.key_path(1, query));
      EXPECT_THAT(reply, has_status(200));
      EXPECT_TRUE(reply.body == region(1, layer, outer)) << query;
      EXPECT_EQ(rest_.head(cache.key_path(1, query)).header("Content-Length"),
                std::to_string(kRegionBytes));
      EXPECT_NE(reply.header("ETag"), rest_.get(cache.key_path(1)).header("ETag"));
    }
  }
  EXPECT_THAT(rest_.get(cache.key_path(1, "?layer=3&outer=0")), is_problem(400, "out_of_range"));
  EXPECT_THAT(rest_.get(cache.key_path(1, "?layer=0&outer=2")), is_problem(400, "out_of_range"));
  EXPECT_THAT(rest_.get(cache.key_path(1, "?layer=0")), is_problem(400, "missing_field"));
  EXPECT_THAT(rest_.get(cache.key_path(1, "?layer=x&outer=0")), is_problem(400, "wrong_type"));
}

struct RangeCase {
  std::string range;
  unsigned status;
  std::size_t first = 0;
  std::size_t last = 0;
};
void PrintTo(const RangeCase& test, std::ostream* out) { *out << test.range; }
class KeyRangeTest : public KeysTest, public testing::WithParamInterface<RangeCase> {};
// Ranges of 384 bytes.
INSTANTIATE_TEST_SUITE_P(
    Ranges, KeyRangeTest,
    testing::Values(RangeCase{"bytes=0-0", 206, 0, 0}, RangeCase{"bytes=0-", 206, 0, 383},
                    RangeCase{"bytes=10-99", 206, 10, 99}, RangeCase{"bytes=63-64", 206, 63, 64},
                    RangeCase{"bytes=383-383", 206, 383, 383},
                    RangeCase{"bytes=383-9999", 206, 383, 383},
                    RangeCase{"bytes=5-99999999999999999999999999", 206, 5, 383},
                    RangeCase{"bytes=-1", 206, 383, 383}, RangeCase{"bytes=-100", 206, 284, 383},
                    RangeCase{"bytes=-9999", 206, 0, 383}, RangeCase{"bytes=384-", 416},
                    RangeCase{"bytes=384-400", 416}, RangeCase{"bytes=-0", 416},
                    RangeCase{"bytes=99999999999999999999-", 416}, RangeCase{"bytes=5-4", 200},
                    RangeCase{"bytes=a-b", 200}, RangeCase{"lines=1-2", 200},
                    RangeCase{"bytes=", 200}));

TEST_P(KeyRangeTest, HonoursTheRange) {
  TestCache cache(rest_, {.device = 2, .layout = "second"});
  cache.store(1);
  const Reply reply = get_with(cache.key_path(1), "Range", GetParam().range);
  ASSERT_THAT(reply, has_status(GetParam().status));
  if (reply.status == 200) {
    EXPECT_TRUE(reply.body == block(1));
  }
  if (reply.status == 416) {
    EXPECT_THAT(reply, is_problem(416, "range_not_satisfiable"));
    EXPECT_EQ(reply.header("Content-Range"), "bytes */384");
  }
  if (reply.status == 206) {
    const std::size_t first = GetParam().first, last = GetParam().last;
    EXPECT_TRUE(reply.body == block(1).substr(first, last - first + 1));
    EXPECT_EQ(reply.header("Content-Range"),
              "bytes " + std::to_string(first) + "-" + std::to_string(last) + "/384");
  }
}

// HTTP returns the same bytes whatever a tier's physical layout, also after transfers through all
// tiers.
class CanonicalOrderTest : public KeysTest,
                           public testing::WithParamInterface<std::array<const char*, 3>> {};
INSTANTIATE_TEST_SUITE_P(
    Layouts, CanonicalOrderTest,
    testing::Values(std::array{"fully_contiguous", "fully_contiguous", "fully_contiguous"},
                    std::array{"first", "first", "first"}, std::array{"second", "second", "second"},
                    std::array{"first", "fully_contiguous", "second"},
                    std::array{"second", "first", "fully_contiguous"}));

TEST_P(CanonicalOrderTest, EveryTierReadsInCanonicalOrder) {
  json body = cache_body({.device = 4, .pinned = 4, .disk = 4});
  for (std::size_t i = 0; i < 3; ++i) {
    body["tiers"][kTierNames[i]] = tier_body(4, GetParam()[i]);
  }
  TestCache cache = TestCache::made_of(rest_, body);
  for (int n = 0; n < 3; ++n) cache.store(n, std::string("?tier=") + kTierNames[n]);
  for (const std::string to : {"disk", "device", "pinned", "device", "disk", "pinned"}) {
    cache.transfer(keys(0, 3), to, "move");
    for (int n = 0; n < 3; ++n) {
      EXPECT_EQ(cache.expect_intact(n), to);
      const Reply part = rest_.get(cache.key_path(n, "?layer=2&outer=1"));
      EXPECT_TRUE(part.body == region(n, 2, 1)) << "on " << to;
    }
  }
}

TEST_F(KeysTest, ReadsManyAtOnce) {
  TestCache cache(rest_, {.device = 2, .pinned = 2, .disk = 2});
  for (int n = 0; n < 3; ++n) cache.store(n, std::string("?tier=") + kTierNames[n]);
  const Reply reply = rest_.post(cache.path("/read"), {{"keys", keys(0, 5)}});
  ASSERT_THAT(reply, has_status(200));
  EXPECT_EQ(reply.header("Cairn-Matched"), "3");
  EXPECT_EQ(reply.header("Content-Type"), "application/octet-stream");
  EXPECT_TRUE(reply.body == blocks(0, 3));
  const Reply none = rest_.post(cache.path("/read"), {{"keys", keys(7, 2)}});
  EXPECT_THAT(none, has_status(200));
  EXPECT_EQ(none.header("Cairn-Matched"), "0");
  EXPECT_EQ(none.body, "");
}

TEST_F(KeysTest, ReadsARepeatedKeyEachTime) {
  constexpr int kTimes = 500;
  TestCache cache(rest_, {.device = 2, .pinned = 2, .disk = 2});
  cache.store(1, "?tier=device");
  cache.store(2, "?tier=pinned");
  cache.store(3, "?tier=disk");
  const auto before = cache.counts();
  json names = json::array();
  std::string expected;
  for (int i = 0; i < kTimes; ++i) {
    names.push_back(key(1 + i % 3));
    expected += block(1 + i % 3);
  }
  const Reply reply = rest_.post(cache.path("/read"), {{"keys", names}});
  EXPECT_THAT(reply, has_status(200));
  EXPECT_EQ(reply.header("Cairn-Matched"), std::to_string(kTimes));
  EXPECT_TRUE(reply.body == expected);
  EXPECT_TRUE(eventually([&] { return cache.counts() == before; })) << "a pin is left behind";
}

TEST_F(KeysTest, WritesManyAtOnceAsAPrefix) {
  TestCache cache(rest_, {.device = 8, .disk = 8});
  const Reply reply = rest_.post_bytes(
      cache.path("/write"), write_body({{"keys", keys(0, 4)}, {"tier", "disk"}}, blocks(0, 4)));
  ASSERT_TRUE(reply.ok()) << testing::PrintToString(reply);
  const json body = reply.document();
  for (const json& one : body.at("blocks")) EXPECT_EQ(one.at("status"), "committed");
  for (int n = 0; n < 4; ++n) EXPECT_EQ(cache.expect_intact(n), "disk");
  const json listed = rest_.get(cache.path("/blocks")).document().at("blocks");
  for (const json& one : listed) {
    for (int n = 0; n < 4; ++n) {
      if (one.at("key") != key(n)) continue;
      EXPECT_EQ(one.at("parent"), n == 0 ? json() : json(key(n - 1)));
    }
  }
  EXPECT_EQ(cache.counts().at("leases"), 0);
}

// The server refuses blocks that fit only in place of the prompt's own beginning, except for a few.
TEST_F(KeysTest, OversizedPromptKeepsItsBeginning) {
  constexpr int kSlots = 64;
  constexpr int kPrompt = 192;
  for (const int at_a_time : {4, 16, kSlots}) {
    TestCache cache(rest_, {.pinned = kSlots});
    for (int first = 0; first < kPrompt; first += at_a_time) {
      json header = {{"keys", keys(first, at_a_time)}};
      if (first > 0) header["parent"] = key(first - 1);
      const Reply reply =
          rest_.post_bytes(cache.path("/write"), write_body(header, blocks(first, at_a_time)));
      const bool fits = first < kSlots || at_a_time == 4;
      EXPECT_THAT(reply, fits ? has_status(200) : is_problem(507, "no_capacity")) << first;
    }
    const Reply reply = rest_.post(cache.path("/read"), {{"keys", keys(0, kPrompt)}});
    EXPECT_GE(std::stoi(reply.header("Cairn-Matched")), kSlots - 4) << at_a_time << " at a time";
    EXPECT_EQ(cache.counts().at("leases"), 0);
  }
}

TEST_F(KeysTest, StoresTheGivenParents) {
  TestCache cache(rest_, {.device = 8});
  const json parents = {nullptr, key(0), key(0)};
  EXPECT_TRUE(
      rest_
          .post_bytes(cache.path("/write"),
                      write_body({{"keys", keys(0, 3)}, {"parents", parents}}, blocks(0, 3)))
          .ok());
  const json listed = rest_.get(cache.path("/blocks")).document();
  for (const json& one : listed.at("blocks")) {
    EXPECT_EQ(one.at("parent"), one.at("key") == key(0) ? json() : json(key(0)));
  }
}

TEST_F(KeysTest, WritesAllOrNone) {
  TestCache cache(rest_, {.device = 4});
  static_cast<void>(cache.allocate(2, "device"));
  const auto before = cache.counts();
  EXPECT_THAT(
      rest_.post_bytes(cache.path("/write"), write_body({{"keys", keys(0, 3)}}, blocks(0, 3))),
      is_problem(507, "no_capacity"));
  EXPECT_EQ(cache.counts(), before);
  EXPECT_FALSE(cache.holds(0));
}

TEST_F(KeysTest, WriteReportsExistingKeysAsDuplicates) {
  TestCache cache(rest_, {.device = 4});
  cache.store(1);
  std::string other = blocks(0, 3);
  other.replace(kBlockBytes, kBlockBytes, block(99));
  const Reply reply =
      rest_.post_bytes(cache.path("/write"), write_body({{"keys", keys(0, 3)}}, other));
  ASSERT_TRUE(reply.ok());
  const json statuses = reply.document().at("blocks");
  EXPECT_EQ(statuses.at(0).at("status"), "committed");
  EXPECT_EQ(statuses.at(1).at("status"), "duplicate");
  EXPECT_EQ(statuses.at(2).at("status"), "committed");
  for (int n = 0; n < 3; ++n) cache.expect_intact(n);
  EXPECT_EQ(cache.count("device", "free"), 1);
}

// Making room for the absent keys must not evict the present one: the write reports it as a
// duplicate.
TEST_F(KeysTest, WriteKeepsExistingKeysWhileMakingRoom) {
  for (const std::string offload : {"never", "on_evict"}) {
    TestCache cache(rest_, {.pinned = 4, .offload = offload});
    for (int n : {0, 10, 11}) cache.store(n);  // key 0 is the least recently used
    const Reply reply =
        rest_.post_bytes(cache.path("/write"), write_body({{"keys", keys(0, 3)}}, blocks(0, 3)));
    ASSERT_THAT(reply, has_status(200));
    const json statuses = reply.document().at("blocks");
    EXPECT_EQ(statuses.at(0).at("status"), "duplicate");
    EXPECT_EQ(statuses.at(2).at("status"), "committed");
    EXPECT_EQ(cache.match(keys(0, 3), 0).at("matched"), 3) << offload;
    for (int n = 0; n < 3; ++n) cache.expect_intact(n);
    EXPECT_EQ(cache.counts().at("leases"), 0);
  }
}

TEST_F(KeysTest, RefusesAWriteWithoutRoomForAllItsKeys) {
  TestCache cache(rest_, {.pinned = 2, .offload = "never"});
  cache.store(0);
  const auto before = cache.counts();
  EXPECT_THAT(
      rest_.post_bytes(cache.path("/write"), write_body({{"keys", keys(0, 3)}}, blocks(0, 3))),
      is_problem(507, "no_capacity"));
  EXPECT_EQ(cache.counts(), before);
  cache.expect_intact(0);
  EXPECT_FALSE(cache.holds(1));
}

TEST_F(KeysTest, RefusesToDeleteAKeyThatAWriteNeeds) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store(0);
  const std::string body = write_body({{"keys", keys(0, 2)}}, blocks(0, 2));
  RawConnection writer(server().endpoint());
  ASSERT_TRUE(writer.send(head_text("POST", cache.path("/write"),
                                    {"Content-Type: application/octet-stream",
                                     "Content-Length: " + std::to_string(body.size())})));
  ASSERT_TRUE(writer.send(body.substr(0, body.size() - 1)));
  EXPECT_TRUE(eventually([&] { return cache.counts().at("leases") == 2; }));
  EXPECT_THAT(rest_.del(cache.key_path(0)), is_problem(409, "leased"));
  ASSERT_TRUE(writer.send(body.substr(body.size() - 1)));
  EXPECT_THAT(writer.receive(), has_status(200));
  for (int n = 0; n < 2; ++n) cache.expect_intact(n);
  EXPECT_TRUE(rest_.del(cache.key_path(0)).ok());
}

TEST_F(KeysTest, HitsAndMissesSumToTheRequestedKeys) {
  TestCache cache(rest_, {.device = 2, .pinned = 2, .disk = 2});
  for (int n = 0; n < 3; ++n) cache.store(n, std::string("?tier=") + kTierNames[n]);
  cache.match(keys(0, 5), 0);
  cache.match(keys(1, 1), 0);
  cache.match(keys(9, 3), 0);
  const auto counted = [&](const std::string& result) {
    return cache.metric("cairn_match_blocks_total", "result=\"" + result + "\"");
  };
  EXPECT_EQ(counted("device"), 1);
  EXPECT_EQ(counted("pinned"), 2);
  EXPECT_EQ(counted("disk"), 1);
  EXPECT_EQ(counted("miss"), 5);
}

}  // namespace
}  // namespace cairn::e2e
