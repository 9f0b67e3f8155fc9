#include <chrono>
#include <fstream>

#include "tests/e2e/support/served_test.hpp"

// How the server waits for copies to, from and within devices, by its settings.
namespace cairn::e2e {
namespace {

using namespace std::chrono_literals;

std::vector<const char*> strategy_runtimes() {
#ifdef CAIRN_FAKE_CUDART_FOLDER
  return {"host", "cuda"};
#else
  return {"host"};
#endif
}

struct WantedStrategies {
  const char* load;
  const char* store;
  const char* device;
  std::uint32_t polling_interval_us = 50;
};

std::string strategy_series(const std::string& from, const std::string& to,
                            const std::string& strategy) {
  return "cairn_transfer_strategy_total{from=\"" + from + "\",to=\"" + to + "\",strategy=\"" +
         strategy + "\"}";
}

class StrategyTest : public testing::TestWithParam<const char*> {
 protected:
  // The runtime is host, or cuda for the fake libcudart.
  void start(const WantedStrategies& wanted) {
    const std::string config = (folder_.path() / "config.json").string();
    std::ofstream(config) << json{{"caches", json::array()},
                                  {"host", {{"devices", 2}}},
                                  {"transfers",
                                   {{"polling_interval_us", wanted.polling_interval_us},
                                    {"strategy", {{"load", wanted.load}}}}}};
    ServerSetup setup{.flags = {"--runtime", GetParam(), "--config", config,
                                "--transfer-strategy-store", wanted.store,
                                "--transfer-strategy-device", wanted.device}};
#ifdef CAIRN_FAKE_CUDART_FOLDER
    setup.environment = {"LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER};
#endif
    server_ = std::make_unique<ServerProcess>(std::move(setup));
    rest_ = std::make_unique<Rest>(server_->endpoint());
  }
  // Loads, stores and copies to the other device, and checks the counter of each strategy.
  void expect_strategies(const WantedStrategies& wanted) {
    start(wanted);
    json body = cache_body({.device = 4, .pinned = 8});
    TestCache cache = TestCache::made_of(*rest_, body);
    cache.store_prefix(0, 3, "pinned");
    EXPECT_EQ(cache.transfer(keys(0, 3), "device", "move").at("state"), "done");
    EXPECT_GE(rest_->metric(strategy_series("pinned", "device", wanted.load)), 1);
    EXPECT_EQ(cache.transfer(keys(0, 3), "pinned").at("state"), "done");
    EXPECT_GE(rest_->metric(strategy_series("device", "pinned", wanted.store)), 1);
    body["tiers"]["device"]["device_id"] = 1;
    TestCache other = TestCache::made_of(*rest_, body);
    const auto copied = rest_->post(other.path("/transfers"), json{{"keys", keys(0, 3)},
                                                                   {"to", "device"},
                                                                   {"from_cache", cache.name()},
                                                                   {"wait_ms", 10'000}});
    EXPECT_EQ(copied.document().at("state"), "done") << copied.document();
    EXPECT_GE(rest_->metric(strategy_series("device", "device", wanted.device)), 1);
    for (int n = 0; n < 3; ++n) {
      EXPECT_EQ(cache.expect_intact(n), "device");
      other.expect_intact(n);
    }
    EXPECT_EQ(server_->stop(), 0) << server_->output();
  }

  fakes::TempDir folder_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<Rest> rest_;
};

TEST_P(StrategyTest, SettingsChooseAStrategyPerDirection) {
  expect_strategies({.load = "sync", .store = "polling", .device = "async"});
  expect_strategies({.load = "polling", .store = "async", .device = "sync"});
  expect_strategies({.load = "async", .store = "sync", .device = "polling"});
}

TEST_P(StrategyTest, UsesEventsByDefaultAndForNonUnifiedMemory) {
  for (const char* word : {"auto", "unified"}) {
    start({.load = word, .store = word, .device = word});
    TestCache cache(*rest_, {.device = 4, .pinned = 8});
    cache.store_prefix(0, 3, "pinned");
    EXPECT_EQ(cache.transfer(keys(0, 3), "device", "move").at("state"), "done");
    for (int n = 0; n < 3; ++n) EXPECT_EQ(cache.expect_intact(n), "device");
    EXPECT_GE(rest_->metric(strategy_series("pinned", "device", "async")), 1);
    EXPECT_GE(rest_->metric(strategy_series("device", "pinned", "async")), 3);
    EXPECT_EQ(server_->stop(), 0) << server_->output();
  }
}

// A copy that has not arrived at the first poll waits for the second; an event would report it at
// once.
TEST_P(StrategyTest, PollingChecksAgainAfterItsInterval) {
  constexpr std::chrono::milliseconds kInterval(400);
  start({.load = "polling",
         .store = "async",
         .device = "async",
         .polling_interval_us = static_cast<std::uint32_t>(kInterval / 1us)});
  TestCache cache(*rest_, {.device = 4, .pinned = 8});
  cache.store_prefix(0, 3, "pinned");
  EXPECT_TRUE(eventually([&] {
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_EQ(cache.transfer(keys(0, 3), "device").at("state"), "done");
    const auto took = std::chrono::steady_clock::now() - begun;
    EXPECT_THAT(rest_->post(cache.path("/evict"), {{"tier", "device"}, {"keys", keys(0, 3)}}),
                has_status(200));
    return took >= kInterval;
  }));
  EXPECT_EQ(server_->stop(), 0) << server_->output();
}

INSTANTIATE_TEST_SUITE_P(All, StrategyTest, testing::ValuesIn(strategy_runtimes()),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace cairn::e2e
