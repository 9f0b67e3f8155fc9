// Hints about the next use of blocks, in every request that takes them.
#include <algorithm>

#include "tests/e2e/support/served_test.hpp"

namespace cairn::e2e {
namespace {

using ::testing::HasSubstr;

class HintsTest : public ServedTest {
 protected:
  static constexpr int kRoom = 6;

  HintsTest() : cache_(TestCache::made_of(rest_, body_of_cache())) {}

  // lru follows a hint at once; class_hazard first learns how often hints are right.
  static json body_of_cache() {
    json body = cache_body({.pinned = kRoom});
    body["eviction"] = "lru";
    return body;
  }

  Reply hint(const json& body) { return rest_.post(cache_.path("/hints"), body); }
  Reply release(const std::string& lease, const json& body) {
    return rest_.post("/v1/leases/" + lease + "/release", body);
  }
  std::string lease_on(int n, json more = json::object()) {
    more["keys"] = keys(n, 1);
    return rest_.post(cache_.path("/match"), more).document().at("lease");
  }
  // Checks without counting a use.
  bool is_there(int n) {
    const json list = rest_.get(cache_.path("/blocks?limit=100")).document().at("blocks");
    return std::ranges::any_of(list, [n](const json& one) { return one.at("key") == key(n); });
  }
  // Which of the blocks 1 to `count` is evicted first if new ones need room; 0: none.
  int first_gone(int count) {
    for (int n = 100;; ++n) {
      cache_.store(n);
      for (int i = 1; i <= count; ++i) {
        if (!is_there(i)) return i;
      }
      if (n == 100 + 2 * kRoom) return 0;
    }
  }
  Reply store(int n, const std::string& query) {
    return rest_.put_bytes(cache_.key_path(n, query), block(n));
  }

