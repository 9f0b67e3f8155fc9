#include <filesystem>

#include "tests/e2e/support/served_test.hpp"

namespace cairn::e2e {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class CachesTest : public ServedTest {
 protected:
  // The names that GET /v1/caches lists.
  std::vector<std::string> listed() {
    std::vector<std::string> names;
    const json body = rest_.get("/v1/caches").document();
    for (const json& cache : body.at("caches")) {
      names.push_back(cache.at("name"));
    }
    return names;
  }
  // A valid body with one member set to another value.
  static json with(const std::string& pointer, const json& value) {
    json body = cache_body({.device = 2, .pinned = 2, .disk = 2});
    body[json::json_pointer(pointer)] = value;
    return body;
  }
  static json without(const std::string& pointer) {
    return cache_body({.device = 2}).patch({{{"op", "remove"}, {"path", pointer}}});
  }
};

TEST(DefaultCacheTest, ExistsAndStoresBlocks) {
  const ServerProcess fresh;
  Rest rest(fresh.endpoint());
  const json listed = rest.get("/v1/caches").document().at("caches");
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed.at(0).at("name"), "default");
  const std::string bytes(listed.at(0).at("block_bytes").get<std::size_t>(), 'x');
  EXPECT_THAT(rest.put_bytes("/v1/caches/default/keys/00", bytes), has_status(201));
  EXPECT_TRUE(rest.get("/v1/caches/default/keys/00").body == bytes);
}

TEST_F(CachesTest, CreatesACacheAndListsIt) {
  const Reply created =
      rest_.put("/v1/caches/created", cache_body({.device = 2, .pinned = 3, .disk = 4}));
  ASSERT_THAT(created, has_status(201));
  const json body = created.document();
  EXPECT_EQ(body.at("block_bytes"), kBlockBytes);
  EXPECT_EQ(body.at("tiers").at("pinned").at("num_blocks"), 3);
  EXPECT_EQ(body.at("offload"), "on_evict");
  EXPECT_THAT(listed(), Contains("created"));
}

