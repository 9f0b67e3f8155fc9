#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/e2e/support/mapped_slots.hpp"
#include "tests/e2e/support/served_test.hpp"

// Tiers in memory that an engine exported. The test plays the engine.
namespace cairn::e2e {
namespace {

constexpr std::uint64_t kStride = 512;  // kBlockBytes, padded to the alignment of cache_body()
static_assert(kBlockBytes <= kStride);
constexpr std::uint64_t kBlocks = 4;

class ImportTest : public ServedTest {
 protected:
  static void SetUpTestSuite() {
    shared_ = std::make_unique<fakes::TempDir>();
    start({"--import-folders", "/nowhere/at/all:" + shared_->path().string() + "/"});
  }
  static void TearDownTestSuite() {
    ServedTest::TearDownTestSuite();
    shared_.reset();
  }

  // Makes a file that belongs to the engine.
  static std::string make_file(const std::string& name, std::uint64_t size_bytes) {
    const std::string path = (shared_->path() / name).string();
    std::filesystem::remove(path);
    std::ofstream(path) << "";
    std::filesystem::resize_file(path, size_bytes);
    return path;
  }
  static json form(const std::string& path, std::uint64_t size_bytes) {
    return {{"kind", "shm"}, {"path", path}, {"size_bytes", size_bytes}};
  }
  static json body_with(const json& import, const std::string& tier = "pinned") {
    json body = cache_body({.device = tier == "device" ? std::uint32_t{kBlocks} : 0,
                            .pinned = tier == "pinned" ? std::uint32_t{kBlocks} : 0});
    body["tiers"][tier]["memory"] = {{"import", import}};
    return body;
  }
  static std::string fresh_name() {
    static int number = 0;
    return "import-" + std::to_string(++number);
  }
  Reply put(const json& import, const std::string& tier = "pinned") {
    return rest_.put("/v1/caches/" + fresh_name(), body_with(import, tier));
  }

