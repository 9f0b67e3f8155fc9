#include <fstream>

#include "tests/e2e/support/served_test.hpp"

// The server with a device tier on CUDA (here: the fake libcudart).
namespace cairn::e2e {
namespace {

class DeviceTest : public testing::Test {
 protected:
  void start() {
    ServerSetup setup;
    setup.flags = {"--runtime", "cuda", "--config", config_.string()};
    server_ = std::make_unique<ServerProcess>(std::move(setup));
    rest_ = std::make_unique<Rest>(server_->endpoint());
  }
  void SetUp() override { std::ofstream(config_) << R"({"caches": []})"; }

  fakes::TempDir folder_;
  const std::filesystem::path config_ = folder_.path() / "config.json";
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<Rest> rest_;
};

TEST_F(DeviceTest, MovesLayersBetweenTheTiersIntact) {
  start();
  EXPECT_EQ(rest_->get("/v1/system").document()["runtime"], "cuda");
  TestCache cache(*rest_, {.device = 4, .pinned = 16, .layout = "second"});
  for (int first : {0, 4, 8}) cache.store_prefix(first, 4, "device");  // most are offloaded
  for (int n = 0; n < 12; ++n) cache.expect_intact(n);
  cache.transfer(keys(0, 4), "device", "move");
  for (int n = 0; n < 12; ++n) cache.expect_intact(n);
  EXPECT_EQ(server_->stop(), 0) << server_->output();
}

TEST_F(DeviceTest, AcceptsTheConfigurationThatCalibrationPrints) {
  const auto program =
      std::filesystem::path(CAIRN_SERVER_PROGRAM).parent_path() / "cairn-calibrate";
  ChildProcess calibration(
      {program.string(), "--runtime", "cuda", "--json", "--job-bytes", "65536"});
  ASSERT_EQ(calibration.wait(), 0) << calibration.standard_error();
  const json result = json::parse(calibration.standard_output());
  EXPECT_EQ(result["device"], "fake GPU 0");
  EXPECT_EQ(result["memory_visibility"], "system");
  json configuration = result["configuration"];
  ASSERT_TRUE(configuration["transfers"]["copy_forms"].contains("load")) << configuration;
  configuration["caches"] = json::array();
  std::ofstream(config_) << configuration;
  start();
  TestCache cache(*rest_, {.device = 4});
  cache.store(1);
  cache.expect_intact(1);
  EXPECT_EQ(server_->stop(), 0) << server_->output();
}

}  // namespace
}  // namespace cairn::e2e
