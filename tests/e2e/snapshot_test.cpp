#include <atomic>
#include <filesystem>
#include <fstream>

#include "tests/e2e/support/served_test.hpp"

// Snapshots over HTTP, and their restore by a server that starts.
namespace cairn::e2e {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class SnapshotTest : public ServedTest {
 protected:
  // The transfer once it has ended; a test failure if it did not begin.
  json ended(const Reply& started) {
    EXPECT_TRUE(started.status == 202 || started.status == 200) << testing::PrintToString(started);
    if (!started.ok()) return {};
    const std::string id = started.document().at("transfer");
    return rest_.get("/v1/transfers/" + id + "?wait_ms=60000").document();
  }
  json make(const TestCache& cache, const std::string& name, bool compress = false) {
    return ended(rest_.post(cache.path("/snapshots"), {{"name", name}, {"compress", compress}}));
  }
  json restore(const TestCache& cache, const std::string& name) {
    return ended(rest_.post(cache.path("/snapshots/" + name + "/restore")));
  }
};

class SnapshotFormTest : public SnapshotTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Compressed, SnapshotFormTest, testing::Bool());

TEST_P(SnapshotFormTest, RestoresEveryBlock) {
  TestCache cache(rest_, {.device = 8, .pinned = 8, .disk = 8, .layout = "second"});
  cache.store_prefix(0, 4, "device");
  cache.store_prefix(10, 4, "pinned");
  cache.store_prefix(20, 4, "disk");
  ASSERT_TRUE(rest_.put(cache.key_path(10) + "/metadata", {{"a", 1}}).ok());
  const json made = make(cache, "s", GetParam());
  EXPECT_EQ(made.at("state"), "done") << made;
  EXPECT_EQ(made.at("blocks_done"), 12);
  EXPECT_EQ(made.at("blocks_total"), 12);
  EXPECT_EQ(made.at("bytes"), 12 * kBlockBytes);
  const json list = rest_.get(cache.path("/snapshots")).document().at("snapshots");
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].at("name"), "s");
  EXPECT_EQ(list[0].at("blocks"), 12);
  EXPECT_EQ(list[0].at("compressed"), GetParam());
  EXPECT_GT(list[0].at("bytes"), 0);
  EXPECT_GT(list[0].at("created_at_ms"), 0);

  ASSERT_TRUE(rest_.post(cache.path("/clear")).ok());
  const json back = restore(cache, "s");
  EXPECT_EQ(back.at("state"), "done") << back;
  EXPECT_EQ(back.at("blocks_done"), 12);
  for (const int first : {0, 10, 20}) {
    EXPECT_EQ(cache.match(keys(first, 4), 0).at("matched"), 4);
    for (int n = first; n < first + 4; ++n) cache.expect_intact(n);
  }
  EXPECT_EQ(rest_.get(cache.key_path(10) + "/metadata").document(), json({{"a", 1}}));
  EXPECT_THAT(rest_.del(cache.path("/snapshots/s")), has_status(204));
  EXPECT_THAT(rest_.get(cache.path("/snapshots")).document().at("snapshots"), IsEmpty());
}

