#include <fstream>

#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"

// The pressure levels that a server reports when it is asked.
namespace cairn::e2e {
namespace {

constexpr std::uint64_t kBodyMiB = 1 << 20;
// From block to block of a tier, as the tests align them.
constexpr std::uint64_t kBlockStride = 512;

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

// The tier comes back to `normal` when the lease ends, and then evicts down to its target.
TEST_F(PressureTest, ATierThatComesBackToNormalMakesRoom) {
  json body = cache_body({.pinned = 10});
  body["pressure"] = {
      {"pinned", {{"reactions", {{"normal", {{"kind", "shrink"}, {"target_use", 0.2}}}}}}}};
  TestCache cache = TestCache::made_of(rest_, body);
  EXPECT_EQ(rest_.get(cache.path()).document().at("pressure").at("pinned").at("reactions"),
            body.at("pressure").at("pinned").at("reactions"));
  for (const int first : {0, 5}) cache.store_prefix(first, 5, "pinned");
  EXPECT_EQ(cache.count("pinned", "evictable"), 10);
  // One lease, because a reaction ends where leases keep the rest.
  const std::string lease = cache.match(keys(0, 9), 60'000).at("lease");
  EXPECT_EQ(level_of(cache, "pinned"), "warning");
  EXPECT_TRUE(rest_.del("/v1/leases/" + lease).ok());
  EXPECT_TRUE(eventually([&] { return cache.count("pinned", "evictable") == 2; }));
  EXPECT_EQ(level_of(cache, "pinned"), "normal");
}

TEST_F(PressureTest, NoneIsAReactionThatIsNotShown) {
  json body = cache_body({.pinned = 4});
  body["pressure"] = {{"pinned", {{"reactions", {{"normal", {{"kind", "none"}}}}}}}};
  const TestCache cache = TestCache::made_of(rest_, body);
  EXPECT_FALSE(
      rest_.get(cache.path()).document().at("pressure").at("pinned").contains("reactions"));
}

// Bodies use 3/4 of the memory, and then none. Requests go on meanwhile, so the memory is not idle
// and only the reaction gives it back. A single long body keeps the pool from `normal`, so that
// the reaction comes when all have ended.
TEST(PoolPressureTest, APoolThatComesBackToNormalGivesItsMemoryBack) {
  const fakes::TempDir folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"caches": [], "pressure": {"pools": {
    "elevated": 0.1, "reactions": {"normal": {"kind": "shrink"}, "elevated": {"kind": "callback"}}}}})";
  ServerProcess server({.flags = {"--config", config}});
  Rest rest(server.endpoint());
  const TestCache cache(rest, {.pinned = 1});
  const auto long_request = [&](std::uint64_t mib) {
    auto connection = std::make_unique<RawConnection>(server.endpoint());
    connection->send(head_text(
        "POST", cache.path("/match"),
        {"Content-Type: application/json", "Content-Length: " + std::to_string(mib * kBodyMiB)}));
    connection->send(std::string((mib - 1) * kBodyMiB, ' '));
    return connection;
  };
  const auto level = [&] {
    const json system = rest.get("/v1/system").document();
    for (const json& one : system.at("pools")) {
      if (one.at("allocator") == "http_bodies") return one.at("level").get<std::string>();
    }
    return std::string();
  };
  const auto reserved_mib = [&] {
    return rest.metric(
               "cairn_allocator_reserved_bytes{allocator=\"http_bodies\",device=\"host\"}") /
           kBodyMiB;
  };
  std::vector<std::unique_ptr<RawConnection>> waiting;
  for (int i = 0; i < 5; ++i) waiting.push_back(long_request(28));
  EXPECT_TRUE(eventually([&] { return level() == "elevated"; })) << level();
  // The pools are looked at now and then. A reaction ends only a level that was seen.
  const auto has_logged = [&](const std::string& change) {
    return server.output().find("pool=http_bodies " + change) != std::string::npos;
  };
  EXPECT_TRUE(eventually([&] { return has_logged("from=normal to=elevated"); }));
  EXPECT_GE(reserved_mib(), 128);
  waiting.clear();
  EXPECT_TRUE(eventually([&] {
    long_request(4).reset();
    return level() == "normal" && reserved_mib() <= 32;
  })) << reserved_mib();
  EXPECT_EQ(server.stop(), 0);
  EXPECT_TRUE(has_logged("from=elevated to=normal")) << server.output();
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

TEST_F(PressureTest, EmptiesTheCacheOfADeviceUnderPressure) {
  json body = cache_body({.device = 100, .pinned = 100});
  body["tiers"]["device"] = tier_body(100, "second");
  body["pressure"] = {{"device", {{"reactions", {{"warning", {{"kind", "empty_cache"}}}}}}}};
  TestCache cache = TestCache::made_of(rest_, body);
  const json described = rest_.get(cache.path()).document();
  EXPECT_EQ(described.at("pressure").at("device").at("reactions").at("warning").at("kind"),
            "empty_cache");
  const auto series = [&](const std::string& name) {
    return rest_.metric("cairn_allocator_" + name + R"({allocator="device0",device="0"})");
  };
  cache.store_prefix(0, 50, "device");
  ASSERT_EQ(cache.transfer(keys(0, 50), "pinned").at("state"), "done");
  ASSERT_GT(series("cached_bytes"), 0);
  const json some = cache.allocate(85, "device");
  EXPECT_EQ(level_of(cache, "device"), "elevated");
  EXPECT_GT(series("cached_bytes"), 0) << "the reaction is that of the next level";
  const json more = cache.allocate(10, "device");
  EXPECT_EQ(level_of(cache, "device"), "warning");
  EXPECT_TRUE(eventually([&] { return series("cached_bytes") == 0; }));
  EXPECT_EQ(series("reserved_bytes"), series("allocated_bytes"));
}

TEST_F(PressureTest, OnlyADeviceTierHasACacheToEmpty) {
  json body = cache_body({.pinned = 4});
  body["pressure"] = {{"pinned", {{"reactions", {{"warning", {{"kind", "empty_cache"}}}}}}}};
  const Reply refused = rest_.put("/v1/caches/none", body);
  EXPECT_THAT(refused, is_problem(422, "impossible"));
  EXPECT_THAT(refused.body, testing::HasSubstr("pressure.pinned.reactions.warning.kind"));
}

// The next tier needs what a deleted one has left, and more.
TEST(DeviceRoomTest, EmptiesTheCacheBeforeAnAllocationFails) {
  const fakes::TempDir folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"caches": []})";
  constexpr std::uint64_t kMiB = 1 << 20;
  ServerProcess server(
      {.flags = {"--config", config, "--host-device-bytes", std::to_string(10 * kMiB),
                 "--device-kept-bytes", std::to_string(10 * kMiB)}});
  Rest rest(server.endpoint());
  const auto tier_of = [&](std::uint64_t bytes) {
    return cache_body({.device = static_cast<std::uint32_t>(bytes / kBlockStride)});
  };
  const auto series = [&](const std::string& name) {
    return rest.metric("cairn_allocator_" + name + R"({allocator="device0",device="0"})");
  };
  ASSERT_THAT(rest.put("/v1/caches/first", tier_of(6 * kMiB)), has_status(201));
  ASSERT_THAT(rest.del("/v1/caches/first"), has_status(204));
  EXPECT_GT(series("cached_bytes"), 5 * kMiB);
  EXPECT_EQ(series("retries_total"), 0);
  ASSERT_THAT(rest.put("/v1/caches/second", tier_of(8 * kMiB)), has_status(201));
  EXPECT_EQ(series("retries_total"), 1);
  EXPECT_EQ(series("cached_bytes"), 0);
  EXPECT_THAT(rest.put("/v1/caches/third", tier_of(8 * kMiB)), is_problem(507, "no_capacity"));
  EXPECT_EQ(server.stop(), 0) << server.output();
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
