#include <fstream>

#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"

// The pressure levels that a server reports when it is asked.
namespace cairn::e2e {
namespace {

constexpr std::uint64_t kBodyMiB = 1 << 20;

class PressureTest : public ServedTest {
 protected:
  std::string level_of(const TestCache& cache, const std::string& tier) {
    return rest_.get("/v1/system").document().at("pressure").at(cache.name()).at(tier);
  }
  json pool(const std::string& allocator) {
    const json system = rest_.get("/v1/system").document();
    for (const json& one : system.at("pools")) {
      if (one.at("allocator") == allocator) return one;
    }
    ADD_FAILURE() << "there is no pool " << allocator;
    return json::object();
  }
};

TEST_F(PressureTest, SystemReportsTheLevelOfATierUpAndDown) {
  TestCache cache(rest_, {.pinned = 10});
  EXPECT_EQ(level_of(cache, "pinned"), "normal");
  static_cast<void>(cache.allocate(8, "pinned"));
  EXPECT_EQ(level_of(cache, "pinned"), "elevated");
  const json rest = cache.allocate(2, "pinned");
  EXPECT_EQ(level_of(cache, "pinned"), "out_of_memory");
  EXPECT_EQ(rest_.del("/v1/leases/" + rest.at("lease").get<std::string>()).status / 100, 2U);
  EXPECT_EQ(level_of(cache, "pinned"), "elevated");
}

// The limit is 256 MiB. Two bodies of 28 MiB take 32 each, by their announced length. Two more and
// one of 12 MiB take the sizes that they doubled to: 64 each, and 32.
TEST_F(PressureTest, SystemReportsTheLevelOfItsPools) {
  const TestCache cache(rest_, {.pinned = 1});
  for (const char* name : {"http_bodies", "http_small_bodies", "request_staging"}) {
    EXPECT_EQ(pool(name).at("level"), "normal") << name;
    EXPECT_GT(pool(name).at("limit_bytes"), 0) << name;
  }
  EXPECT_GT(pool("device0").at("limit_bytes"), 0);
  std::vector<std::unique_ptr<RawConnection>> waiting;
  for (const std::uint64_t mib : {28u, 28u, 28u, 28u, 12u}) {
    waiting.push_back(std::make_unique<RawConnection>(server().endpoint()));
    waiting.back()->send(head_text(
        "POST", cache.path("/match"),
        {"Content-Type: application/json", "Content-Length: " + std::to_string(mib * kBodyMiB)}));
    waiting.back()->send(std::string((mib - 1) * kBodyMiB, ' '));
  }
  EXPECT_TRUE(eventually([&] { return pool("http_bodies").at("level") == "elevated"; }))
      << pool("http_bodies");
  waiting.clear();
  EXPECT_TRUE(eventually([&] { return pool("http_bodies").at("level") == "normal"; }));
}

// A reaction of `normal` would never run: the level that ends reports the change to `normal` in its
// own callback.
TEST_F(PressureTest, RefusesAReactionOfNormalByName) {
  TestCache cache(rest_, {.pinned = 4});
  for (const json& reaction :
       {json{{"kind", "callback"}}, json{{"kind", "shrink"}, {"target_use", 0.5}}}) {
    const json pressure = {{"pinned", {{"reactions", {{"normal", reaction}}}}}};
    json body = cache_body({.pinned = 4});
    body["pressure"] = pressure;
    for (const Reply& refused : {rest_.put("/v1/caches/" + cache.name() + "-2", body),
                                 rest_.send({.method = "PATCH",
                                 .target = cache.path(),
                                 .body = json{{"pressure", pressure}}.dump(),
                                 .content_type = "application/json"})}) {
      EXPECT_THAT(refused, is_problem(400, "unknown_field"));
      EXPECT_THAT(refused.body, testing::HasSubstr("pressure.pinned.reactions.normal"));
    }
  }
}

// A tier full of evictable blocks is healthy, and every report says so.
TEST_F(PressureTest, FullTierIsNormal) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store_prefix(0, 4, "pinned");
  EXPECT_EQ(cache.metric("cairn_blocks", R"(tier="pinned",state="free")"), 0);
  EXPECT_EQ(level_of(cache, "pinned"), "normal");
  EXPECT_EQ(cache.metric("cairn_pressure_level", R"(tier="pinned")"), 0);
  EXPECT_EQ(rest_.get(cache.path()).document().at("tiers").at("pinned").at("pressure"), "normal");
}

TEST(PressureLogTest, CallbackLogsTheWayUpAndDown) {
  const fakes::TempDir folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"caches": [],
    "pressure": {"pinned": {"reactions": {"warning": {"kind": "callback"}}}}})";
  ServerProcess server({.flags = {"--config", config}});
  Rest rest(server.endpoint());
  {
    TestCache cache(rest, {.pinned = 10});
    const json held = cache.allocate(9, "pinned");
    rest.del("/v1/leases/" + held.at("lease").get<std::string>());
    EXPECT_EQ(cache.metric("cairn_pressure_level", R"(tier="pinned")"), 0);
  }
  EXPECT_EQ(server.stop(), 0);
  const std::string log = server.output();
  const auto up = log.find("from=normal to=warning");
  const auto down = log.find("from=warning to=normal");
  EXPECT_NE(up, std::string::npos) << log;
  EXPECT_NE(down, std::string::npos) << log;
  EXPECT_LT(up, down);
}

}  // namespace
}  // namespace cairn::e2e
