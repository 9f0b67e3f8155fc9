#include <driver_types.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "tests/e2e/support/mapped_slots.hpp"
#include "tests/e2e/support/served_test.hpp"

// Another process opens the memory of a GPU: a second server plays the engine. The fake libcudart
// replaces that of NVIDIA.
namespace cairn::e2e {
namespace {

class DeviceExportTest : public testing::Test {
 protected:
  struct Served {
    explicit Served(std::vector<std::string> environment = {}) {
      environment.push_back("LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER);
      std::ofstream(folder.path() / "config.json") << R"({"caches": []})";
      server.emplace(ServerSetup{
          .flags = {"--runtime", "cuda", "--config", (folder.path() / "config.json").string(),
                    "--unix", (folder.path() / "socket").string()},
          .environment = std::move(environment)});
      rest.emplace(server->endpoint());
      local.emplace(client::Endpoint::parse("unix:" + (folder.path() / "socket").string()).value());
    }
    ~Served() { EXPECT_EQ(server->stop(), 0) << server->output(); }
    fakes::TempDir folder;
    std::optional<ServerProcess> server;
    std::optional<Rest> rest;
    std::optional<Rest> local;  // over the Unix socket
  };
  static json exported(Served& by, const TestCache& cache, const std::string& tier = "device") {
    const Reply reply = by.rest->post(cache.path("/tiers/" + tier + "/export"));
    EXPECT_THAT(reply, has_status(200));
    return reply.document();
  }
  // A device tier that other processes open by a descriptor.
  static json by_descriptor(std::uint32_t blocks) {
    json body = cache_body({.device = blocks});
    body["tiers"]["device"]["memory"] = {{"export", "descriptor"}};
    return body;
  }
  void expect_form(const json& memory) {
    EXPECT_EQ(memory.at("layout"), "fully_contiguous");
    EXPECT_FALSE(memory.contains("block_dim"));
    EXPECT_EQ(memory.at("shape").at("inner_dim"), kInner);
    EXPECT_GE(memory.at("size_bytes"), 4 * kBlockBytes);
    EXPECT_EQ(memory.at("generation"), 1);
    const json devices = owner_.rest->get("/v1/devices").document();
    EXPECT_EQ(memory.at("device_uuid"), devices.at("devices").at(0).at("uuid"));
    EXPECT_NE(memory.at("device_uuid"), "");
  }
  static json on_import(const json& import) {
    json body = cache_body({.device = 4});
    body["tiers"]["device"]["memory"] = {{"import", import}};
    return body;
  }

