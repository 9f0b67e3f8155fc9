#include <fstream>

#include "tests/e2e/support/served_test.hpp"

// Blocks in several pieces on a device behind a bus. The fake libcudart replaces that of NVIDIA.
namespace cairn::e2e {
namespace {

TEST(DeviceMemoryTest, MovesBlocksInPiecesIntoAndOutOfADevice) {
  const fakes::TempDir folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"caches": []})";
  ServerProcess server({.flags = {"--runtime", "cuda", "--config", config},
                        .environment = {"LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER,
                                        "CAIRN_FAKE_CUDA_BEHIND_A_BUS=1"}});
  Rest rest(server.endpoint());
  for (const char* layout : {"first", "second"}) {
    SCOPED_TRACE(layout);
    json body = cache_body({.device = 4, .pinned = 8});
    body["tiers"]["device"] = tier_body(4, layout);
    TestCache cache = TestCache::made_of(rest, body);
    const double tiers =
        rest.metric(R"(cairn_allocator_allocated_bytes{allocator="device0",device="0"})");
    const double before =
        rest.metric(R"(cairn_allocator_allocations_total{allocator="device0",device="0"})");
    for (int n = 1; n <= 4; ++n) cache.store(n, "?tier=device");
    for (int n = 1; n <= 4; ++n) EXPECT_EQ(cache.expect_intact(n), "device");
    EXPECT_EQ(cache.transfer(keys(1, 4), "pinned", "move").at("state"), "done");
    for (int n = 1; n <= 4; ++n) EXPECT_EQ(cache.expect_intact(n), "pinned");
    EXPECT_EQ(cache.transfer(keys(1, 4), "device").at("state"), "done");
    for (int n = 1; n <= 4; ++n) EXPECT_EQ(cache.expect_intact(n), "device");
    EXPECT_GT(rest.metric(R"(cairn_allocator_allocations_total{allocator="device0",device="0"})"),
              before + 8);
    EXPECT_EQ(rest.metric(R"(cairn_allocator_allocated_bytes{allocator="device0",device="0"})"),
              tiers);
  }
  const auto scratch = [&] {
    const json device = rest.get("/v1/devices").document().at("devices").at(0);
    for (const json& one : device.at("allocators")) {
      if (one.at("allocator") == "device0") return one;
    }
    return json();
  };
  const json before = scratch();
  EXPECT_GT(before.at("cached_bytes"), 0);
  EXPECT_GT(before.at("segments"), 0);
  const json emptied = rest.post("/v1/devices/0/empty_cache").document();
  EXPECT_EQ(emptied.at("freed_bytes"), before.at("cached_bytes"));
  // Only the two tiers are left.
  EXPECT_EQ(scratch().at("reserved_bytes"), scratch().at("allocated_bytes"));
  EXPECT_EQ(scratch().at("segments"), 2);
  EXPECT_EQ(server.stop(), 0) << server.output();
}

}  // namespace
}  // namespace cairn::e2e