TEST_F(CachesTest, ReportsTheShapeAndTheCountsByState) {
  TestCache cache(rest_, {.device = 4, .disk = 5});
  cache.store(1);
  const json lease = cache.match({key(1)}, 30'000);
  cache.store(2, "?tier=disk");
  static_cast<void>(cache.allocate(2, "device"));
  const json status = rest_.get(cache.path()).document();
  EXPECT_EQ(status.at("layout").at("num_layers"), kLayers);
  EXPECT_FALSE(status.at("tiers").contains("pinned"));
  EXPECT_EQ(status.at("tiers").at("device").at("blocks"),
            json({{"free", 1}, {"allocated", 2}, {"committed", 1}, {"evictable", 0}}));
  EXPECT_EQ(status.at("tiers").at("disk").at("blocks"),
            json({{"free", 4}, {"allocated", 0}, {"committed", 0}, {"evictable", 1}}));
  EXPECT_EQ(status.at("tiers").at("device").at("hits"), 1);
}

struct StrideCase {
  std::string layout;
  std::uint64_t regions;
  std::uint64_t block_bytes;
  std::uint64_t layer_bytes;
  std::uint64_t outer_bytes;
};
class CacheStridesTest : public CachesTest, public testing::WithParamInterface<StrideCase> {};
// With 4 blocks and an alignment of 512: a block has 384 bytes, a layer of it 128, a piece 64.
INSTANTIATE_TEST_SUITE_P(Layouts, CacheStridesTest,
                         testing::Values(StrideCase{"fully_contiguous", 1, 512, 128, 64},
                                         StrideCase{"first", 3, 512, 0, 64},
                                         StrideCase{"second", 3, 512, 0, 2048}),
                         [](const auto& layout) { return layout.param.layout; });

TEST_P(CacheStridesTest, ReportsTheReservedMemoryOfATier) {
  const TestCache cache(rest_, {.device = 4, .pinned = 4, .disk = 4, .layout = GetParam().layout});
  const json tiers = rest_.get(cache.path()).document().at("tiers");
  for (const char* name : {"device", "pinned"}) {
    const json& tier = tiers.at(name);
    EXPECT_EQ(tier.at("regions").size(), GetParam().regions) << name;
    EXPECT_EQ(tier.at("strides"), json({{"block_bytes", GetParam().block_bytes},
                                        {"layer_bytes", GetParam().layer_bytes},
                                        {"outer_bytes", GetParam().outer_bytes}}))
        << name;
    EXPECT_GE(tier.at("reserved_bytes"), 4 * kBlockBytes) << name;
  }
  // On disk a block is one piece behind a header page, whatever the layout: 4096 + 384 bytes,
  // rounded up to pages.
  const json& disk = tiers.at("disk");
  EXPECT_EQ(disk.at("regions").size(), 1u);
  EXPECT_EQ(disk.at("strides"),
            json({{"block_bytes", 8192}, {"layer_bytes", 128}, {"outer_bytes", 64}}));
  EXPECT_GE(disk.at("reserved_bytes"), 4 * 8192);
}

TEST_F(CachesTest, PopulatesAPinnedTierBeforeItsFirstUse) {
  const TestCache cache(rest_, {.device = 2, .pinned = 1024, .disk = 2});
  const auto tier = [&](const char* name) {
    return rest_.get(cache.path()).document().at("tiers").at(name);
  };
  const std::uint64_t whole_bytes = tier("pinned").at("reserved_bytes");
  ASSERT_GE(whole_bytes, 1024 * kBlockBytes);
  while (tier("pinned").at("populated_bytes") < whole_bytes) {
  }
  EXPECT_EQ(tier("pinned").at("populated_bytes"), whole_bytes);
  EXPECT_EQ(tier("pinned").at("blocks").at("free"), 1024);
  for (const char* name : {"device", "disk"}) EXPECT_FALSE(tier(name).contains("populated_bytes"));
}

TEST_F(CachesTest, SameBodyAgainReturns200) {
  const json body = cache_body({.device = 2, .disk = 2});
  const TestCache cache = TestCache::made_of(rest_, body);
  EXPECT_THAT(rest_.put(cache.path(), body), has_status(200));
}

TEST_F(CachesTest, SameBodyAgainKeepsTheBlocks) {
  TestCache cache(rest_, {.device = 2});
  cache.store(1);
  EXPECT_THAT(rest_.put(cache.path(), cache_body({.device = 2})), has_status(200));
  cache.expect_intact(1);
}

TEST_F(CachesTest, RefusesAnotherShapeUnderANameInUse) {
  const TestCache cache = TestCache::made_of(rest_, with("/default_lease_ms", 1000));
  const std::vector<std::pair<std::string, json>> others = {
      {"/layout/num_layers", 4},       {"/layout/inner_dim", 16},
      {"/layout/alignment", 4096},     {"/tiers/device/num_blocks", 3},
      {"/offload", "never"},           {"/default_lease_ms", 2000},
      {"/tiers/disk/path", "another"}, {"/tiers/disk/layout", "layer_separate"}};
  for (const auto& [pointer, value] : others) {
    json body = with("/default_lease_ms", 1000);
    body[json::json_pointer(pointer)] = value;
    EXPECT_THAT(rest_.put(cache.path(), body), is_problem(409, "cache_exists")) << pointer;
  }
  EXPECT_THAT(rest_.put(cache.path(), cache_body({.device = 2})), is_problem(409, "cache_exists"));
}

// An impossible value returns 422, a schema violation 400; the detail names the field.
struct BadCacheBody {
  std::string pointer;
  json value;
  unsigned status;
};
void PrintTo(const BadCacheBody& bad, std::ostream* out) {
  *out << bad.pointer << " = " << bad.value;
}
class BadCacheBodyTest : public CachesTest, public testing::WithParamInterface<BadCacheBody> {};

constexpr std::uint64_t kHuge = std::uint64_t{1} << 62U;
INSTANTIATE_TEST_SUITE_P(
    Fields, BadCacheBodyTest,
    testing::Values(
        BadCacheBody{"/layout/num_layers", 0, 422}, BadCacheBody{"/layout/outer_dim", 0, 422},
        BadCacheBody{"/layout/outer_dim", 3, 422}, BadCacheBody{"/layout/page_size", 0, 422},
        BadCacheBody{"/layout/inner_dim", 0, 422},
        BadCacheBody{"/layout/dtype_width_bytes", 0, 422},
        BadCacheBody{"/layout/alignment", 3, 422}, BadCacheBody{"/layout/alignment", 0, 422},
        BadCacheBody{"/layout/num_layers", kHuge, 422},
        BadCacheBody{"/layout/inner_dim", UINT64_MAX, 422},
        BadCacheBody{"/layout/page_size", kHuge, 422},
        BadCacheBody{"/layout/alignment", kHuge, 422},
        BadCacheBody{"/tiers/device/num_blocks", 0, 422},
        BadCacheBody{"/layout/num_layers", -1, 400}, BadCacheBody{"/layout/num_layers", "3", 400},
        BadCacheBody{"/layout/num_layers", 2.5, 400},
        BadCacheBody{"/layout/num_layers", nullptr, 400}, BadCacheBody{"/layout/extra", 1, 400},
        BadCacheBody{"/layout", json::array(), 400}, BadCacheBody{"/tiers", 7, 400},
        BadCacheBody{"/tiers/gpu", tier_body(2, "fully_contiguous"), 400},
        BadCacheBody{"/tiers/device/layout", "diagonal", 400},
        BadCacheBody{"/tiers/device/layout", 1, 400},
        BadCacheBody{"/tiers/device/block_dim", "third", 400},
        BadCacheBody{"/tiers/device/num_blocks", -5, 400},
        BadCacheBody{"/tiers/device/blocks", 5, 400},
        BadCacheBody{"/tiers/device/numa_aware", true, 400},
        BadCacheBody{"/tiers/pinned/numa_aware", "yes", 400},
        BadCacheBody{"/tiers/disk/device_id", 0, 400}, BadCacheBody{"/tiers/disk/path", 5, 400},
        BadCacheBody{"/eviction", "mru", 400}, BadCacheBody{"/offload", "sometimes", 400},
        BadCacheBody{"/default_lease_ms", -1, 400}, BadCacheBody{"/default_lease_ms", "long", 400},
        BadCacheBody{"/shape", 1, 400}));

TEST_P(BadCacheBodyTest, RefusalNamesTheField) {
  const auto& [pointer, value, status] = GetParam();
  const Reply reply = rest_.put("/v1/caches/refused", with(pointer, value));
  EXPECT_THAT(reply, is_problem(status));
  const std::string field = pointer.substr(pointer.rfind('/') + 1);
  EXPECT_THAT(reply.body, HasSubstr(field));
  EXPECT_THAT(rest_.get("/v1/caches/refused"), is_problem(404, "unknown_cache"));
}

TEST_F(CachesTest, RefusesShapesWhoseProductsOverflow) {
  json body = cache_body({.device = 2});
  body["layout"] = {{"num_layers", 1U << 20U}, {"outer_dim", 2},         {"page_size", 1U << 20U},
                    {"inner_dim", 1U << 20U},  {"dtype_width_bytes", 8}, {"alignment", 4096}};
  EXPECT_THAT(rest_.put("/v1/caches/overflow", body), is_problem(422, "impossible_shape"));
  body["layout"]["num_layers"] = 1U << 10U;
  body["tiers"]["device"]["num_blocks"] = 1U << 31U;
  EXPECT_THAT(rest_.put("/v1/caches/overflow", body), is_problem(422, "impossible_shape"));
}

TEST_F(CachesTest, RefusesAMissingDevice) {
  EXPECT_THAT(rest_.put("/v1/caches/nowhere", with("/tiers/device/device_id", 4095)),
              is_problem(422));
}

TEST_F(CachesTest, RefusesAShapeThatTheMachineCannotHold) {
  json body = cache_body({.device = 1U << 24U});
  body["layout"]["inner_dim"] = 1U << 22U;
  const Reply reply = rest_.put("/v1/caches/huge", body);
  EXPECT_TRUE(reply.status == 422 || reply.status == 507) << testing::PrintToString(reply);
  EXPECT_THAT(reply, is_problem(reply.status));
}

TEST_F(CachesTest, RefusesABodyThatLacksAField) {
  for (const char* pointer :
       {"/layout", "/tiers", "/layout/num_layers", "/layout/outer_dim", "/layout/page_size",
        "/layout/inner_dim", "/layout/dtype_width_bytes", "/tiers/device/num_blocks"}) {
    const Reply reply = rest_.put("/v1/caches/refused", without(pointer));
    EXPECT_THAT(reply, is_problem(400, "missing_field")) << pointer;
    EXPECT_THAT(reply.body, HasSubstr(std::string(pointer).substr(1, 3))) << pointer;
  }
  EXPECT_THAT(rest_.put("/v1/caches/refused", cache_body({})), is_problem(400)) << "no tier";
}

TEST_F(CachesTest, AcceptsEveryNonEmptySubsetOfTiers) {
  for (std::uint32_t subset = 1; subset < 8; ++subset) {
    TestCache cache(rest_, {.device = 2 * (subset & 1U),
                            .pinned = 2 * (subset >> 1U & 1U),
                            .disk = 2 * (subset >> 2U)});
    cache.store(1);
    cache.expect_intact(1);
  }
}

TEST_F(CachesTest, AcceptsOnlyNamesOfItsAlphabet) {
  const json body = cache_body({.device = 1});
  for (const std::string& name : {std::string("a"), std::string("A-z_0.9"), std::string(64, 'n')}) {
    EXPECT_THAT(rest_.put("/v1/caches/" + name, body), has_status(201)) << name;
    EXPECT_TRUE(rest_.del("/v1/caches/" + name).ok()) << name;
  }
  for (const std::string& name : {std::string(65, 'n'), std::string("a%20b"), std::string("%C3%A4"),
                                  std::string("a:b"), std::string("a%2Fb"), std::string("%00")}) {
    EXPECT_THAT(rest_.put("/v1/caches/" + name, body), is_problem(400)) << name;
  }
}

TEST_F(CachesTest, DecodesAPercentEncodedName) {
  const TestCache cache(rest_, {.device = 1});
  std::string encoded = cache.path();
  encoded.replace(encoded.rfind("test"), 1, "%74");
  EXPECT_THAT(rest_.get(encoded), has_status(200));
}

TEST_F(CachesTest, DeletesACache) {
  TestCache cache(rest_, {.device = 2, .disk = 2});
  cache.store(1);
  EXPECT_TRUE(rest_.del(cache.path()).ok());
  EXPECT_THAT(rest_.get(cache.path()), is_problem(404, "unknown_cache"));
  EXPECT_THAT(rest_.get(cache.key_path(1)), is_problem(404, "unknown_cache"));
  EXPECT_THAT(listed(), Not(Contains(cache.name())));
}

TEST_F(CachesTest, ReusedNameStartsEmpty) {
  TestCache cache(rest_, {.device = 2, .disk = 2});
  cache.store(1);
  cache.store(2, "?tier=disk");
  ASSERT_TRUE(rest_.del(cache.path()).ok());
  ASSERT_THAT(rest_.put(cache.path(), cache_body({.device = 2, .disk = 2})), has_status(201));
  EXPECT_FALSE(cache.holds(1));
  EXPECT_FALSE(cache.holds(2));
  EXPECT_EQ(cache.counts().at("leases"), 0);
}

TEST_F(CachesTest, KeepsALeasedCacheUnlessForced) {
  TestCache cache(rest_, {.device = 2});
  cache.store(1);
  const std::string lease = cache.match({key(1)}, 30'000).at("lease");
  EXPECT_THAT(rest_.del(cache.path()), is_problem(409, "leased"));
  cache.expect_intact(1);
  EXPECT_TRUE(rest_.del(cache.path("?force=true")).ok());
  EXPECT_THAT(rest_.get(cache.path()), is_problem(404, "unknown_cache"));
  EXPECT_THAT(rest_.del("/v1/leases/" + lease), is_problem(404, "unknown_lease"));
}

TEST_F(CachesTest, DeletesACacheOnceItsLeasesEnd) {
  TestCache cache(rest_, {.device = 2});
  const std::string lease = cache.allocate(1, "device").at("lease");
  EXPECT_THAT(rest_.del(cache.path()), is_problem(409, "leased"));
  EXPECT_TRUE(rest_.del("/v1/leases/" + lease).ok());
  EXPECT_TRUE(rest_.del(cache.path()).ok());
}

TEST_F(CachesTest, EveryRouteReportsAnUnknownCache) {
  const std::string at = "/v1/caches/nobody";
  const json keys = {{"keys", {key(1)}}};
  const std::string handle = "/slots/device/0/data?generation=1&lease=" + std::string(32, '0');
  const json commit = {
      {"lease", std::string(32, '0')},
      {"blocks", {{{"tier", "device"}, {"slot", 0}, {"generation", 1}, {"key", key(1)}}}}};
  const std::vector<Reply> replies = {
      rest_.get(at),
      rest_.del(at),
      rest_.post(at + "/match", keys),
      rest_.post_bytes(at + "/match?key_bytes=16", packed({key(1)})),
      rest_.post(at + "/allocate", {{"count", 1}, {"tier", "device"}}),
      rest_.put_bytes(at + handle, block(1)),
      rest_.post(at + "/commit", commit),
      rest_.put_bytes(at + "/keys/" + key(1), block(1)),
      rest_.get(at + "/keys/" + key(1)),
      rest_.del(at + "/keys/" + key(1)),
      rest_.get(at + "/keys/" + key(1) + "/metadata"),
      rest_.put(at + "/keys/" + key(1) + "/metadata", json::object()),
      rest_.post(at + "/read", keys),
      rest_.post_bytes(at + "/write", write_body(keys, block(1))),
      rest_.post(at + "/transfers", {{"keys", {key(1)}}, {"to", "disk"}}),
      rest_.post(at + "/evict", keys),
      rest_.post(at + "/clear"),
      rest_.get(at + "/blocks")};
  for (std::size_t i = 0; i < replies.size(); ++i) {
    EXPECT_THAT(replies[i], is_problem(404, "unknown_cache")) << "request " << i;
  }
  EXPECT_THAT(rest_.head(at + "/keys/" + key(1)), has_status(404));
}

// Disk tiers are files below the data directory, and nowhere else.
class DiskPathTest : public CachesTest {
 protected:
  static json at(const std::string& path) { return with("/tiers/disk/path", path); }
  std::size_t files() const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(server().data_dir())) {
      // The folder's marker file is made with the first cache and stays.
      if (entry.path().filename() == "cairn~folder") continue;
      if (entry.is_regular_file() && entry.file_size() > 0) ++count;
    }
    return count;
  }
};

