#include <driver_types.h>

#include <fstream>

#include "tests/e2e/support/served_test.hpp"

// A server whose GPU breaks. The fake libcudart replaces that of NVIDIA.
namespace cairn::e2e {
namespace {

using testing::HasSubstr;

class LostDeviceTest : public testing::Test {
 protected:
  // The first transfer to or from the device breaks it permanently.
  LostDeviceTest() {
    std::ofstream(folder_.path() / "config.json") << R"({"caches": []})";
    server_.emplace(ServerSetup{
        .flags = {"--runtime", "cuda", "--config", (folder_.path() / "config.json").string()},
        .environment = {
            "LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER,
            "CAIRN_FAKE_CUDA_FAIL=cudaEventRecord:1:" + std::to_string(cudaErrorIllegalAddress)}});
    rest_.emplace(server_->endpoint());
    cache_.emplace(*rest_, Shape{.device = 4, .pinned = 4, .disk = 4});
  }
  void lose_the_device() {
    EXPECT_THAT(rest_->put_bytes(cache_->key_path(100, "?tier=device"), block(100)),
                is_problem(500, "device_error"));
  }
  void TearDown() override { EXPECT_EQ(server_->stop(), 0) << server_->output(); }

  fakes::TempDir folder_;
  std::optional<ServerProcess> server_;
  std::optional<Rest> rest_;
  std::optional<TestCache> cache_;
};

TEST_F(LostDeviceTest, ReportsNotReadyAndTheReason) {
  EXPECT_THAT(rest_->get("/readyz"), has_status(200));
  EXPECT_EQ(rest_->get("/v1/system").document().at("lost_device"), nullptr);
  lose_the_device();
  const Reply ready = rest_->get("/readyz");
  EXPECT_THAT(ready, is_problem(503, "unavailable"));
  EXPECT_THAT(ready.body, HasSubstr("device 0 is lost"));
  EXPECT_EQ(ready.header("Retry-After"), "1");
  EXPECT_THAT(rest_->get("/v1/system").document().at("lost_device").get<std::string>(),
              HasSubstr("device 0 is lost"));
  EXPECT_THAT(rest_->get("/healthz"), has_status(200));
  EXPECT_TRUE(eventually([&] {
    return server_->output().find("a device is lost") != std::string::npos;
  })) << server_->output();
}

TEST_F(LostDeviceTest, StillServesTheOtherTiers) {
  cache_->store(1, "?tier=pinned");
  cache_->store(2, "?tier=disk");
  lose_the_device();
  EXPECT_EQ(cache_->expect_intact(1), "pinned");
  EXPECT_EQ(cache_->expect_intact(2), "disk");
  cache_->store(3, "?tier=pinned");
  cache_->store(4, "?tier=disk");
  EXPECT_EQ(cache_->transfer({key(1)}, "disk").at("state"), "done");
  EXPECT_EQ(cache_->expect_intact(3), "pinned");
  EXPECT_EQ(cache_->expect_intact(4), "disk");
  EXPECT_FALSE(cache_->holds(100));
}

// The server has allocated no staging memory yet, and can no longer pin any.
TEST_F(LostDeviceTest, ServesADiskTierForTheFirstTime) {
  lose_the_device();
  cache_->store(1, "?tier=disk");
  EXPECT_EQ(cache_->expect_intact(1), "disk");
}

}  // namespace
}  // namespace cairn::e2e
