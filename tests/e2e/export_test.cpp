#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/e2e/support/mapped_slots.hpp"
#include "tests/e2e/support/served_test.hpp"

// Another process maps a tier's memory. The test plays the engine.
namespace cairn::e2e {
namespace {

using testing::HasSubstr;

std::string tier_path(const TestCache& cache, const std::string& tier) {
  return cache.path("/tiers/" + tier + "/export");
}

class ExportTest : public ServedTest {
 protected:
  json exported(const TestCache& cache, const std::string& tier) {
    const Reply reply = rest_.post(tier_path(cache, tier));
    EXPECT_THAT(reply, has_status(200));
    return reply.document();
  }
  // Commits slots as block(first), block(first + 1), …
  Reply commit(TestCache& cache, const json& allocation, int first) {
    json committed = json::array();
    for (const json& handle : allocation.at("blocks")) {
      committed.push_back(
          TestCache::commit_block(handle, first + static_cast<int>(committed.size())));
    }
    return rest_.post(cache.path("/commit"),
                      {{"lease", allocation.at("lease")}, {"blocks", committed}});
  }
};

struct Place {
  const char* tier;
  const char* layout;
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.tier << " " << place.layout; }

class ExportOfTierTest : public ExportTest, public testing::WithParamInterface<Place> {
 protected:
  TestCache cache_{rest_, {.device = 5, .pinned = 5, .disk = 8, .layout = GetParam().layout}};
  const std::string tier_ = GetParam().tier;
};
INSTANTIATE_TEST_SUITE_P(Places, ExportOfTierTest,
                         testing::Values(Place{"device", "fully_contiguous"},
                                         Place{"device", "first"}, Place{"device", "second"},
                                         Place{"pinned", "fully_contiguous"},
                                         Place{"pinned", "first"}, Place{"pinned", "second"}),
                         [](const auto& place) {
                           return std::string(place.param.tier) + "_" + place.param.layout;
                         });

TEST_P(ExportOfTierTest, SaysWhatItIsAndHowItsBlocksLie) {
  const json memory = exported(cache_, tier_);
  const bool is_separate = std::string(GetParam().layout) != "fully_contiguous";
  EXPECT_EQ(memory.at("layout"), is_separate ? "layer_separate" : "fully_contiguous");
  EXPECT_EQ(memory.contains("block_dim"), is_separate);
  EXPECT_EQ(memory.value("block_dim", "fully_contiguous"), GetParam().layout);
  EXPECT_EQ(memory.at("shape"), json({{"num_layers", kLayers},
                                      {"outer_dim", kOuter},
                                      {"page_size", kPageSize},
                                      {"inner_dim", kInner},
                                      {"dtype_width_bytes", kDtypeBytes}}));
  EXPECT_GE(memory.at("size_bytes"), 5 * kBlockBytes);
  EXPECT_EQ(memory.at("generation"), 1);
  const json devices = rest_.get("/v1/devices").document();
  EXPECT_EQ(memory.value("device_uuid", ""),
            tier_ == "device" ? devices.at("devices").at(0).at("uuid") : "");
}

TEST_P(ExportOfTierTest, ReadsInPlaceUnderALease) {
  cache_.store_prefix(1, 3, tier_);
  const MappedTier mapped(exported(cache_, tier_));
  const json match = cache_.match(keys(1, 3), 30'000);
  ASSERT_EQ(match.at("matched"), 3);
  for (int n = 1; n <= 3; ++n) {
    const json& handle = match.at("blocks").at(static_cast<std::size_t>(n - 1));
    ASSERT_EQ(handle.at("tier"), tier_);
    EXPECT_EQ(mapped.read_block(handle.at("slot")), block(n)) << n;
  }
  EXPECT_THAT(rest_.del("/v1/leases/" + match.at("lease").get<std::string>()), has_status(200));
}

TEST_P(ExportOfTierTest, WritesInPlaceAndCommits) {
  MappedTier mapped(exported(cache_, tier_));
  const json allocation = cache_.allocate(3, tier_);
  for (int i = 0; i < 3; ++i) {
    mapped.write_block(allocation.at("blocks").at(static_cast<std::size_t>(i)).at("slot"),
                       block(10 + i));
  }
  EXPECT_FALSE(cache_.holds(10));
  EXPECT_THAT(commit(cache_, allocation, 10), has_status(200));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cache_.expect_intact(10 + i), tier_);
  // A transfer moves these bytes too.
  rest_.del("/v1/leases/" + allocation.at("lease").get<std::string>());
  EXPECT_EQ(cache_.transfer(keys(10, 3), "disk", "move").at("state"), "done");
  // A copy that is being read is removed after the read.
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(eventually([&] { return cache_.expect_intact(10 + i) == "disk"; }));
  }
}

TEST_P(ExportOfTierTest, CommitsSlotsAllocatedBeforeTheExport) {
  const json allocation = cache_.allocate(1, tier_);
  MappedTier mapped(exported(cache_, tier_));
  mapped.write_block(allocation.at("blocks").at(0).at("slot"), block(20));
  EXPECT_THAT(commit(cache_, allocation, 20), has_status(200));
  EXPECT_EQ(cache_.expect_intact(20), tier_);
}

TEST_P(ExportOfTierTest, KeepsBlocksWrittenOverHttp) {
  const MappedTier mapped(exported(cache_, tier_));
  cache_.store(30, "?tier=" + tier_);
  EXPECT_EQ(cache_.expect_intact(30), tier_);
  // A block with one piece written over HTTP has zeros elsewhere.
  const json allocation = cache_.allocate(1, tier_);
  const json& handle = allocation.at("blocks").at(0);
  EXPECT_TRUE(rest_
                  .put_bytes(cache_.data_path(handle, allocation.at("lease"), "&layer=1&outer=0"),
                             region(31, 1, 0))
                  .ok());
  EXPECT_THAT(commit(cache_, allocation, 31), has_status(200));
  std::string expected(kBlockBytes, '\0');
  expected.replace((1 * kOuter + 0) * kRegionBytes, kRegionBytes, region(31, 1, 0));
  EXPECT_TRUE(rest_.get(cache_.key_path(31)).body == expected);
  EXPECT_EQ(mapped.read_block(handle.at("slot")), expected);
}

TEST_F(ExportTest, OnlyTheServersUserCanOpenTheFile) {
  const TestCache cache(rest_, {.device = 2, .pinned = 2});
  for (const char* tier : {"device", "pinned"}) {
    const json description = exported(cache, tier);
    EXPECT_EQ(description.at("kind"), "shm");
    struct stat file {};
    ASSERT_EQ(::stat(description.at("path").get<std::string>().c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 07777, 0600u);
    EXPECT_EQ(file.st_uid, ::geteuid());
    EXPECT_EQ(file.st_ino, description.at("inode"));
    EXPECT_GE(static_cast<std::uint64_t>(file.st_size),
              description.at("size_bytes").get<std::uint64_t>());
  }
}

// Otherwise one process could kill another by truncating the memory that both have mapped.
TEST_F(ExportTest, RefusesToCutTheFile) {
  TestCache cache(rest_, {.pinned = 2});
  const json description = exported(cache, "pinned");
  const int file = ::open(description.at("path").get<std::string>().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0);
  EXPECT_EQ(::ftruncate(file, 0), -1);
  EXPECT_EQ(errno, EPERM);
  ::close(file);
  cache.store(1);
  cache.expect_intact(1);
}

// Blocks keep their places, and those in the added memory are found where the strides say.
TEST_F(ExportTest, ATierThatGrowsKeepsItsBlocksInPlace) {
  json body = cache_body({.pinned = 4});
  body["layout"]["alignment"] = 4096;
  TestCache cache = TestCache::made_of(rest_, body);
  const json before = exported(cache, "pinned");
  const MappedTier old(before);
  cache.store_prefix(1, 4, "pinned");
  const json more_blocks = {{"tiers", {{"pinned", {{"num_blocks", 9}}}}}};
  const Reply changed = rest_.send({.method = "PATCH",
                                    .target = cache.path(),
                                    .body = more_blocks.dump(),
                                    .content_type = "application/json"});
  ASSERT_EQ(changed.status, 200u) << changed.body;
  const json after = exported(cache, "pinned");
  EXPECT_NE(before.at("generation"), after.at("generation"));
  EXPECT_EQ(before.at("inode"), after.at("inode"));
  const MappedTier grown(after);
  cache.store_prefix(5, 5, "pinned");
  const json match = cache.match(keys(1, 4), 30'000);
  ASSERT_EQ(match.at("matched"), 4);
  const json more = cache.match(keys(5, 5), 30'000);
  ASSERT_EQ(more.at("matched"), 5);
  for (int n = 1; n <= 9; ++n) {
    const json& list = (n <= 4 ? match : more).at("blocks");
    const json& slot = list.at(static_cast<std::size_t>(n <= 4 ? n - 1 : n - 5)).at("slot");
    EXPECT_EQ(grown.read_block(slot), block(n)) << n;
    if (n > 4) continue;
    EXPECT_EQ(old.read_block(slot), block(n)) << n;
  }
}

TEST_F(ExportTest, RepeatedExportsAreEqual) {
  const TestCache cache(rest_, {.pinned = 4, .layout = "second"});
  const json description = exported(cache, "pinned");
  EXPECT_EQ(description, exported(cache, "pinned"));
  EXPECT_EQ(description.at("regions").size(), kLayers);
  EXPECT_EQ(description.at("strides"),
            rest_.get(cache.path()).document().at("/tiers/pinned/strides"_json_pointer));
  for (const json& region : description.at("regions")) {
    EXPECT_LE(region.at("offset_bytes").get<std::uint64_t>() +
                  region.at("size_bytes").get<std::uint64_t>(),
              description.at("size_bytes").get<std::uint64_t>());
  }
}

TEST_F(ExportTest, RefusesTiersThatCannotBeMapped) {
  const TestCache cache(rest_, {.pinned = 2, .disk = 2});
  EXPECT_THAT(rest_.post(tier_path(cache, "disk")), is_problem(422, "impossible"));
  EXPECT_THAT(rest_.post(tier_path(cache, "device")), is_problem(422, "unknown_tier"));
  EXPECT_THAT(rest_.post(tier_path(cache, "shelf")), is_problem(422, "unknown_tier"));
  EXPECT_THAT(rest_.post("/v1/caches/nowhere/tiers/pinned/export"),
              is_problem(404, "unknown_cache"));
  EXPECT_THAT(rest_.post(tier_path(cache, "pinned") + "?as=fd"), is_problem(400));
}

TEST_F(ExportTest, FreesTheSlotsOfAnEngineThatDies) {
  TestCache cache(rest_, {.pinned = 2});
  const auto before = cache.counts();
  {
    MappedTier mapped(exported(cache, "pinned"));
    const json allocation = cache.allocate(2, "pinned", 50);
    mapped.write_block(allocation.at("blocks").at(0).at("slot"), block(1));
  }
  EXPECT_TRUE(eventually([&] { return cache.counts() == before; }));
  EXPECT_FALSE(cache.holds(1));
  cache.store(2);
  cache.expect_intact(2);
}

// An engine that was away too long gets an error: it may have read another block.
TEST_F(ExportTest, LateReaderFindsItsLeaseEnded) {
  TestCache cache(rest_, {.pinned = 2});
  cache.store(1);
  const MappedTier mapped(exported(cache, "pinned"));
  const std::string lease = cache.match(keys(1, 1), 1).at("lease");
  EXPECT_TRUE(eventually([&] { return cache.counts().at("leases") == 0; }));
  EXPECT_THAT(rest_.del("/v1/leases/" + lease), is_refusal());
}

// The named files in shared memory that a process has mapped.
std::set<std::string> shared_names(pid_t pid) {
  std::set<std::string> names;
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find("/dev/shm/");
    if (at != std::string::npos) names.insert(line.substr(at));
  }
  return names;
}

TEST(ExportAfterACrash, LeavesNoFilesAndTheNextExportIsDifferent) {
  std::set<std::string> names;
  json old;
  std::unique_ptr<MappedTier> mapped;
  std::size_t slot = 0;
  {
    ServerProcess server;
    Rest rest(server.endpoint());
    TestCache cache(rest, {.pinned = 2});
    cache.store(1);
    old = rest.post(tier_path(cache, "pinned")).document();
    mapped = std::make_unique<MappedTier>(old);
    slot = cache.match(keys(1, 1), 30'000).at("blocks").at(0).at("slot");
    names = shared_names(server.pid());
    server.kill();
    EXPECT_EQ(rest.get("/healthz").status, 0u);
  }
  // The mapped memory stays valid, and nobody else gets it.
  EXPECT_EQ(mapped->read_block(slot), block(1));
  for (const std::string& name : names) EXPECT_FALSE(std::filesystem::exists(name)) << name;
  EXPECT_FALSE(std::filesystem::exists(old.at("path").get<std::string>()));

  ServerProcess next;
  Rest rest(next.endpoint());
  TestCache cache(rest, {.pinned = 2});
  const json description = rest.post(tier_path(cache, "pinned")).document();
  EXPECT_NE(description.at("inode"), old.at("inode"));
  EXPECT_EQ(next.stop(), 0);
}

}  // namespace
}  // namespace cairn::e2e
