#include <driver_types.h>

#include <fstream>

#include "tests/e2e/support/served_test.hpp"

// A server on a machine where some GPUs do not open. The fake libcudart replaces that of NVIDIA.
namespace cairn::e2e {
namespace {

using testing::HasSubstr;

// `calls`: which call of cudaSetDevice fails, * for all. It is the first call that opens a device.
ServerSetup with_failing_devices(const std::string& runtime, const std::string& calls) {
  return {.flags = {"--runtime", runtime},
          .environment = {"LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER, "CAIRN_FAKE_CUDA_DEVICES=3",
                          "CAIRN_FAKE_CUDA_FAIL=cudaSetDevice:" + calls + ":" +
                              std::to_string(cudaErrorDevicesUnavailable)}};
}

TEST(LeftOutDeviceTest, NamesTheMissingDeviceAndServesTheOthers) {
  const fakes::TempDir folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"caches": []})";
  for (const int broken : {0, 1, 2}) {
    SCOPED_TRACE(broken);
    ServerSetup setup = with_failing_devices("auto", std::to_string(broken + 1));
    setup.flags.insert(setup.flags.end(), {"--config", config});
    ServerProcess server(std::move(setup));
    Rest rest(server.endpoint());
    const std::string why = "CUDA device " + std::to_string(broken) + " does not answer";
    EXPECT_THAT(server.output(), HasSubstr(why));
    const json system = rest.get("/v1/system").document();
    EXPECT_EQ(system.at("runtime"), "cuda");
    EXPECT_EQ(system.at("runtime_fallback"), nullptr);
    ASSERT_EQ(system.at("devices_left_out").size(), 1u);
    EXPECT_EQ(system.at("devices_left_out").at(0).at("id"), broken);
    EXPECT_THAT(system.at("devices_left_out").at(0).at("why").get<std::string>(), HasSubstr(why));
    EXPECT_EQ(rest.metric("cairn_devices{state=\"open\"}"), 2);
    EXPECT_EQ(rest.metric("cairn_devices{state=\"left_out\"}"), 1);
    EXPECT_THAT(rest.get("/readyz"), has_status(200));
    for (int device = 0; device < 3; ++device) {
      json body = cache_body({.device = 4, .pinned = 4});
      body["tiers"]["device"]["device_id"] = device;
      body["tiers"]["pinned"]["device_id"] = device;
      if (device == broken) {
        const Reply refused = rest.put("/v1/caches/broken", body);
        EXPECT_THAT(refused, is_problem(422, "impossible"));
        EXPECT_THAT(refused.document().at("detail").get<std::string>(), HasSubstr(why));
        // Pinned memory near a device that is left out has no nearest device.
        body["tiers"].erase("device");
      }
      TestCache cache = TestCache::made_of(rest, body);
      cache.store(1);
      cache.expect_intact(1);
      if (device != broken) {
        EXPECT_EQ(cache.transfer(keys(1, 1), "pinned", "move").at("state"), "done");
        EXPECT_EQ(cache.expect_intact(1), "pinned");
      }
    }
    EXPECT_EQ(server.stop(), 0) << server.output();
  }
}

TEST(LeftOutDeviceTest, FallsBackToTheHostWithoutAnyDevice) {
  ServerProcess server(with_failing_devices("auto", "*"));
  Rest rest(server.endpoint());
  const json system = rest.get("/v1/system").document();
  EXPECT_EQ(system.at("runtime"), "host");
  EXPECT_THAT(system.at("runtime_fallback").get<std::string>(),
              HasSubstr("CUDA device 0 does not answer"));
  EXPECT_THAT(server.output(), HasSubstr("there is a GPU, and it is not used"));
  EXPECT_EQ(server.stop(), 0) << server.output();
}

TEST(LeftOutDeviceTest, CudaRuntimeDoesNotStartWithoutADevice) {
  try {
    const ServerProcess server(with_failing_devices("cuda", "*"));
    FAIL() << "it started";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("CUDA device 0 does not answer"));
  }
  const fakes::TempDir folder;
  ::setenv("LD_LIBRARY_PATH", CAIRN_FAKE_CUDART_FOLDER, 1);
  ::setenv("CAIRN_FAKE_CUDA_FAIL", "cudaSetDevice:*:46", 1);
  ChildProcess process({CAIRN_SERVER_PROGRAM, "--runtime", "cuda", "--listen", "127.0.0.1:0",
                        "--data-dir", folder.path().string()});
  ::unsetenv("CAIRN_FAKE_CUDA_FAIL");
  ::unsetenv("LD_LIBRARY_PATH");
  EXPECT_EQ(process.wait(), 1) << "a device may answer later";
  EXPECT_THAT(process.standard_error(), HasSubstr("CUDA device 0 does not answer"));
}

TEST(LeftOutDeviceTest, HostRuntimeIsNotAFallback) {
  ServerProcess server({.flags = {"--runtime", "host"}});
  Rest rest(server.endpoint());
  const json system = rest.get("/v1/system").document();
  EXPECT_EQ(system.at("runtime_fallback"), nullptr);
  EXPECT_EQ(system.at("devices_left_out"), json::array());
  EXPECT_EQ(rest.metric("cairn_devices{state=\"open\"}"), 1);
  EXPECT_EQ(server.stop(), 0) << server.output();
}

}  // namespace
}  // namespace cairn::e2e