TEST_F(DiskPathTest, RefusesAPathOutsideTheDataDirectory) {
  const std::filesystem::path outside = server().data_dir().parent_path() / "cairn-outside";
  for (const std::string& path :
       {std::string("../cairn-outside"), std::string("a/../../../cairn-outside"), outside.string(),
        std::string("..")}) {
    EXPECT_THAT(rest_.put("/v1/caches/outside", at(path)), is_problem(422)) << path;
  }
  EXPECT_FALSE(std::filesystem::exists(outside));
}

TEST_F(DiskPathTest, RefusesAPathOfAnotherCache) {
  TestCache cache = TestCache::made_of(rest_, at("shared/file"));
  cache.store(1, "?tier=disk");
  EXPECT_THAT(rest_.put("/v1/caches/second-on-it", at("shared/file")), is_problem(409));
  cache.expect_intact(1);
}

TEST_F(DiskPathTest, RefusesAnotherSpellingOfAUsedPath) {
  TestCache cache = TestCache::made_of(rest_, at("spelled/file"));
  cache.store(1, "?tier=disk");
  for (const std::string path :
       {"spelled//file", "spelled/./file", "spelled/file/", "spelled", "spelled/file/below"}) {
    EXPECT_THAT(rest_.put("/v1/caches/second-on-it", at(path)), is_refusal()) << path;
  }
  cache.expect_intact(1);
}

TEST_F(DiskPathTest, DeletingTheCacheFreesItsFile) {
  const std::size_t before = files();
  TestCache cache = TestCache::made_of(rest_, at("passing/file"));
  cache.store(1, "?tier=disk");
  EXPECT_GT(files(), before);
  EXPECT_TRUE(rest_.del(cache.path()).ok());
  EXPECT_TRUE(eventually([&] { return files() == before; }));
}

}  // namespace
}  // namespace cairn::e2e
