#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "tests/e2e/support/served_test.hpp"

// Several devices in one server: a cache on each, and copies between them. Runs on the host runtime
// and, if it is built, on the fake libcudart.
namespace cairn::e2e {
namespace {

struct Machine {
  const char* name;
  std::vector<std::string> flags;
  std::vector<std::string> environment;
};
void PrintTo(const Machine& machine, std::ostream* out) { *out << machine.name; }

std::vector<Machine> machines() {
  std::vector<Machine> all = {{"host", {"--runtime", "host", "--host-devices", "3"}, {}}};
#ifdef CAIRN_FAKE_CUDART_FOLDER
  all.push_back({"cuda",
                 {"--runtime", "cuda"},
                 {"LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER, "CAIRN_FAKE_CUDA_DEVICES=3"}});
#endif
  return all;
}

class DevicesTest : public testing::TestWithParam<Machine> {
 protected:
  void TearDown() override { EXPECT_EQ(server_.stop(), 0) << server_.output(); }

  json body_on(int device, const std::string& layout, std::uint32_t blocks = 8) {
    json body = cache_body({.device = blocks, .pinned = blocks, .disk = blocks, .layout = layout});
    body["tiers"]["device"]["device_id"] = device;
    body["tiers"]["pinned"]["device_id"] = device;
    return body;
  }
  Reply copy(TestCache& into, const TestCache& from, const json& keys,
             const std::string& to = "device") {
    return rest_.post(
        into.path("/transfers"),
        {{"keys", keys}, {"to", to}, {"from_cache", from.name()}, {"wait_ms", 60'000}});
  }
  // Returns the counts once nothing is pinned.
  static TestCache::Counts at_rest(TestCache& cache) {
    TestCache::Counts counts;
    EXPECT_TRUE(eventually([&] {
      counts = cache.counts();
      return counts.at("device/committed") + counts.at("pinned/committed") +
                 counts.at("disk/committed") ==
             0;
    }));
    return counts;
  }
  std::string parent_of(TestCache& cache, int n) {
    const json listed = rest_.get(cache.path("/blocks")).document();
    for (const json& info : listed.at("blocks")) {
      if (info.value("key", json()) == key(n) && info.contains("parent") &&
          info.at("parent").is_string()) {
        return info.at("parent");
      }
    }
    return {};
  }

  ServerProcess server_{
      ServerSetup{.flags = GetParam().flags, .environment = GetParam().environment}};
  Rest rest_{server_.endpoint()};
};
TEST_P(DevicesTest, ReportsDeviceMemory) {
  TestCache cache = TestCache::made_of(rest_, body_on(1, "second"));
  const auto slots_of = [&](int device) {
    const json devices = rest_.get("/v1/devices").document().at("devices");
    for (const json& one : devices.at(static_cast<std::size_t>(device)).at("allocators")) {
      if (one.at("allocator") == "slots") return one;
    }
    return json();
  };
  const json devices = rest_.get("/v1/devices").document().at("devices");
  ASSERT_EQ(devices.size(), 3u);
  std::set<std::string> uuids;
  for (const json& device : devices) {
    EXPECT_EQ(device.at("kind"), GetParam().name);
    EXPECT_GT(device.at("total_bytes"), 0);
    uuids.insert(device.at("uuid"));
  }
  EXPECT_EQ(uuids.size(), 3u);
  EXPECT_EQ(slots_of(1).at("allocated_bytes"), 0);
  const std::uint64_t slot_bytes = slots_of(1).at("reserved_bytes").get<std::uint64_t>() / 8;
  EXPECT_GE(slot_bytes, kBlockBytes);
  EXPECT_EQ(slots_of(1).at("largest_free_bytes"), 8 * slot_bytes);

  cache.store(1, "?tier=device");
  cache.store(2, "?tier=device");
  EXPECT_EQ(slots_of(1).at("allocated_bytes"), 2 * slot_bytes);
  ASSERT_THAT(rest_.del(cache.key_path(1)), has_status(204));
  EXPECT_EQ(slots_of(1).at("peak_allocated_bytes"), 2 * slot_bytes);
  const Reply reset = rest_.post("/v1/devices/1/reset_peaks");
  EXPECT_THAT(reset, has_status(200));
  EXPECT_EQ(slots_of(1).at("peak_allocated_bytes"), slot_bytes);
  const Reply emptied = rest_.post("/v1/devices/1/empty_cache");
  EXPECT_THAT(emptied, has_status(200));
  EXPECT_TRUE(emptied.document().contains("freed_bytes"));
  EXPECT_EQ(cache.expect_intact(2), "device");
}

TEST_P(DevicesTest, OneAllocatorServesTheTiersOfADevice) {
  const auto series = [&](const std::string& name) {
    return rest_.metric("cairn_allocator_" + name + "{allocator=\"device1\",device=\"1\"}");
  };
  const auto reserved = [&](int device) {
    return rest_.get("/v1/devices")
        .document()
        .at("devices")
        .at(static_cast<std::size_t>(device))
        .at("reserved_bytes")
        .get<double>();
  };
  EXPECT_EQ(series("reserved_bytes"), 0);
  std::string name;
  {
    TestCache cache = TestCache::made_of(rest_, body_on(1, "second"));
    name = cache.name();
    const double tier = series("allocated_bytes");
    EXPECT_GE(tier, 8.0 * kBlockBytes);
    EXPECT_EQ(series("reserved_bytes"), tier);
    EXPECT_EQ(series("cached_bytes"), 0);
    EXPECT_EQ(series("peak_allocated_bytes"), tier);
    EXPECT_EQ(series("cache_misses_total"), 1);
    EXPECT_EQ(series("retries_total"), 0);
    EXPECT_EQ(reserved(1), tier);
  }
  // By default the memory of a deleted tier is freed.
  EXPECT_THAT(rest_.del("/v1/caches/" + name), has_status(204));
  EXPECT_EQ(series("reserved_bytes"), 0);
  EXPECT_EQ(series("frees_total"), 1);
}

TEST_P(DevicesTest, KeepsMemoryForTheNextTier) {
  ServerSetup setup{.flags = GetParam().flags, .environment = GetParam().environment};
  const fakes::TempDir folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"caches": []})";
  setup.flags.insert(setup.flags.end(), {"--config", config, "--device-kept-bytes", "1048576"});
  ServerProcess server(std::move(setup));
  Rest rest(server.endpoint());
  const auto series = [&](const std::string& name) {
    return rest.metric("cairn_allocator_" + name + "{allocator=\"device2\",device=\"2\"}");
  };
  const json body = body_on(2, "first");
  for (int round = 0; round < 3; ++round) {
    TestCache cache = TestCache::made_of(rest, body);
    // The bytes of an earlier tier are gone: an unwritten block reads as zeros.
    const json allocated = cache.allocate(8, "device");
    json blocks = json::array();
    for (int n = 0; n < 8; ++n) {
      blocks.push_back(
          TestCache::commit_block(allocated.at("blocks").at(static_cast<std::size_t>(n)), n));
    }
    ASSERT_THAT(
        rest.post(cache.path("/commit"), {{"lease", allocated.at("lease")}, {"blocks", blocks}}),
        has_status(200));
    for (int n = 0; n < 8; ++n) {
      EXPECT_EQ(rest.get(cache.key_path(n)).body, std::string(kBlockBytes, '\0')) << round;
    }
    ASSERT_TRUE(rest.del("/v1/leases/" + allocated.at("lease").get<std::string>()).ok());
    for (int n = 100; n < 108; ++n) cache.store(n, "?tier=device");
    EXPECT_EQ(series("cache_misses_total"), 1) << round;
    EXPECT_EQ(series("cache_hits_total"), round);
    ASSERT_THAT(rest.del(cache.path("?force=true")), has_status(204));
    EXPECT_GT(series("cached_bytes"), 0);
    EXPECT_EQ(series("allocated_bytes"), 0);
  }
  EXPECT_GT(rest.post("/v1/devices/2/empty_cache").document().at("freed_bytes"), 0);
  EXPECT_EQ(series("reserved_bytes"), 0);
  EXPECT_EQ(server.stop(), 0) << server.output();
}

// Blocks in pieces: their copies have long lists, which the host's streams read from their device.
TEST_P(DevicesTest, CopiesUseMemoryOfTheirDevice) {
  constexpr int kBlocks = 100;
  json body = body_on(1, "fully_contiguous", kBlocks);
  body["tiers"]["device"] = tier_body(kBlocks, "second");
  body["tiers"]["device"]["device_id"] = 1;
  TestCache cache = TestCache::made_of(rest_, body);
  const auto series = [&](const std::string& name, const std::string& allocator = "device1") {
    return rest_.metric("cairn_allocator_" + name + "{allocator=\"" + allocator +
                        "\",device=\"1\"}");
  };
  const double tier_bytes = series("allocated_bytes");
  EXPECT_EQ(series("splits_total"), 0);
  EXPECT_EQ(series("cached_bytes"), 0);
  for (int n = 0; n < kBlocks; ++n) cache.store(n, "?tier=device");
  for (const int count : {10, kBlocks}) {
    for (const char* to : {"pinned", "device"}) {
      EXPECT_EQ(cache.transfer(keys(0, count), to, "move").at("state"), "done");
    }
  }
  EXPECT_EQ(cache.transfer(keys(0, 10), "disk").at("state"), "done");
  // A GPU's launches carry their lists.
  if (std::string(GetParam().name) == "host") {
    EXPECT_GE(series("allocations_total", "device_slabs"), 2 + 1);
    EXPECT_GT(series("splits_total"), 0);
    EXPECT_GT(series("cache_hits_total"), 0);
    EXPECT_TRUE(eventually([&] { return series("merges_total") > 0; }));
    EXPECT_TRUE(eventually([&] { return series("pending_bytes") == 0; }));
    EXPECT_GT(series("cached_bytes"), 0);
    EXPECT_GT(rest_.post("/v1/devices/1/empty_cache").document().at("freed_bytes"), 0);
    EXPECT_EQ(series("reserved_bytes", "device_slabs"), 0);
    EXPECT_EQ(series("cached_bytes"), 0);
  }
  EXPECT_EQ(series("allocated_bytes"), tier_bytes);
  for (int n = 0; n < kBlocks; ++n) cache.expect_intact(n);
}

// A list is freed when its copies are issued, and pending until they have run.
TEST(DeviceListsTest, PendingBytesRiseAndFall) {
  constexpr int kBlocks = 64;
  ServerProcess server({.flags = {"--runtime", "host"}});
  Rest rest(server.endpoint());
  json body = cache_body({.device = kBlocks, .pinned = kBlocks});
  body["tiers"]["device"] = tier_body(kBlocks, "second");
  // Blocks have 32 pieces of 16 KiB, and a transfer copies 32 MiB.
  body["layout"].update({{"num_layers", 16}, {"page_size", 16}, {"inner_dim", 512}});
  TestCache cache = TestCache::made_of(rest, body);
  const json allocated = cache.allocate(kBlocks, "device");
  json blocks = json::array();
  for (int n = 0; n < kBlocks; ++n) {
    const json& handle = allocated.at("blocks").at(static_cast<std::size_t>(n));
    blocks.push_back(TestCache::commit_block(handle, n));
  }
  ASSERT_THAT(
      rest.post(cache.path("/commit"), {{"lease", allocated.at("lease")}, {"blocks", blocks}}),
      has_status(200));
  ASSERT_TRUE(rest.del("/v1/leases/" + allocated.at("lease").get<std::string>()).ok());
  const auto pending_bytes = [&] {
    return rest.metric(R"(cairn_allocator_pending_bytes{allocator="device0",device="0"})");
  };
  bool at_device = true;
  const bool has_risen = eventually([&] {
    const Reply begun = rest.post(
        cache.path("/transfers"),
        {{"keys", keys(0, kBlocks)}, {"to", at_device ? "pinned" : "device"}, {"mode", "move"}});
    at_device = !at_device;
    const std::string transfer = begun.document().at("transfer");
    bool seen = false;
    std::string state;
    do {
      seen = seen || pending_bytes() > 0;
      const json now = rest.get("/v1/transfers/" + transfer).document();
      state = now.at("state");
    } while (state == "queued" || state == "running");
    EXPECT_EQ(state, "done");
    return seen;
  });
  EXPECT_TRUE(has_risen);
  EXPECT_TRUE(eventually([&] { return pending_bytes() == 0; }));
  EXPECT_GT(rest.metric(R"(cairn_allocator_cached_bytes{allocator="device0",device="0"})"), 0);
  EXPECT_EQ(server.stop(), 0) << server.output();
}

TEST_P(DevicesTest, RefusesMissingDevices) {
  for (const char* id : {"3", "-1", "0x0", "x", "99999999999999999999"}) {
    for (const char* verb : {"empty_cache", "reset_peaks"}) {
      EXPECT_THAT(rest_.post("/v1/devices/" + std::string(id) + "/" + verb),
                  is_problem(404, "not_found"));
    }
  }
  EXPECT_THAT(rest_.get("/v1/devices?device=1"), is_refusal());
}

INSTANTIATE_TEST_SUITE_P(Machines, DevicesTest, testing::ValuesIn(machines()),
                         [](const auto& machine) { return std::string(machine.param.name); });

TEST_P(DevicesTest, CopiesBlocksBetweenDevices) {
  TestCache a = TestCache::made_of(rest_, body_on(0, "fully_contiguous"));
  TestCache b = TestCache::made_of(rest_, body_on(1, "second"));
  TestCache c = TestCache::made_of(rest_, body_on(2, "first"));
  a.store_prefix(1, 5, "device");
  const json there = copy(b, a, keys(1, 5)).document();
  EXPECT_EQ(there.at("state"), "done") << there;
  EXPECT_EQ(there.at("blocks_done"), 5);
  EXPECT_EQ(there.at("bytes"), 5 * kBlockBytes);
  EXPECT_EQ(copy(c, b, keys(1, 5)).document().at("state"), "done");
  // Clear the sources: what is read now are the copies.
  EXPECT_THAT(rest_.post(a.path("/clear")), has_status(200));
  EXPECT_THAT(rest_.post(b.path("/clear")), has_status(200));
  for (int n = 1; n <= 5; ++n) EXPECT_EQ(c.expect_intact(n), "device");
  EXPECT_EQ(parent_of(c, 1), "");
  for (int n = 2; n <= 5; ++n) EXPECT_EQ(parent_of(c, n), key(n - 1));
}

TEST_P(DevicesTest, CopiesFromEveryTierToTheMemoryTiers) {
  TestCache a = TestCache::made_of(rest_, body_on(0, "first"));
  for (int n = 1; n <= 3; ++n) a.store(n, std::string("?tier=") + kTierNames[n - 1]);
  // The pin of a read or a write may outlast its response by a moment.
  const TestCache::Counts before = at_rest(a);
  for (const char* to : {"device", "pinned"}) {
    TestCache b = TestCache::made_of(rest_, body_on(1, "fully_contiguous"));
    EXPECT_EQ(copy(b, a, keys(1, 3), to).document().at("state"), "done");
    for (int n = 1; n <= 3; ++n) EXPECT_EQ(b.expect_intact(n), to);
    EXPECT_EQ(b.counts().at("leases"), 0);
    EXPECT_EQ(at_rest(b).at(std::string(to) + "/evictable"), 3);
  }
  // The source holds what it held before.
  EXPECT_EQ(at_rest(a), before);
}

TEST_P(DevicesTest, CountsBlocksThatAreThereAlready) {
  TestCache a = TestCache::made_of(rest_, body_on(0, "fully_contiguous"));
  TestCache b = TestCache::made_of(rest_, body_on(1, "fully_contiguous"));
  a.store_prefix(1, 3, "device");
  b.store(2, "?tier=pinned");
  const json done = copy(b, a, {key(1), key(2), key(3), key(1)}).document();
  EXPECT_EQ(done.at("state"), "done");
  EXPECT_EQ(done.at("blocks_done"), 4);
  EXPECT_EQ(done.at("bytes"), 3 * kBlockBytes) << "one comes from another tier of the cache";
  EXPECT_EQ(b.expect_intact(2), "device");
  EXPECT_EQ(copy(b, a, keys(1, 3)).document().at("bytes"), 0);
}

TEST_P(DevicesTest, RefusesImpossibleCopies) {
  TestCache a = TestCache::made_of(rest_, body_on(0, "fully_contiguous"));
  TestCache b = TestCache::made_of(rest_, body_on(1, "fully_contiguous", 2));
  json wider = body_on(1, "fully_contiguous");
  wider["layout"]["inner_dim"] = 2 * kInner;
  TestCache c = TestCache::made_of(rest_, wider);
  a.store_prefix(1, 3, "device");
  EXPECT_THAT(copy(b, a, keys(3, 2)), is_problem(404, "unknown_key"));
  EXPECT_THAT(copy(c, a, keys(1, 1)), is_problem(422, "impossible"));
  EXPECT_THAT(copy(a, a, keys(1, 1)), is_problem(422, "impossible"));
  EXPECT_THAT(copy(b, a, keys(1, 1), "disk"), is_problem(422, "impossible"));
  EXPECT_THAT(rest_.post(b.path("/transfers"),
                         {{"keys", keys(1, 1)}, {"to", "device"}, {"from_cache", "nowhere"}}),
              is_problem(404, "unknown_cache"));
  EXPECT_THAT(
      rest_.post(
          b.path("/transfers"),
          {{"keys", keys(1, 1)}, {"to", "device"}, {"mode", "move"}, {"from_cache", a.name()}}),
      is_problem(422, "impossible"));
  // Two of the three blocks fit. The third is named, and nothing is held for it.
  const json full = copy(b, a, keys(1, 3)).document();
  EXPECT_EQ(full.at("state"), "failed");
  ASSERT_EQ(full.at("failures").size(), 1u);
  EXPECT_EQ(full.at("failures").at(0).at("code"), "no_capacity");
  EXPECT_EQ(b.counts().at("leases"), 0);
  for (int n = 1; n <= 3; ++n) EXPECT_EQ(b.holds(n), n < 3) << n;
  EXPECT_EQ(copy(b, a, keys(1, 2)).document().at("state"), "done");
}

}  // namespace
}  // namespace cairn::e2e
