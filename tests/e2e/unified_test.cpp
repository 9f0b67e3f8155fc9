#include <fstream>

#include "tests/e2e/support/served_test.hpp"

// Device tiers in unified memory, on a device of 64 KiB. Runs on the host runtime and, if it is
// built, on the fake libcudart.
namespace cairn::e2e {
namespace {

constexpr std::uint64_t kDeviceBytes = 64 << 10;
constexpr std::uint32_t kBlocks = 400;
static_assert(kBlocks * kBlockBytes > 2 * kDeviceBytes);

struct UnifiedMachine {
  const char* name;
  std::vector<std::string> flags;
  std::vector<std::string> environment;
};
void PrintTo(const UnifiedMachine& machine, std::ostream* out) { *out << machine.name; }

std::vector<UnifiedMachine> unified_machines() {
  const std::string bytes = std::to_string(kDeviceBytes);
  std::vector<UnifiedMachine> all = {
      {"host", {"--runtime", "host", "--host-device-bytes", bytes}, {}}};
#ifdef CAIRN_FAKE_CUDART_FOLDER
  for (const char* machine : {"coherent", "discrete"}) {
    all.push_back(
        {machine,
         {"--runtime", "cuda"},
         {"LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER, "CAIRN_FAKE_CUDA_DEVICE_BYTES=" + bytes}});
  }
  all.back().environment.emplace_back("CAIRN_FAKE_CUDA_BEHIND_A_BUS=1");
#endif
  return all;
}

std::unique_ptr<ServerProcess> serve_unified(const UnifiedMachine& machine,
                                             const fakes::TempDir& folder) {
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"caches": []})";
  ServerSetup setup{.flags = machine.flags, .environment = machine.environment};
  setup.flags.insert(setup.flags.end(), {"--config", config});
  return std::make_unique<ServerProcess>(std::move(setup));
}

json unified_body(const std::string& layout, std::uint32_t blocks = kBlocks) {
  json body = cache_body({.device = blocks, .pinned = 32, .disk = 512, .layout = layout});
  body["tiers"]["device"]["memory"] = {{"kind", "unified"}};
  return body;
}

class UnifiedTest : public testing::TestWithParam<UnifiedMachine> {
 protected:
  void TearDown() override { EXPECT_EQ(server_->stop(), 0) << server_->output(); }
  double prefetched(const std::string& to) {
    return rest_.metric("cairn_unified_prefetch_bytes_total{to=\"" + to + "\"}");
  }

  fakes::TempDir folder_;
  const std::unique_ptr<ServerProcess> server_ = serve_unified(GetParam(), folder_);
  Rest rest_{server_->endpoint()};
};

TEST_P(UnifiedTest, HoldsMoreBlocksThanTheDeviceHasMemoryFor) {
  json plain = unified_body("first");
  plain["tiers"]["device"].erase("memory");
  EXPECT_THAT(rest_.put("/v1/caches/plain", plain), is_problem(507, "no_capacity"));
  for (const char* layout : {"fully_contiguous", "first", "second"}) {
    SCOPED_TRACE(layout);
    TestCache cache = TestCache::made_of(rest_, unified_body(layout));
    const json shown = rest_.get(cache.path()).document();
    EXPECT_EQ(shown.at("tiers").at("device").at("memory"), json({{"kind", "unified"}}));
    EXPECT_GT(shown.at("tiers").at("device").at("reserved_bytes"), kDeviceBytes);
    // The same body again is the same cache.
    EXPECT_THAT(rest_.put(cache.path(), unified_body(layout)), has_status(200));
    for (int first = 0; first < static_cast<int>(kBlocks); first += 50) {
      cache.store_prefix(first, 50, "device");
    }
    for (int n = 0; n < static_cast<int>(kBlocks); n += 7) {
      EXPECT_EQ(cache.expect_intact(n), "device");
    }
  }
}

TEST_P(UnifiedTest, PrefetchesToTheDeviceAndBackToTheHost) {
  TestCache cache = TestCache::made_of(rest_, unified_body("first"));
  cache.store_prefix(0, 8, "pinned");
  const double before = prefetched("device");
  EXPECT_EQ(prefetched("host"), 0);
  EXPECT_EQ(cache.transfer(keys(0, 8), "device").at("state"), "done");
  EXPECT_EQ(prefetched("device"), before + 8.0 * kBlockBytes);
  // Reading over HTTP does not move the blocks.
  for (int n = 0; n < 8; ++n) EXPECT_EQ(cache.expect_intact(n), "device");
  EXPECT_EQ(prefetched("host"), 0);
  EXPECT_EQ(cache.transfer(keys(0, 8), "pinned", "move").at("state"), "done");
  EXPECT_EQ(prefetched("host"), 0);  // pinned memory had the copies already
  EXPECT_EQ(cache.transfer(keys(0, 8), "device", "move").at("state"), "done");
  EXPECT_EQ(cache.transfer(keys(0, 4), "pinned", "move").at("state"), "done");
  EXPECT_EQ(prefetched("host"), 4.0 * kBlockBytes);
  EXPECT_EQ(cache.transfer(keys(4, 4), "disk", "move").at("state"), "done");
  EXPECT_EQ(prefetched("host"), 8.0 * kBlockBytes);
  EXPECT_EQ(cache.transfer(keys(4, 4), "device").at("state"), "done");
  for (int n = 0; n < 8; ++n) cache.expect_intact(n);
  EXPECT_GE(rest_.metric("cairn_transfer_strategy_total{from=\"disk\",to=\"unified\","
                         "strategy=\"unified\"}"),
            1);
}

TEST_P(UnifiedTest, OnboardingMatchPrefetchesAgain) {
  TestCache cache = TestCache::made_of(rest_, unified_body("second"));
  cache.store_prefix(0, 6, "device");
  const double before = prefetched("device");
  const json matched = rest_
                           .post(cache.path("/match"), {{"keys", keys(0, 6)},
                                                        {"lease_ms", 30'000},
                                                        {"onboard", "device"},
                                                        {"wait_ms", 10'000}})
                           .document();
  EXPECT_EQ(matched.at("matched"), 6) << matched;
  EXPECT_EQ(matched.at("transfer"), json());
  EXPECT_TRUE(eventually([&] { return prefetched("device") == before + 6.0 * kBlockBytes; }));
  // A transfer of blocks that are there prefetches too, each block once.
  json twice = keys(0, 6);
  twice.push_back(key(0));
  EXPECT_EQ(cache.transfer(twice, "device").at("state"), "done");
  EXPECT_TRUE(eventually([&] { return prefetched("device") == before + 12.0 * kBlockBytes; }));
  // A match without onboarding prefetches nothing.
  cache.match(keys(0, 6), 1'000);
  EXPECT_EQ(prefetched("device"), before + 12.0 * kBlockBytes);
}

TEST_P(UnifiedTest, RefusesWrongMemorySettings) {
  json body = unified_body("first");
  body["tiers"]["pinned"]["memory"] = {{"kind", "unified"}};
  EXPECT_THAT(rest_.put("/v1/caches/wrong", body), is_problem(400));
  body = unified_body("first");
  body["tiers"]["device"]["memory"]["export"] = "descriptor";
  EXPECT_THAT(rest_.put("/v1/caches/wrong", body), is_problem(400));
  body["tiers"]["device"]["memory"] = {{"kind", "managed"}};
  EXPECT_THAT(rest_.put("/v1/caches/wrong", body), is_problem(400));
}

TEST_P(UnifiedTest, ExportsOnlyMappableMemory) {
  TestCache cache = TestCache::made_of(rest_, unified_body("first"));
  const Reply exported = rest_.post(cache.path("/tiers/device/export"));
  if (std::string(GetParam().name) == "host") {
    ASSERT_THAT(exported, has_status(200));
    EXPECT_EQ(exported.document().at("kind"), "shm");
    return;
  }
  EXPECT_THAT(exported, is_problem(422, "impossible"));
  EXPECT_THAT(exported.document().at("detail").get<std::string>(),
              testing::HasSubstr("unified memory"));
}

INSTANTIATE_TEST_SUITE_P(Machines, UnifiedTest, testing::ValuesIn(unified_machines()),
                         [](const auto& tested) { return std::string(tested.param.name); });

#ifdef CAIRN_FAKE_CUDART_FOLDER
TEST(UnifiedAbsentTest, RefusesTheCacheWithAReason) {
  fakes::TempDir folder;
  const auto server =
      serve_unified({"cuda",
                     {"--runtime", "cuda"},
                     {"LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER, "CAIRN_FAKE_CUDA_BEHIND_A_BUS=1",
                      "CAIRN_FAKE_CUDA_NO_UNIFIED=1"}},
                    folder);
  Rest rest(server->endpoint());
  const Reply refused = rest.put("/v1/caches/c", unified_body("first", 8));
  EXPECT_THAT(refused, is_problem(422, "impossible"));
  EXPECT_THAT(refused.document().at("detail").get<std::string>(),
              testing::HasSubstr("has no unified memory"));
  EXPECT_THAT(rest.get("/v1/caches/c"), is_problem(404, "unknown_cache"));
  EXPECT_EQ(server->stop(), 0) << server->output();
}
#endif

}  // namespace
}  // namespace cairn::e2e