  Served owner_;
};

TEST_F(DeviceExportTest, AnotherProcessReadsAndWritesTheMemory) {
  TestCache cache(*owner_.rest, {.device = 4});
  const json description = exported(owner_, cache);
  EXPECT_EQ(description.at("kind"), "cuda_ipc");
  expect_form(description);
  EXPECT_EQ(description.at("handle").get<std::string>().size(), 128u);

  Served engine;
  TestCache same = TestCache::made_of(*engine.rest, on_import(description));
  // A reader does not see how to open it.
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

TEST_F(DeviceExportTest, PinnedTierExportsSharedMemory) {
  TestCache cache(*owner_.rest, {.pinned = 4, .layout = "second"});
  cache.store(1);
  const json description = exported(owner_, cache, "pinned");
  EXPECT_EQ(description.at("kind"), "shm");
  const MappedTier mapped(description);
  EXPECT_EQ(mapped.read_block(cache.match(keys(1, 1), 0).at("blocks").at(0).at("slot")), block(1));
}

TEST_F(DeviceExportTest, RefusesHandlesThatDoNotFit) {
  TestCache cache(*owner_.rest, {.device = 4});
  json description = exported(owner_, cache);
  EXPECT_THAT(owner_.rest->put("/v1/caches/own", on_import(description)),
              is_problem(422, "impossible"));

  Served engine;
  json garbage = description;
  garbage["handle"] = std::string(128, 'e');
  EXPECT_THAT(engine.rest->put("/v1/caches/a", on_import(garbage)), is_problem(422, "impossible"));
  json larger = description;
  larger["size_bytes"] = 1ull << 30;
  EXPECT_THAT(engine.rest->put("/v1/caches/b", on_import(larger)), is_problem(422, "impossible"));
  EXPECT_THAT(engine.rest->put("/v1/caches/c", on_import(description)), has_status(201));
  EXPECT_THAT(engine.rest->put("/v1/caches/d", on_import(description)),
              is_problem(409, "state_conflict"));
}

TEST_F(DeviceExportTest, PassesADescriptorToAnotherProcess) {
  TestCache cache = TestCache::made_of(*owner_.rest, by_descriptor(4));
  const Reply exported = owner_.local->post(cache.path("/tiers/device/export"));
  ASSERT_THAT(exported, has_status(200));
  const json description = exported.document();
  EXPECT_EQ(description.at("kind"), "cuda_vmm_fd");
  EXPECT_EQ(description.at("descriptor"), 0);
  EXPECT_EQ(description.at("device_id"), 0);
  expect_form(description);
  ASSERT_THAT(exported.files, testing::SizeIs(1));

  Served engine;
  ASSERT_THAT(engine.local->put("/v1/caches/same", on_import(description), exported.files),
              has_status(201));
  // The engine fills a slot that the owner has allocated, and the owner commits it.
  const json allocation = cache.allocate(1, "device");
  const json& handle = allocation.at("blocks").at(0);
  ASSERT_EQ(handle.at("slot"), 0);
  ASSERT_THAT(engine.rest->put_bytes("/v1/caches/same/keys/" + key(7), block(7)), has_status(201));
  EXPECT_THAT(
      owner_.rest->post(cache.path("/commit"), {{"lease", allocation.at("lease")},
                                                {"blocks", {TestCache::commit_block(handle, 7)}}}),
      has_status(200));
  EXPECT_EQ(cache.expect_intact(7), "device");
  // The engine exports the imported memory in the same form.
  const Reply again = engine.local->post("/v1/caches/same/tiers/device/export");
  EXPECT_EQ(again.document().at("kind"), "cuda_vmm_fd");
  EXPECT_THAT(again.files, testing::SizeIs(1));
  // The owner's memory exists as long as any process has it.
  EXPECT_THAT(owner_.rest->del(cache.path("?force=true")), has_status(204));
  EXPECT_TRUE(engine.rest->get("/v1/caches/same/keys/" + key(7)).body == block(7));
}

TEST_F(DeviceExportTest, RefusesADescriptorOverTcp) {
  const TestCache cache = TestCache::made_of(*owner_.rest, by_descriptor(4));
  const Reply reply = owner_.rest->post(cache.path("/tiers/device/export"));
  EXPECT_THAT(reply, is_problem(422, "impossible"));
  EXPECT_THAT(reply.body, testing::HasSubstr("--unix"));
}

TEST_F(DeviceExportTest, RefusesDescriptorsThatDoNotFit) {
  TestCache cache = TestCache::made_of(*owner_.rest, by_descriptor(4));
  cache.store(1);
  const Reply exported = owner_.local->post(cache.path("/tiers/device/export"));
  const json description = exported.document();
  Served engine;
  const auto put = [&](const std::string& name, const json& import, PassedFiles files) {
    return engine.local->put("/v1/caches/" + name, on_import(import), std::move(files));
  };
  EXPECT_THAT(put("a", description, {}), is_problem(422, "impossible"));
  const PassedFiles other = {std::make_shared<const FileDescriptor>(::dup(0))};
  EXPECT_THAT(put("a", description, other), is_problem(422, "impossible"));
  json larger = description;
  larger["size_bytes"] = 1ull << 29;
  EXPECT_THAT(put("a", larger, exported.files), is_problem(422, "impossible"));
  json odd = description;
  odd["size_bytes"] = description.at("size_bytes").get<std::uint64_t>() - 4096;
  EXPECT_THAT(put("a", odd, exported.files), is_problem(422, "impossible"));
  json small = description;
  small["regions"][0]["size_bytes"] = 8;
  EXPECT_THAT(put("a", small, exported.files), is_problem(422, "impossible"));
  json pinned = cache_body({.pinned = 4});
  pinned["tiers"]["pinned"]["memory"] = {{"import", description}};
  EXPECT_THAT(engine.local->put("/v1/caches/a", pinned, exported.files),
              is_problem(422, "impossible"));
  // That was the client's mistake: the device still works.
  EXPECT_THAT(put("a", description, exported.files), has_status(201));
  EXPECT_THAT(put("a", description, exported.files), has_status(200)) << "the same open file";
  EXPECT_THAT(put("b", description, exported.files), is_problem(409, "state_conflict"));
  cache.expect_intact(1);
}

// An engine's GPU memory, registered as an agent by the handle and by the descriptor.
TEST_F(DeviceExportTest, LoadsToAndStoresFromAGpuAgent) {
  for (const bool by_file : {false, true}) {
    SCOPED_TRACE(by_file);
    json body = cache_body({.device = 4, .layout = "first"});
    body["layout"]["alignment"] = 1;
    if (by_file) body["tiers"]["device"]["memory"] = {{"export", "descriptor"}};
    TestCache area = TestCache::made_of(*owner_.rest, body);  // the engine's blocks
    const Reply exported = owner_.local->post(area.path("/tiers/device/export"));
    const json description = exported.document();
    json regions = json::array();
    for (const json& region : description.at("regions")) {
      json part = {{"kind", description.at("kind")},
                   {"offset_bytes", region.at("offset_bytes")},
                   {"size_bytes", region.at("size_bytes")}};
      part[by_file ? "descriptor" : "handle"] = description.at(by_file ? "descriptor" : "handle");
      regions.push_back(part);
    }
    json shape = body["layout"];
    shape.erase("alignment");
    const json agent = {
        {"num_blocks", 4}, {"layout", "layer_separate"}, {"shape", shape}, {"regions", regions}};

    Served server;
    const Reply made = server.local->put("/v1/agents/gpu", agent, exported.files);
    ASSERT_THAT(made, has_status(201));
    const json descriptor = made.document().at("descriptors").at(0);
    EXPECT_THAT(std::string(descriptor.at("device_uuid")), testing::StartsWith("GPU-fa"));
    EXPECT_EQ(descriptor.contains("handle"), !by_file);
    EXPECT_FALSE(
        server.rest->get("/v1/agents/gpu").document().at("descriptors").at(0).contains("handle"))
        << "a reader does not see how to open it";
    EXPECT_EQ(made.document().at("ends_with"), by_file ? "connection" : "lease");
    if (!by_file) {
      EXPECT_THAT(server.rest->put("/v1/agents/other", agent), is_problem(409, "state_conflict"));
      EXPECT_THAT(server.rest->put("/v1/agents/gpu", agent), has_status(200));
    }

    TestCache cache(*server.rest, {.device = 4, .pinned = 4, .disk = 4});
    cache.store(1, "?tier=device");
    cache.store(2, "?tier=pinned");
    cache.store(3, "?tier=disk");
    const json taken = area.allocate(3, "device");
    json numbers = json::array();
    json commits = json::array();
    for (int n = 1; n <= 3; ++n) {
      const json& handle = taken.at("blocks").at(static_cast<std::size_t>(n - 1));
      numbers.push_back(handle.at("slot"));
      commits.push_back(TestCache::commit_block(handle, n));
    }
    const Reply loaded = server.rest->post(
        cache.path("/load"),
        {{"keys", keys(1, 3)}, {"agent", "gpu"}, {"blocks", numbers}, {"wait_ms", 60'000}});
    ASSERT_THAT(loaded, has_status(200));
    EXPECT_EQ(loaded.document().at("state"), "done") << loaded.body;
    EXPECT_EQ(loaded.document().at("layers_done"), kLayers);
    ASSERT_THAT(owner_.rest->post(area.path("/commit"),
                                  {{"lease", taken.at("lease")}, {"blocks", commits}}),
                has_status(200));
    for (int n = 1; n <= 3; ++n) EXPECT_EQ(area.expect_intact(n), "device");

    // The same bytes in another cache.
    TestCache other(*server.rest, {.device = 4, .pinned = 4, .disk = 4});
    const Reply stored = server.rest->post(
        other.path("/store"),
        {{"keys", keys(1, 3)}, {"agent", "gpu"}, {"blocks", numbers}, {"wait_ms", 60'000}});
    ASSERT_THAT(stored, has_status(200));
    EXPECT_EQ(stored.document().at("state"), "done") << stored.body;
    for (int n = 1; n <= 3; ++n) EXPECT_EQ(other.expect_intact(n), "device");
    ASSERT_THAT(server.rest->del("/v1/agents/gpu"), has_status(204));
  }
}

TEST(DeviceExportFault, ReportsAFailedCallAndRecovers) {
  fakes::TempDir folder;
  std::ofstream(folder.path() / "config.json") << R"({"caches": []})";
  ServerProcess server(
      {.flags = {"--runtime", "cuda", "--config", (folder.path() / "config.json").string()},
       .environment = {
           "LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER,
           "CAIRN_FAKE_CUDA_FAIL=cudaIpcGetMemHandle:1:" + std::to_string(cudaErrorNotSupported)}});
  Rest rest(server.endpoint());
  const TestCache cache(rest, {.device = 4});
  EXPECT_THAT(rest.post(cache.path("/tiers/device/export")), is_problem(500, "device_error"));
  // The call failed, but the device still works.
  EXPECT_THAT(rest.post(cache.path("/tiers/device/export")), has_status(200));
  EXPECT_EQ(server.stop(), 0) << server.output();
}

}  // namespace
}  // namespace cairn::e2e
