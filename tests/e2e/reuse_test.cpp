// A cache's estimates for other sizes and orders of eviction.
#include "tests/e2e/support/served_test.hpp"

namespace cairn::e2e {
namespace {

class ReuseTest : public ServedTest {
 protected:
  // Prompts of one block each, in rotation. LRU finds all of them if they fit, and otherwise none.
  static constexpr int kPrompts = 6;
  static constexpr int kRounds = 20;
  static void go_round(TestCache& cache, Rest& rest) {
    for (int i = 0; i < kRounds * kPrompts; ++i) {
      const int n = i % kPrompts;
      const json matched = cache.match(keys(n, 1), 30'000);
      if (matched.at("matched") == 0) {
        cache.store(n);
      } else {
        rest.post("/v1/leases/" + matched.at("lease").get<std::string>() + "/release",
                  {{"input_tokens", 4}, {"output_tokens", 8}});
      }
    }
  }
  json ratio(const TestCache& cache, const std::string& query = "") {
    return rest_.get(cache.path("/miss_ratio" + query)).document();
  }
};

TEST_F(ReuseTest, CurveEstimatesOtherSizes) {
  json body = cache_body({.pinned = 4});
  body["eviction"] = "lru";
  TestCache cache = TestCache::made_of(rest_, body);
  EXPECT_EQ(ratio(cache).at("requests"), 0);
  go_round(cache, rest_);
  const json estimate = ratio(cache, "?capacities=2,5,6,100");
  EXPECT_EQ(estimate.at("requests"), kRounds * kPrompts);
  EXPECT_EQ(estimate.at("capacity_blocks"), 4);
  const double all = (kRounds - 1.0) / kRounds;
  ASSERT_EQ(estimate.at("points").size(), 4U);
  for (const json& point : estimate.at("points")) {
    const double expected = point.at("capacity_blocks") < kPrompts ? 0 : all;
    EXPECT_NEAR(point.at("lru").get<double>(), expected, 1e-4) << point;
    EXPECT_EQ(point.at("policy"), point.at("lru"));
  }
  // Three blocks can stay, and the others share the fourth slot.
  EXPECT_GT(estimate.at("optimum").get<double>(), 0.4);
  EXPECT_LT(estimate.at("optimum").get<double>(), 0.6);
  ASSERT_EQ(estimate.at("advice").size(), 1U);
  const json& advice = estimate.at("advice").at(0);
  EXPECT_EQ(advice.at("tier"), "pinned");
  EXPECT_NEAR(advice.at("hit_rate").get<double>(), all, 1e-4);

  EXPECT_EQ(ratio(cache).at("points").size(), 5U);
  EXPECT_EQ(cache.metric("cairn_miss_ratio_curve", "capacity_ratio=\"1\""), 1);
  EXPECT_NEAR(cache.metric("cairn_miss_ratio_curve", "capacity_ratio=\"2\""), 1 - all, 1e-4);
}

// The advice is more room or less, never both; no order beats the best possible one.
TEST_F(ReuseTest, AdviceDoesNotContradictItself) {
  struct Given {
    std::uint32_t blocks;
    int prompts;  // in rotation
    std::string eviction;
    std::vector<std::string> says;
    std::vector<std::string> does_not_say;
  };
  const std::vector<Given> all = {
      // All of it fits twice over.
      {8, 2, "lru", {"hardly more", "Half of it", "No order"}, {"instead of", "A GiB", "Try"}},
      {8, 2, "class_hazard", {"hardly more", "Half of it", "No order"}, {"instead of", "A GiB"}},
      // No block stays; with more room all would.
      {4,
       6,
       "lru",
       {"instead of 0%", "A GiB more of tier pinned", "Try"},
       {"Half of it", "hardly"}},
      // A quarter more than fits.
      {8, 10, "class_hazard", {}, {"Try"}},
  };
  const auto says = [](const std::string& words, std::string_view part) {
    return words.find(part) != std::string::npos;
  };
  for (const Given& given : all) {
    json body = cache_body({.pinned = given.blocks});
    body["eviction"] = given.eviction;
    TestCache cache = TestCache::made_of(rest_, body);
    for (int i = 0; i < 1'100; ++i) {
      const json matched = cache.match(keys(i % given.prompts, 1), 30'000);
      if (matched.at("matched") == 0)
        cache.store(i % given.prompts);
      else
        rest_.del("/v1/leases/" + matched.at("lease").get<std::string>());
    }
    const json estimate = ratio(cache);
    std::string words;
    for (const json& line : estimate.at("words")) words += line.get<std::string>() + "\n";
    SCOPED_TRACE(given.eviction + " of " + std::to_string(given.blocks) + ":\n" + words);
    for (const std::string& part : given.says) EXPECT_THAT(words, testing::HasSubstr(part));
    for (const std::string& part : given.does_not_say) {
      EXPECT_THAT(words, testing::Not(testing::HasSubstr(part)));
    }
    EXPECT_FALSE(says(words, "Half of it") && says(words, "instead of"));
    EXPECT_NE(says(words, "No order of eviction"), says(words, "The best possible order"));
    for (const json& point : estimate.at("points")) {
      if (point.at("capacity_blocks") != estimate.at("capacity_blocks")) continue;
      EXPECT_GE(estimate.at("optimum"), point.at("lru"));
      EXPECT_GE(estimate.at("optimum"), point.at("policy"));
    }
  }
}

TEST_F(ReuseTest, ChangedCacheRestartsItsEstimate) {
  json body = cache_body({.pinned = 4});
  body["eviction"] = "lru";
  TestCache cache = TestCache::made_of(rest_, body);
  go_round(cache, rest_);
  ASSERT_THAT(rest_.send({.method = "PATCH",
                          .target = cache.path(),
                          .body = R"({"eviction": "class_hazard"})",
                          .content_type = "application/json"}),
              has_status(200));
  EXPECT_EQ(ratio(cache).at("requests"), 0);
  EXPECT_EQ(rest_.get(cache.path()).document().at("eviction_in_force"), "class_hazard");
  EXPECT_EQ(cache.metric("cairn_eviction_follows_lru"), 0);
  EXPECT_EQ(cache.metric("cairn_eviction_changes_total"), 0);
  go_round(cache, rest_);
  const json now = ratio(cache, "?capacities=4").at("points").at(0);
  EXPECT_GE(now.at("policy").get<double>(), now.at("lru").get<double>());
}

TEST_F(ReuseTest, LookupBeforeALeaseIsTheSameRequest) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store(1);
  cache.match(keys(1, 1), 0);
  cache.match(keys(1, 1), 30'000);
  EXPECT_EQ(ratio(cache).at("requests"), 1);
  cache.match(keys(1, 1), 30'000);
  EXPECT_EQ(ratio(cache).at("requests"), 2);
  // It was stored before the first match.
  EXPECT_EQ(ratio(cache, "?capacities=4").at("points").at(0).at("lru"), 1);
}

TEST_F(ReuseTest, RefusesBadCapacities) {
  TestCache cache(rest_, {.pinned = 4});
  std::string many = "1";
  for (int i = 0; i < 64; ++i) many += ",1";
  for (const std::string& wrong : {std::string(), std::string("0"), std::string("1,"),
                                   std::string("-1"), std::string("1.5"), std::string("x"), many}) {
    EXPECT_THAT(rest_.get(cache.path("/miss_ratio?capacities=" + wrong)),
                is_problem(400, "out_of_range"))
        << wrong;
  }
  EXPECT_THAT(rest_.get(cache.path("/miss_ratio?capacity=1")), is_problem(400, "unknown_field"));
  EXPECT_THAT(rest_.get("/v1/caches/none/miss_ratio"), is_problem(404, "unknown_cache"));
}

}  // namespace
}  // namespace cairn::e2e