  TestCache cache_;
};

TEST_F(HintsTest, ReleaseTakesAHint) {
  cache_.store(1);
  cache_.store(2);
  EXPECT_THAT(release(lease_on(2), {{"reuse", "never"}}), has_status(200));
  EXPECT_EQ(first_gone(2), 2);
}

TEST_F(HintsTest, MatchTakesAHint) {
  cache_.store(1);
  cache_.store(2);
  const std::string lease = lease_on(2, {{"reuse", "never"}});
  EXPECT_THAT(rest_.del("/v1/leases/" + lease), has_status(200));
  EXPECT_EQ(first_gone(2), 2);
}

TEST_F(HintsTest, PackedMatchTakesAHintInItsQuery) {
  cache_.store(1);
  cache_.store(2);
  const std::string key_bytes = std::to_string(key(2).size() / 2);
  const std::string query = "?lease_ms=0&reuse=never&session=chat&key_bytes=" + key_bytes;
  EXPECT_THAT(rest_.post_bytes(cache_.path("/match" + query), packed(keys(2, 1))), has_status(200));
  EXPECT_EQ(first_gone(2), 2);
}

TEST_F(HintsTest, CommitTakesAHint) {
  cache_.store(1);
  const json slots = cache_.allocate(1, "pinned");
  const std::string lease = slots.at("lease");
  const json handle = slots.at("blocks").at(0);
  ASSERT_THAT(rest_.put_bytes(cache_.data_path(handle, lease), block(2)), has_status(204));
  ASSERT_THAT(rest_.post(cache_.path("/commit"), {{"lease", lease},
                                                  {"blocks", {TestCache::commit_block(handle, 2)}},
                                                  {"release", true},
                                                  {"session", "chat"},
                                                  {"reuse", "never"}}),
              has_status(200));
  EXPECT_EQ(hint({{"session", "chat"}, {"reuse", "later"}}).document().at("blocks"), 1);
  EXPECT_EQ(hint({{"session", "chat"}, {"reuse", "never"}}).document().at("blocks"), 1);
  EXPECT_EQ(first_gone(2), 2);
}

TEST_F(HintsTest, PutTakesAHintInItsQuery) {
  cache_.store(1);
  EXPECT_THAT(store(2, "?reuse=never&session=chat"), has_status(201));
  EXPECT_EQ(first_gone(2), 2);
}

TEST_F(HintsTest, DuplicatePutTakesAHint) {
  cache_.store(1);
  cache_.store(2);
  EXPECT_THAT(store(2, "?reuse=never"), has_status(200));
  EXPECT_EQ(first_gone(2), 2);
}

TEST_F(HintsTest, WriteTakesAHintInItsHeader) {
  cache_.store(1);
  const json header = {{"keys", keys(2, 2)}, {"reuse", "never"}, {"session", "chat"}};
  EXPECT_THAT(rest_.post_bytes(cache_.path("/write"), write_body(header, blocks(2, 2))),
              has_status(200));
  EXPECT_EQ(hint({{"session", "chat"}, {"reuse", "never"}}).document().at("blocks"), 2);
  EXPECT_EQ(first_gone(3), 3);
}

TEST_F(HintsTest, ReuseWithinATimeKeepsTheBlock) {
  cache_.store(1);
  EXPECT_THAT(release(lease_on(1), {{"reuse", {{"within_ms", 30'000}}}}), has_status(200));
  EXPECT_EQ(first_gone(1), 0);
  EXPECT_THAT(store(1, "?reuse=%7B%22within_ms%22%3A30000%7D"), has_status(200));
}

TEST_F(HintsTest, HintsRouteTakesKeysAndSessions) {
  cache_.store(1);
  cache_.store(2);
  const Reply reply = hint({{"keys", {key(2), key(77)}}, {"reuse", "never"}});
  EXPECT_THAT(reply, has_status(200));
  EXPECT_EQ(reply.document(), (json{{"blocks", 1}, {"shared", 0}, {"missing", 1}}));
  EXPECT_EQ(hint({{"keys", json::array()}, {"reuse", "soon"}}).document().at("blocks"), 0);
  EXPECT_EQ(hint({{"session", "nobody's"}, {"reuse", "soon"}}).document().at("blocks"), 0);
  EXPECT_EQ(first_gone(2), 2);
}

TEST_F(HintsTest, ReleaseHintCoversTheWholeSession) {
  cache_.store(1);
  ASSERT_THAT(store(2, "?session=chat"), has_status(201));
  ASSERT_THAT(store(3, ""), has_status(201));
  EXPECT_THAT(release(lease_on(3), {{"session", "chat"}, {"reuse", "never"}}), has_status(200));
  for (int n = 100; n < 100 + kRoom - 1; ++n) cache_.store(n);  // two more than there is room for
  EXPECT_TRUE(is_there(1));
  EXPECT_FALSE(is_there(2));
  EXPECT_FALSE(is_there(3));
}

TEST_F(HintsTest, CountsHintsByKind) {
  store(1, "?reuse=never");
  release(lease_on(1, {{"reuse", "soon"}}), {{"reuse", {{"within_ms", 1}}}});
  hint({{"keys", keys(1, 1)}, {"reuse", "later"}});
  for (const char* kind : {"never", "soon", "later", "within"}) {
    EXPECT_EQ(cache_.metric("cairn_hints_total", "reuse=\"" + std::string(kind) + "\""), 1) << kind;
  }
}

TEST_F(HintsTest, RefusesWrongValuesByName) {
  cache_.store(1);
  struct Wrong {
    json fields;
    const char* code;
    const char* named;
  };
  const std::vector<Wrong> table = {
      {{{"reuse", "often"}}, "out_of_range", "reuse"},
      {{{"reuse", 5}}, "wrong_type", "reuse"},
      {{{"reuse", nullptr}}, "wrong_type", "reuse"},
      {{{"reuse", json::object()}}, "missing_field", "reuse.within_ms"},
      {{{"reuse", {{"within_ms", -1}}}}, "out_of_range", "reuse.within_ms"},
      {{{"reuse", {{"within_ms", "1"}}}}, "wrong_type", "reuse.within_ms"},
      {{{"reuse", {{"within_s", 1}}}}, "unknown_field", "reuse.within_s"},
      {{{"reuse", "never"}, {"session", ""}}, "out_of_range", "session"},
      {{{"reuse", "never"}, {"session", std::string(129, 'x')}}, "out_of_range", "session"},
      {{{"reuse", "never"}, {"session", 7}}, "wrong_type", "session"},
  };
  for (const Wrong& wrong : table) {
    const auto refused = [&](const Reply& reply) {
      EXPECT_THAT(reply, is_problem(400, wrong.code)) << wrong.fields;
      EXPECT_THAT(reply.body, HasSubstr(wrong.named)) << wrong.fields;
    };
    json body = wrong.fields;
    body["keys"] = keys(1, 1);
    refused(rest_.post(cache_.path("/match"), body));
    refused(rest_.post_bytes(cache_.path("/write"), write_body(body, block(1))));
    body.erase("keys");
    refused(release(lease_on(1), body));
    body["lease"] = lease_on(1);
    body["blocks"] = json::array();
    refused(rest_.post(cache_.path("/commit"), body));
    json keyed = wrong.fields;
    if (!keyed.contains("session")) keyed["keys"] = keys(1, 1);
    refused(hint(keyed));
  }
  for (const char* query :
       {"?reuse=often", "?reuse=", "?reuse=%7B", "?reuse=%7B%22within_s%22%3A1%7D",
        "?session=", "?reuse=never&reuse=soon"}) {
    EXPECT_THAT(store(1, query), is_problem(400)) << query;
  }
}

TEST_F(HintsTest, HintNeedsKeysOrASession) {
  EXPECT_THAT(hint({{"reuse", "never"}}), is_problem(400, "missing_field"));
  EXPECT_THAT(hint({{"keys", keys(1, 1)}, {"session", "chat"}, {"reuse", "never"}}),
              is_problem(400, "malformed"));
  EXPECT_THAT(hint({{"keys", keys(1, 1)}}), is_problem(400, "missing_field"));
  EXPECT_THAT(hint({{"keys", {"xyz"}}, {"reuse", "never"}}), is_problem(400, "malformed"));
  EXPECT_THAT(hint({{"keys", keys(1, 1)}, {"reuse", "never"}, {"more", 1}}),
              is_problem(400, "unknown_field"));
  EXPECT_THAT(rest_.post("/v1/caches/none/hints", {{"session", "chat"}, {"reuse", "never"}}),
              is_problem(404, "unknown_cache"));
  EXPECT_THAT(hint({{"keys", std::vector<std::string>(65'537, key(1))}, {"reuse", "never"}}),
              is_problem(400, "out_of_range"));
}

}  // namespace
}  // namespace cairn::e2e