  static std::unique_ptr<fakes::TempDir> shared_;
};
std::unique_ptr<fakes::TempDir> ImportTest::shared_;

TEST_F(ImportTest, ServesBlocksInTheEnginesMemory) {
  for (const char* tier : {"pinned", "device"}) {
    const std::string path = make_file("memory", kBlocks * kStride);
    TestCache cache = TestCache::made_of(rest_, body_with(form(path, kBlocks * kStride), tier));
    const json exported =
        rest_.post(cache.path("/tiers/" + std::string(tier) + "/export")).document();
    EXPECT_EQ(exported.at("path"), path);
    MappedTier mapped(exported);

    cache.store(1);
    cache.expect_intact(1);
    EXPECT_EQ(mapped.read_block(cache.match(keys(1, 1), 0).at("blocks").at(0).at("slot")),
              block(1));

    const json allocation = cache.allocate(1, tier);
    const json& handle = allocation.at("blocks").at(0);
    mapped.write_block(handle.at("slot"), block(2));
    EXPECT_THAT(
        rest_.post(cache.path("/commit"), {{"lease", allocation.at("lease")},
                                           {"blocks", {TestCache::commit_block(handle, 2)}}}),
        has_status(200));
    EXPECT_EQ(cache.expect_intact(2), tier);
    EXPECT_THAT(rest_.del(cache.path("?force=true")), has_status(204));
  }
}

TEST_F(ImportTest, AcceptsTheFormThatAnExportReturns) {
  const std::string path = make_file("parts", 64 << 10);
  json import = form(path, 64 << 10);
  import["kind"] = "file";
  import["regions"] = json::array();
  // Not in the order of the layers, and with gaps.
  for (const unsigned offset : {32768u, 8192u, 16384u}) {
    import["regions"].push_back({{"offset_bytes", offset}, { "size_bytes", kBlocks * 512 }});
  }
  import["strides"] = {{"block_bytes", 512}, {"layer_bytes", 0}, { "outer_bytes", kRegionBytes }};
  json body = body_with(import);
  body["tiers"]["pinned"]["layout"] = "layer_separate";
  TestCache cache = TestCache::made_of(rest_, body);
  cache.store(1);
  const json exported = rest_.post(cache.path("/tiers/pinned/export")).document();
  EXPECT_EQ(exported.at("regions").at(0).at("offset_bytes"), 32768);
  EXPECT_EQ(exported.at("strides"), import.at("strides"));
  const MappedTier mapped(exported);
  EXPECT_EQ(mapped.read_block(cache.match(keys(1, 1), 0).at("blocks").at(0).at("slot")), block(1));
}

TEST_F(ImportTest, SameBodyIsTheSameCache) {
  const std::string path = make_file("same", kBlocks * kStride);
  const std::string name = "/v1/caches/" + fresh_name();
  const json body = body_with(form(path, kBlocks * kStride));
  EXPECT_THAT(rest_.put(name, body), has_status(201));
  EXPECT_THAT(rest_.put(name, body), has_status(200));
  EXPECT_EQ(rest_.get(name).document().at("/tiers/pinned/memory/import/path"_json_pointer), path);
}

// The engine has restarted: its path now has other memory than the cache uses.
TEST_F(ImportTest, RefusesMemoryThatTheEngineReplaced) {
  const std::string path = make_file("anew", kBlocks * kStride);
  const std::string name = "/v1/caches/" + fresh_name();
  const json body = body_with(form(path, kBlocks * kStride));
  EXPECT_THAT(rest_.put(name, body), has_status(201));
  std::filesystem::rename(path, path + ".old");
  EXPECT_THAT(rest_.put(name, body), is_problem(409, "state_conflict"));
  make_file("anew", kBlocks * kStride);
  EXPECT_THAT(rest_.put(name, body), is_problem(409, "state_conflict"));
  EXPECT_THAT(rest_.del(name), has_status(204));
  EXPECT_THAT(rest_.put(name, body), has_status(201));
}

// Stored blocks are still served from the memory that the engine left.
TEST_F(ImportTest, CacheOutlivesTheEngine) {
  const std::string path = make_file("left", kBlocks * kStride);
  TestCache cache = TestCache::made_of(rest_, body_with(form(path, kBlocks * kStride)));
  cache.store(1);
  std::filesystem::remove(path);
  cache.expect_intact(1);
  cache.store(2);
  cache.expect_intact(2);
}

TEST_F(ImportTest, RefusesBytesThatAreInUse) {
  const std::string path = make_file("twice", 3 * kBlocks * kStride);
  json first = form(path, 3 * kBlocks * kStride);
  first["regions"] = {{{"offset_bytes", 0}, {"size_bytes", kBlocks * kStride}}};
  json second = first;
  second["regions"][0]["offset_bytes"] = kBlocks * kStride;
  json between = first;
  between["regions"][0]["offset_bytes"] = kBlocks * kStride / 2;
  EXPECT_THAT(put(first), has_status(201));
  EXPECT_THAT(put(first), is_problem(409, "state_conflict"));
  EXPECT_THAT(put(between), is_problem(409, "state_conflict"));
  EXPECT_THAT(put(second), has_status(201));
  ServerProcess other({.flags = {"--import-folders", shared_->path().string()}});
  Rest rest(other.endpoint());
  EXPECT_THAT(rest.put("/v1/caches/other", body_with(first)), is_problem(409, "state_conflict"));
  EXPECT_EQ(other.stop(), 0);
}

TEST_F(ImportTest, RefusesMemoryThatDoesNotFit) {
  const std::uint64_t needed = kBlocks * kStride;
  const std::string path = make_file("fit", needed);
  EXPECT_THAT(put(form(path, needed + 1)), is_problem(422, "impossible")) << "the file is smaller";
  EXPECT_THAT(put(form(path, needed / 2)), is_problem(422, "impossible")) << "the tier is larger";
  EXPECT_THAT(put(form(path, 0)), is_problem(400, "out_of_range"));

  json parts = form(path, needed);
  parts["regions"] = {{{"offset_bytes", 512}, {"size_bytes", needed}}};
  EXPECT_THAT(put(parts), is_problem(422, "impossible")) << "past the end";
  parts["regions"] = {{{"offset_bytes", 0}, {"size_bytes", needed - 1}}};
  EXPECT_THAT(put(parts), is_problem(422, "impossible")) << "a region too small";
  parts["regions"] = {{{"offset_bytes", 1}, {"size_bytes", needed - 1}}};
  EXPECT_THAT(put(parts), is_problem(422, "impossible")) << "not aligned";
  parts["regions"] = {{{"offset_bytes", 0}, {"size_bytes", 8}},
                      {{"offset_bytes", 8}, {"size_bytes", 8}}};
  EXPECT_THAT(put(parts), is_problem(422, "impossible")) << "too many regions";

  json strides = form(path, needed);
  strides["strides"] = {{"block_bytes", kStride / 2}, {"layer_bytes", 0}, {"outer_bytes", 0}};
  EXPECT_THAT(put(strides), is_problem(422, "impossible"));
  json inode = form(path, needed);
  inode["inode"] = 1;
  EXPECT_THAT(put(inode), is_problem(409, "state_conflict"));
  // The refused requests have released the file.
  EXPECT_THAT(put(form(path, needed)), has_status(201));
}

TEST_F(ImportTest, OpensOnlyFilesOfItsFolders) {
  const std::uint64_t size_bytes = kBlocks * kStride;
  const fakes::TempDir outside;
  const std::string secret = (outside.path() / "secret").string();
  std::ofstream(secret) << std::string(size_bytes, 's');
  const std::string folder = shared_->path().string();
  std::filesystem::create_symlink(secret, folder + "/link");
  std::filesystem::create_directory(folder + "/sub");
  std::filesystem::copy_file(secret, folder + "/sub/file");
  ASSERT_EQ(::mkfifo((folder + "/pipe").c_str(), 0600), 0);
  make_file("plain", size_bytes);

  for (const std::string& path :
       {secret, folder + "/../" + outside.path().filename().string() + "/secret",
        folder + "/sub/file", folder + "/sub/../plain", folder + "/./plain", folder + "/..",
        folder + "/.", folder + "/", folder, std::string("plain"), std::string(),
        std::string("/proc/self/mem"), std::string("/dev/zero")}) {
    EXPECT_THAT(put(form(path, size_bytes)), is_problem(403, "forbidden")) << path;
  }
  EXPECT_THAT(put(form(folder + "/link", size_bytes)), is_problem(422, "impossible"));
  EXPECT_THAT(put(form(folder + "/pipe", size_bytes)), is_problem(422, "impossible"));
  EXPECT_THAT(put(form(folder + "/sub", size_bytes)), is_problem(422, "impossible"));
  EXPECT_THAT(put(form(folder + "/missing", size_bytes)), is_problem(404, "not_found"));
  std::ifstream read(secret);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(read), {}), std::string(size_bytes, 's'));
}

