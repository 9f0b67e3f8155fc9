#include <driver_types.h>

#include <fstream>
#include <optional>

#include "tests/e2e/support/mapped_tier.hpp"
#include "tests/e2e/support/served_test.hpp"

// Memory of a GPU in the hands of another process: a second server, which plays the engine. The
// fake libcudart stands in for NVIDIA's.
namespace cairn::e2e {
namespace {

class DeviceExportTest : public testing::Test {
 protected:
  struct Served {
    explicit Served(std::vector<std::string> environment = {}) {
      environment.push_back("LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER);
      std::ofstream(folder.path() / "config.json") << R"({"caches": []})";
      server.emplace(ServerSetup{
          .flags = {"--runtime", "cuda", "--config", (folder.path() / "config.json").string()},
          .environment = std::move(environment)});
      rest.emplace(server->endpoint());
    }
    ~Served() { EXPECT_EQ(server->stop(), 0) << server->output(); }
    fakes::TempDir folder;
    std::optional<ServerProcess> server;
    std::optional<Rest> rest;
  };
  static json exported(Served& by, const TestCache& cache, const std::string& tier = "device") {
    const Reply reply = by.rest->get(cache.path("/tiers/" + tier + "/export"));
    EXPECT_THAT(reply, has_status(200));
    return reply.document();
  }
  static json on_import(const json& import) {
    json body = cache_body({.device = 4});
    body["tiers"]["device"]["memory"] = {{"import", import}};
    return body;
  }

  Served owner_;
};

TEST_F(DeviceExportTest, IsReadAndWrittenByAnotherProcess) {
  TestCache cache(*owner_.rest, {.device = 4});
  const json told = exported(owner_, cache);
  EXPECT_EQ(told.at("kind"), "cuda_ipc");
  EXPECT_EQ(told.at("handle").get<std::string>().size(), 128u);

  Served engine;
  TestCache same = TestCache::made_of(*engine.rest, on_import(told));
  // Who may only look is not told how to open it.
  const json shown = engine.rest->get(same.path()).document();
  EXPECT_EQ(shown.at("/tiers/device/memory/import"_json_pointer).count("handle"), 0u);
  // The engine fills a slot that the owner has allocated, and the owner commits it.
  const json allocation = cache.allocate(1, "device");
  const json& handle = allocation.at("blocks").at(0);
  ASSERT_EQ(handle.at("slot"), 0);
  same.store(7);
  ASSERT_EQ(same.match(keys(7, 1), 0).at("blocks").at(0).at("slot"), 0);
  EXPECT_THAT(
      owner_.rest->post(cache.path("/commit"), {{"lease", allocation.at("lease")},
                                                {"blocks", {TestCache::commit_block(handle, 7)}}}),
      has_status(200));
  EXPECT_EQ(cache.expect_intact(7), "device");
  // And the other way round.
  cache.store(8);
  const json slot = cache.match(keys(8, 1), 0).at("blocks").at(0).at("slot");
  const json taken = same.allocate(1, "device");
  ASSERT_EQ(taken.at("blocks").at(0).at("slot"), slot);
  EXPECT_THAT(
      engine.rest->post(same.path("/commit"),
                        {{"lease", taken.at("lease")},
                         {"blocks", {TestCache::commit_block(taken.at("blocks").at(0), 8)}}}),
      has_status(200));
  same.expect_intact(8);
  EXPECT_THAT(engine.rest->del(same.path("?force=true")), has_status(204));
  cache.expect_intact(8);
}

TEST_F(DeviceExportTest, IsSharedMemoryWherePinned) {
  TestCache cache(*owner_.rest, {.pinned = 4, .layout = "second"});
  cache.store(1);
  const json told = exported(owner_, cache, "pinned");
  EXPECT_EQ(told.at("kind"), "shm");
  const MappedTier mapped(told);
  EXPECT_EQ(mapped.read_block(cache.match(keys(1, 1), 0).at("blocks").at(0).at("slot")), block(1));
}

TEST_F(DeviceExportTest, RefusesHandlesThatDoNotFit) {
  TestCache cache(*owner_.rest, {.device = 4});
  json told = exported(owner_, cache);
  EXPECT_THAT(owner_.rest->put("/v1/caches/own", on_import(told)), is_problem(422, "impossible"));

  Served engine;
  json garbage = told;
  garbage["handle"] = std::string(128, 'e');
  EXPECT_THAT(engine.rest->put("/v1/caches/a", on_import(garbage)), is_problem(422, "impossible"));
  json larger = told;
  larger["size_bytes"] = 1ull << 30;
  EXPECT_THAT(engine.rest->put("/v1/caches/b", on_import(larger)), is_problem(422, "impossible"));
  EXPECT_THAT(engine.rest->put("/v1/caches/c", on_import(told)), has_status(201));
  EXPECT_THAT(engine.rest->put("/v1/caches/d", on_import(told)), is_problem(409, "state_conflict"));
}

TEST(DeviceExportFault, IsToldByName) {
  fakes::TempDir folder;
  std::ofstream(folder.path() / "config.json") << R"({"caches": []})";
  ServerProcess server(
      {.flags = {"--runtime", "cuda", "--config", (folder.path() / "config.json").string()},
       .environment = {
           "LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER,
           "CAIRN_FAKE_CUDA_FAIL=cudaIpcGetMemHandle:1:" + std::to_string(cudaErrorNotSupported)}});
  Rest rest(server.endpoint());
  const TestCache cache(rest, {.device = 4});
  EXPECT_THAT(rest.get(cache.path("/tiers/device/export")), is_problem(500, "device_error"));
  // It was that call's failure, not the device's.
  EXPECT_THAT(rest.get(cache.path("/tiers/device/export")), has_status(200));
  EXPECT_EQ(server.stop(), 0) << server.output();
}

}  // namespace
}  // namespace cairn::e2e