TEST_F(SnapshotTest, WaitReturnsTheEndedTransfer) {
  TestCache cache(rest_, {.pinned = 8});
  cache.store_prefix(0, 3, "pinned");
  const Reply made = rest_.post(cache.path("/snapshots"), {{"name", "s"}, {"wait_ms", 60'000}});
  ASSERT_THAT(made, has_status(200));
  EXPECT_EQ(made.document().at("state"), "done");
  const Reply back = rest_.post(cache.path("/snapshots/s/restore"), {{"wait_ms", 60'000}});
  ASSERT_THAT(back, has_status(200));
  EXPECT_EQ(back.document().at("blocks_done"), 3);
}

TEST_F(SnapshotTest, RefusesImpossibleRequests) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store_prefix(0, 4, "pinned");
  EXPECT_EQ(make(cache, "s").at("state"), "done");
  EXPECT_THAT(rest_.post(cache.path("/snapshots"), {{"name", "s"}}),
              is_problem(409, "state_conflict"));
  for (const char* bad : {"", "..", ".", "a/b", "../../x", "a b"}) {
    EXPECT_THAT(rest_.post(cache.path("/snapshots"), {{"name", bad}}),
                is_problem(400, "out_of_range"))
        << bad;
  }
  EXPECT_THAT(rest_.post(cache.path("/snapshots"), json::object()),
              is_problem(400, "missing_field"));
  EXPECT_THAT(rest_.post(cache.path("/snapshots"), {{"name", "t"}, {"other", 1}}),
              is_problem(400, "unknown_field"));
  for (const char* unknown : {"t", "%2e%2e", "a%2fb"}) {
    const std::string path = cache.path("/snapshots/") + unknown;
    EXPECT_THAT(rest_.post(path + "/restore"), is_problem(404, "unknown_snapshot")) << unknown;
    EXPECT_THAT(rest_.del(path), is_problem(404, "unknown_snapshot")) << unknown;
  }
  for (const char* unknown : {"/v1/caches/none/snapshots", "/v1/caches/%2e%2e/snapshots"}) {
    EXPECT_THAT(rest_.get(unknown), is_problem(404, "unknown_cache"));
    EXPECT_THAT(rest_.post(unknown, {{"name", "s"}}), is_problem(404, "unknown_cache"));
  }

  // A snapshot of another shape, and a cache without room.
  json body = cache_body({.pinned = 4});
  body["layout"]["inner_dim"] = kInner / 2;
  body["layout"]["page_size"] = kPageSize * 2;
  const TestCache other = TestCache::made_of(rest_, body);
  const std::filesystem::path snapshots = server().data_dir() / "snapshots";
  std::filesystem::create_directories(snapshots / other.name());
  std::filesystem::copy(snapshots / cache.name() / "s.snapshot",
                        snapshots / other.name() / "s.snapshot");
  EXPECT_THAT(rest_.post(other.path("/snapshots/s/restore")), is_problem(409, "state_conflict"));
  ASSERT_TRUE(rest_.post(cache.path("/clear")).ok());
  cache.store(9);
  EXPECT_THAT(rest_.post(cache.path("/snapshots/s/restore")), is_problem(507, "no_capacity"));
  EXPECT_FALSE(cache.holds(0));
  const json partly = ended(rest_.post(cache.path("/snapshots/s/restore"), {{"partial", true}}));
  EXPECT_EQ(partly.at("blocks_done"), 3);
  EXPECT_EQ(cache.match(keys(0, 4), 0).at("matched"), 3);
  cache.expect_intact(9);
}

TEST_F(SnapshotTest, RefusesABrokenFileAndListsItAsBroken) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store_prefix(0, 4, "pinned");
  EXPECT_EQ(make(cache, "s").at("state"), "done");
  ASSERT_TRUE(rest_.post(cache.path("/clear")).ok());
  const auto file = server().data_dir() / "snapshots" / cache.name() / "s.snapshot";
  const auto size = std::filesystem::file_size(file);
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(size / 2));
    const char flipped = static_cast<char>(bytes.get() ^ 1);
    bytes.seekp(static_cast<std::streamoff>(size / 2));
    bytes.put(flipped);
  }
  const json failed = restore(cache, "s");
  EXPECT_EQ(failed.at("state"), "failed") << failed;
  EXPECT_EQ(failed.at("error").at("code"), "broken_snapshot");
  EXPECT_EQ(cache.count("pinned", "free"), 4);
  cache.store_prefix(20, 4, "pinned");
  const json kept = ended(rest_.post(cache.path("/snapshots/s/restore"), {{"replace", true}}));
  EXPECT_EQ(kept.at("error").at("code"), "broken_snapshot");
  EXPECT_EQ(cache.match(keys(20, 4), 0).at("matched"), 4);
  std::filesystem::resize_file(file, size / 2);
  EXPECT_THAT(rest_.post(cache.path("/snapshots/s/restore")), is_problem(422, "broken_snapshot"));
  const json list = rest_.get(cache.path("/snapshots")).document().at("snapshots");
  EXPECT_EQ(list.at(0).at("error").at("code"), "broken_snapshot");
  EXPECT_THAT(rest_.del(cache.path("/snapshots/s")), has_status(204));
}

TEST_P(SnapshotFormTest, ReplacesWhatTheCacheHolds) {
  TestCache cache(rest_, {.device = 4, .pinned = 4, .disk = 8});
  cache.store_prefix(0, 4, "device");
  cache.store_prefix(10, 4, "disk");
  EXPECT_EQ(make(cache, "s", GetParam()).at("state"), "done");
  ASSERT_TRUE(rest_.post(cache.path("/clear")).ok());
  cache.store_prefix(20, 4, "device");
  cache.store_prefix(30, 4, "pinned");
  cache.store_prefix(40, 8, "disk");
  // It is full: without `replace` there is no room.
  EXPECT_THAT(rest_.post(cache.path("/snapshots/s/restore")), is_problem(507, "no_capacity"));

  const std::string lease = cache.match(keys(20, 2), 60'000).at("lease");
  EXPECT_THAT(rest_.post(cache.path("/snapshots/s/restore"), {{"replace", true}}),
              is_problem(409, "leased"));
  EXPECT_EQ(cache.match(keys(20, 4), 0).at("matched"), 4);
  ASSERT_TRUE(rest_.del("/v1/leases/" + lease).ok());

  const json back = ended(rest_.post(cache.path("/snapshots/s/restore"), {{"replace", true}}));
  EXPECT_EQ(back.at("state"), "done") << back;
  EXPECT_EQ(back.at("blocks_done"), 8);
  for (const int first : {0, 10}) {
    EXPECT_EQ(cache.match(keys(first, 4), 0).at("matched"), 4);
    for (int n = first; n < first + 4; ++n) cache.expect_intact(n);
  }
  for (const int first : {20, 30, 40}) EXPECT_FALSE(cache.holds(first));
  EXPECT_EQ(cache.count("disk", "free"), 4);
}

TEST_P(SnapshotFormTest, ReplacesBlocksOfHeadShards) {
  const json layout = {{"num_layers", kLayers},
                       {"outer_dim", 2},
                       {"page_size", kPageSize},
                       {"inner_dim", kInner},
                       {"dtype_width_bytes", kDtypeBytes},
                       {"shards", 2}};
  const TestCache cache =
      TestCache::made_of(rest_, {{"layout", layout}, {"tiers", {{"pinned", {{"num_blocks", 4}}}}}});
  const std::string saved(kLayers * 2 * kRegionBytes, 's');
  const std::string later(saved.size() / 2, 'l');
  ASSERT_THAT(rest_.put_bytes(cache.key_path(1), saved), has_status(201));
  EXPECT_EQ(make(cache, "s", GetParam()).at("state"), "done");
  ASSERT_TRUE(rest_.del(cache.key_path(1)).ok());
  const std::string part = cache.key_path(1) + "?shards=2&shard=";
  ASSERT_EQ(rest_.put_bytes(part + "0", later).document().at("status"), "pending");
  // A block that lacks a part is held for it.
  EXPECT_THAT(rest_.post(cache.path("/snapshots/s/restore"), {{"replace", true}}),
              is_problem(409, "leased"));
  ASSERT_EQ(rest_.put_bytes(part + "1", later).document().at("status"), "committed");
  const json back = ended(rest_.post(cache.path("/snapshots/s/restore"), {{"replace", true}}));
  EXPECT_EQ(back.at("state"), "done") << back;
  EXPECT_EQ(rest_.get(cache.key_path(1)).body, saved);
}

TEST_F(SnapshotTest, StaysRightWhileOthersWrite) {
  TestCache cache(rest_, {.device = 8, .pinned = 8, .disk = 16});
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    Rest rest(server().endpoint());
    for (int n = 0; !stop; n = (n + 1) % 60) {
      // The server may refuse this while the snapshot has the slots: that is fine.
      rest.put_bytes(cache.key_path(n), block(n));
      if (n % 20 == 19) rest.post(cache.path("/clear"), {{"tier", "pinned"}});
    }
  });
  TestCache copy(rest_, {.pinned = 64});
  const auto folder = server().data_dir() / "snapshots";
  std::filesystem::create_directories(folder / copy.name());
  for (int round = 0; round < 6; ++round) {
    const std::string name = "s" + std::to_string(round);
    const json made = make(cache, name, round % 2 == 1);
    EXPECT_EQ(made.at("state"), "done") << made;
    std::filesystem::rename(folder / cache.name() / (name + ".snapshot"),
                            folder / copy.name() / (name + ".snapshot"));
    const json back = restore(copy, name);
    EXPECT_EQ(back.at("state"), "done") << back;
    for (int n = 0; n < 60; ++n) {
      if (copy.holds(n)) copy.expect_intact(n);
    }
    EXPECT_TRUE(rest_.post(copy.path("/clear")).ok());
  }
  stop = true;
  writer.join();
}

// --restore, with the data directory of an earlier server.
class SnapshotStartTest : public testing::Test {
 protected:
  ServerProcess start(std::vector<std::string> flags = {}) {
    flags.insert(flags.end(), {"--config", config_.string()});
    return ServerProcess({.flags = std::move(flags), .data_dir = folder_.path() / "data"});
  }
  // The error output of a server that does not start; checks that it exits with 2.
  std::string refusal(const std::string& restore) {
    ChildProcess child({CAIRN_SERVER_PROGRAM, "--listen", "127.0.0.1:0", "--config",
                        config_.string(), "--data-dir", (folder_.path() / "data").string(),
                        "--restore", restore});
    EXPECT_EQ(child.wait(), 2) << restore;
    return child.standard_error();
  }
  static void store(Rest& rest, int first, int count) {
    for (int n = first; n < first + count; ++n) {
      const std::string parent = n > first ? "?parent=" + key(n - 1) : "";
      EXPECT_THAT(rest.put_bytes("/v1/caches/c/keys/" + key(n) + parent, block(n)),
                  has_status(201));
    }
  }

  void SetUp() override {
    std::ofstream(config_) << R"({"caches": []})";
    ServerProcess server = start();
    Rest rest(server.endpoint());
    ASSERT_THAT(rest.put("/v1/caches/c", cache_body({.pinned = 8, .disk = 8})), has_status(201));
    store(rest, 0, 8);
    for (const bool compress : {false, true}) {
      const Reply made = rest.post(
          "/v1/caches/c/snapshots",
          {{"name", compress ? "packed" : "plain"}, {"compress", compress}, {"wait_ms", 60'000}});
      ASSERT_THAT(made, has_status(200));
      ASSERT_EQ(made.document().at("state"), "done");
    }
    ASSERT_EQ(server.stop(), 0) << server.output();
  }

  fakes::TempDir folder_;
  const std::filesystem::path config_ = folder_.path() / "config.json";
};

TEST_F(SnapshotStartTest, RecreatesTheCacheWithAllItsBlocks) {
  const std::string file = (folder_.path() / "data/snapshots/c/packed.snapshot").string();
  for (const std::string& what : {std::string("c=plain"), "c=" + file, file}) {
    ServerProcess server = start({"--restore", what});
    Rest rest(server.endpoint());
    const json match =
        rest.post("/v1/caches/c/match", {{"keys", keys(0, 8)}, {"lease_ms", 0}}).document();
    EXPECT_EQ(match.at("matched"), 8) << what;
    for (int n = 0; n < 8; ++n) {
      EXPECT_EQ(rest.get("/v1/caches/c/keys/" + key(n)).body, block(n)) << what;
    }
    EXPECT_EQ(server.stop(), 0) << server.output();
  }
}

TEST_F(SnapshotStartTest, RestoresSeveralCachesAndRenamesOne) {
  const std::string file = (folder_.path() / "data/snapshots/c/plain.snapshot").string();
  ServerProcess server = start({"--restore", "c=packed", "--restore", "d=" + file});
  Rest rest(server.endpoint());
  for (const char* cache : {"c", "d"}) {
    EXPECT_EQ(rest.get("/v1/caches/" + std::string(cache) + "/keys/" + key(7)).body, block(7));
  }
  EXPECT_EQ(server.stop(), 0) << server.output();
}

TEST_F(SnapshotStartTest, DoesNotStartIfARestoreFails) {
  EXPECT_THAT(refusal("c=none"), HasSubstr("there is no snapshot none"));
  EXPECT_THAT(refusal("nonsense"), HasSubstr("CACHE=NAME"));
  EXPECT_THAT(refusal("c=.."), HasSubstr("name"));
  const auto file = folder_.path() / "data/snapshots/c/plain.snapshot";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_THAT(refusal("c=plain"), HasSubstr("cut off"));
  json other = cache_body({.pinned = 8});
  other["layout"]["page_size"] = kPageSize * 2;
  other["name"] = "c";
  std::ofstream(config_) << json{{"caches", json::array({other})}};
  EXPECT_THAT(refusal("c=packed"), HasSubstr("tokens"));
}

}  // namespace
}  // namespace cairn::e2e