TEST_F(ImportTest, RefusesOtherKindsAndTiers) {
  const std::string path = make_file("kinds", kBlocks * kStride);
  json ipc = {{"kind", "cuda_ipc"}, {"handle", std::string(128, 'a')}, {"size_bytes", 4096}};
  EXPECT_THAT(put(ipc, "device"), is_problem(422, "impossible"));
  ipc["handle"] = "abc";
  EXPECT_THAT(put(ipc, "device"), is_problem(400, "malformed"));
  json body = cache_body({.disk = 4});
  body["tiers"]["disk"]["memory"] = {{"import", form(path, kBlocks * kStride)}};
  EXPECT_THAT(rest_.put("/v1/caches/" + fresh_name(), body), is_problem(400, "unknown_field"));
}

TEST(ImportWithoutFolders, IsForbidden) {
  const fakes::TempDir folder;
  const std::string path = (folder.path() / "memory").string();
  std::ofstream(path) << std::string(4096, 'x');
  ServerProcess server;
  Rest rest(server.endpoint());
  json body = cache_body({.pinned = 2});
  body["tiers"]["pinned"]["memory"] = {
      {"import", {{"kind", "shm"}, {"path", path}, {"size_bytes", 4096}}}};
  const Reply reply = rest.put("/v1/caches/c", body);
  EXPECT_THAT(reply, is_problem(403, "forbidden"));
  EXPECT_THAT(reply.body, testing::HasSubstr("import.folders"));
  EXPECT_EQ(server.stop(), 0);
}

// The server remembers the cache for its disk tier, but the memory of its other tier is gone.
TEST(ImportAfterARestart, LostMemoryDoesNotAffectOtherCaches) {
  const fakes::TempDir folder;
  const std::string path = (folder.path() / "memory").string();
  std::ofstream(path) << std::string(4096, 'x');
  const ServerSetup setup{.flags = {"--import-folders", folder.path().string()},
                          .data_dir = folder.path() / "data"};
  json body = cache_body({.pinned = 2, .disk = 2});
  body["tiers"]["pinned"]["memory"] = {
      {"import", {{"kind", "shm"}, {"path", path}, {"size_bytes", 4096}}}};
  {
    ServerProcess server(setup);
    Rest rest(server.endpoint());
    EXPECT_THAT(rest.put("/v1/caches/a", body), has_status(201));
    EXPECT_THAT(rest.put("/v1/caches/b", cache_body({.disk = 2})), has_status(201));
    EXPECT_THAT(rest.put_bytes("/v1/caches/a/keys/" + key(1) + "?tier=disk", block(1)),
                has_status(201));
    EXPECT_EQ(server.stop(), 0);
  }
  std::filesystem::remove(path);
  {
    ServerProcess server(setup);
    Rest rest(server.endpoint());
    EXPECT_THAT(rest.get("/v1/caches/a"), is_problem(404, "unknown_cache"));
    EXPECT_THAT(rest.get("/v1/caches/b"), has_status(200));
    EXPECT_TRUE(eventually([&] {
      return testing::Value(server.output(),
                            testing::HasSubstr("a remembered cache could not be made"));
    }));
    // The engine is back, and so are the blocks on disk.
    std::ofstream(path) << std::string(4096, 'y');
    EXPECT_THAT(rest.put("/v1/caches/a", body), has_status(201));
    EXPECT_TRUE(rest.get("/v1/caches/a/keys/" + key(1)).body == block(1));
    EXPECT_EQ(server.stop(), 0);
  }
}

}  // namespace
}  // namespace cairn::e2e
