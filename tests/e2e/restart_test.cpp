// The blocks of a disk tier after a restart of the server.
#include <algorithm>
#include <fstream>

#include "tests/e2e/support/served_test.hpp"

namespace cairn::e2e {
namespace {

class RestartTest : public testing::Test {
 protected:
  RestartTest() {
    std::ofstream(dir_.path() / "config.json") << R"({"caches": []})";
    start();
  }
  void start(std::vector<std::string> more = {}) {
    std::vector<std::string> flags = {"--config", (dir_.path() / "config.json").string()};
    flags.insert(flags.end(), more.begin(), more.end());
    rest_.reset();
    server_ = std::make_unique<ServerProcess>(
        ServerSetup{.flags = flags, .data_dir = dir_.path() / "data"});
    rest_ = std::make_unique<Rest>(server_->endpoint());
  }
  void kill_and_start() {
    server_->kill();
    start();
  }
  void start_with_offload_at_stop() {
    std::ofstream(dir_.path() / "config.json")
        << R"({"caches": [], "disk": {"offload_at_stop": true}})";
    kill_and_start();
  }
  std::filesystem::path slot_file() const { return dir_.path() / "data/disk/kept"; }
  void make(const json& body) { ASSERT_THAT(rest_->put("/v1/caches/kept", body), has_status(201)); }
  void put(int n, const std::string& query = "?tier=disk") {
    ASSERT_THAT(rest_->put_bytes("/v1/caches/kept/keys/" + key(n) + query, block(n)),
                has_status(201));
  }
  Reply get(int n) { return rest_->get("/v1/caches/kept/keys/" + key(n)); }
  // Flips one bit of the first slot's bytes, behind the file's two pages and the slot's header.
  void damage_first_slot() {
    std::fstream file(slot_file(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(12288 + 17);
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(12288 + 17);
    file.put(byte);
  }
  void expect_block(int n) {
    const Reply reply = get(n);
    EXPECT_EQ(reply.status, 200) << n;
    EXPECT_TRUE(reply.body == block(n)) << n;
  }

  fakes::TempDir dir_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<Rest> rest_;
};

TEST_F(RestartTest, ServesEveryAcknowledgedBlockAfterAKill) {
  const json body = cache_body({.device = 2, .disk = 16});
  make(body);
  for (int n = 0; n < 4; ++n) put(n);
  const std::string write = write_body({{"keys", keys(4, 8)}, {"tier", "disk"}}, blocks(4, 8));
  ASSERT_TRUE(rest_->post_bytes("/v1/caches/kept/write", write).ok());
  kill_and_start();
  // Before any client asks for the cache.
  for (int n = 0; n < 12; ++n) expect_block(n);
  EXPECT_THAT(rest_->put("/v1/caches/kept", body), has_status(200));
}

TEST_F(RestartTest, ServesBlocksMovedToDiskBeforeAKill) {
  make(cache_body({.device = 4, .disk = 16}));
  for (int n = 0; n < 4; ++n) put(n, "?tier=device&parent=" + key(n + 100));
  const Reply moved = rest_->post("/v1/caches/kept/transfers",
                                  {{"keys", keys(0, 4)}, {"to", "disk"}, {"wait_ms", 60'000}});
  ASSERT_EQ(moved.document().at("state"), "done");
  kill_and_start();
  for (int n = 0; n < 4; ++n) expect_block(n);
  const json list = rest_->get("/v1/caches/kept/blocks?tier=disk").document();
  ASSERT_EQ(list.at("blocks").size(), 4u);
  EXPECT_EQ(list.at("blocks")[0].at("parent"), key(100));
}

TEST_F(RestartTest, RebuildsADamagedDescriptionFromTheSlotFile) {
  json body = cache_body({.pinned = 3, .disk = 4});
  body["offload"] = "on_commit";
  body["default_lease_ms"] = 12'345;
  make(body);
  put(1);
  const auto description = dir_.path() / "data/caches/kept.json";
  std::string text;
  {
    std::ifstream file(description);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  // Another valid number: only the checksum detects it.
  const std::size_t number = text.find("12345");
  ASSERT_NE(number, std::string::npos);
  std::string other = text;
  other.replace(number, 5, "12347");
  for (const std::string& damaged : {other, text.substr(0, text.size() / 2), std::string()}) {
    server_->kill();
    std::ofstream(description, std::ios::trunc) << damaged;
    start();
    EXPECT_EQ(rest_->metric(R"(cairn_disk_damage_total{part="description"})"), 1);
    EXPECT_THAT(rest_->put("/v1/caches/kept", body), has_status(200)) << "the same configuration";
    expect_block(1);
  }
  kill_and_start();
  EXPECT_EQ(rest_->metric(R"(cairn_disk_damage_total{part="description"})"), 0)
      << "the description is repaired";
}

TEST_F(RestartTest, DamagedBlockIsCountedAndMissed) {
  make(cache_body({.disk = 4}));
  put(1);
  put(2);
  server_->kill();
  damage_first_slot();
  start();
  EXPECT_NE(get(1).status, 200);
  EXPECT_THAT(get(1), has_status(404));
  expect_block(2);
  EXPECT_THAT(rest_->get("/metrics").body,
              testing::HasSubstr("cairn_checksum_failures_total{tier=\"disk\"} 1"));
}

TEST_F(RestartTest, ScrubFindsDamageBeforeARead) {
  make(cache_body({.disk = 4}));
  put(1);
  put(2);
  server_->kill();
  damage_first_slot();
  start({"--disk-scrub-bytes-per-s", "1000000"});
  EXPECT_TRUE(eventually([&] {
    return rest_->metric(R"(cairn_disk_scrub_wrong_blocks_total{cache="kept"})") == 1 &&
           rest_->metric(R"(cairn_disk_scrub_passes_total{cache="kept"})") > 1;
  }));
  EXPECT_EQ(rest_->metric(R"(cairn_checksum_failures_total{tier="disk"})"), 1);
  EXPECT_THAT(rest_->get("/v1/caches/kept/blocks?tier=disk").document().at("blocks"),
              testing::SizeIs(1));
  expect_block(2);
}

TEST_F(RestartTest, RefusesBlocksOfAnotherShape) {
  make(cache_body({.disk = 4}));
  put(1);
  server_->kill();
  std::filesystem::remove(dir_.path() / "data/caches/kept.json");
  start();
  json other = cache_body({.disk = 4});
  other["layout"]["page_size"] = 1;
  EXPECT_THAT(rest_->put("/v1/caches/kept", other), is_problem(409, "state_conflict"));
  make(cache_body({.disk = 4}));
  expect_block(1);
}

TEST_F(RestartTest, RefusesAForeignFile) {
  std::filesystem::create_directories(slot_file().parent_path());
  std::ofstream(slot_file()) << "somebody's letters";
  const Reply refused = rest_->put("/v1/caches/kept", cache_body({.disk = 4}));
  EXPECT_THAT(refused, is_problem(409, "state_conflict"));
  EXPECT_THAT(refused.body, testing::HasSubstr("disk/kept"));
  EXPECT_EQ(std::filesystem::file_size(slot_file()), 18u);
}

TEST_F(RestartTest, StartsFromItsCheckpointAfterACleanStop) {
  make(cache_body({.disk = 16}));
  for (int n = 0; n < 8; ++n) put(n, "?tier=disk&parent=" + key(n + 100));
  ASSERT_THAT(rest_->del("/v1/caches/kept/keys/" + key(3)), has_status(204));
  ASSERT_EQ(server_->stop(), 0);
  EXPECT_TRUE(std::filesystem::exists(slot_file().string() + "~index"));
  start();
  for (int n = 0; n < 8; ++n) {
    if (n != 3) expect_block(n);
  }
  EXPECT_THAT(get(3), has_status(404));
}

TEST_F(RestartTest, StopOffloadsMemoryToDiskIfSet) {
  start_with_offload_at_stop();
  make(cache_body({.device = 4, .pinned = 8, .disk = 16}));
  for (int n = 0; n < 4; ++n) put(n, "?tier=pinned");
  for (int n = 4; n < 8; ++n) put(n, "?tier=device");
  ASSERT_EQ(server_->stop(), 0);
  start();
  for (int n = 0; n < 8; ++n) expect_block(n);
}

TEST_F(RestartTest, StopOffloadsOntoAFullDisk) {
  start_with_offload_at_stop();
  make(cache_body({.device = 2, .pinned = 2, .disk = 4}));
  for (int n = 0; n < 4; ++n) put(n, "?tier=disk");
  for (int n = 4; n < 6; ++n) put(n, "?tier=pinned");
  for (int n = 6; n < 8; ++n) put(n, "?tier=device");
  ASSERT_EQ(server_->stop(), 0);
  start();
  for (int n = 0; n < 4; ++n) EXPECT_THAT(get(n), has_status(404)) << n;
  for (int n = 4; n < 8; ++n) expect_block(n);
}

TEST_F(RestartTest, StopOffloadsAsMuchAsASmallDiskHolds) {
  start_with_offload_at_stop();
  make(cache_body({.pinned = 8, .disk = 4}));
  for (int n = 0; n < 8; ++n) put(n, "?tier=pinned");
  ASSERT_EQ(server_->stop(), 0);
  start();
  int there = 0;
  for (int n = 0; n < 8; ++n) there += get(n).ok() ? 1 : 0;
  EXPECT_EQ(there, 4);
}

TEST_F(RestartTest, KillAtAnyPlaceLosesNothingAcknowledged) {
  for (const std::string place :
       {"commit.header_written:3", "commit.noted:3", "erase.noted:2", "move.written:2"}) {
    const std::string name = "at-" + std::to_string(place.size()) + place.substr(0, 5);
    server_->kill();
    std::ofstream(dir_.path() / "config.json")
        << R"({"caches": [], "disk": {"crash_at": ")" << place << R"("}})";
    start();
    const std::string at = "/v1/caches/" + name + "/keys/";
    ASSERT_THAT(rest_->put("/v1/caches/" + name, cache_body({.device = 4, .disk = 16})),
                has_status(201));
    std::vector<int> acknowledged;
    for (int n = 0; n < 6 && server_->running(); ++n) {
      if (rest_->put_bytes(at + key(n) + "?tier=disk", block(n)).ok()) acknowledged.push_back(n);
    }
    std::vector<int> erased;
    for (int n = 0; n < 2; ++n) {
      if (rest_->del(at + key(n)).ok()) erased.push_back(n);
    }
    for (int n = 20; n < 23; ++n) {
      if (!rest_->put_bytes(at + key(n) + "?tier=device", block(n)).ok()) break;
      const Reply moved = rest_->post("/v1/caches/" + name + "/transfers",
                                      {{"keys", keys(n, 1)}, {"to", "disk"}, {"wait_ms", 60'000}});
      if (moved.status == 200) acknowledged.push_back(n);
    }
    server_->kill();
    std::ofstream(dir_.path() / "config.json") << R"({"caches": []})";
    start();
    for (const int n : acknowledged) {
      const Reply reply = rest_->get(at + key(n));
      if (std::ranges::find(erased, n) != erased.end()) {
        EXPECT_EQ(reply.status, 404) << place << " " << n;
      } else if (n < 2 && reply.status == 404) {
        // Its delete had begun but was not acknowledged.
        EXPECT_EQ(place, "erase.noted:2");
      } else {
        EXPECT_TRUE(reply.status == 200 && reply.body == block(n)) << place << " " << n;
      }
    }
  }
}

TEST_F(RestartTest, ForgetsADeletedCache) {
  make(cache_body({.disk = 4}));
  put(1);
  ASSERT_THAT(rest_->del("/v1/caches/kept"), has_status(204));
  kill_and_start();
  EXPECT_THAT(rest_->get("/v1/caches/kept"), has_status(404));
  make(cache_body({.disk = 4}));
  EXPECT_THAT(get(1), has_status(404));
}

}  // namespace
}  // namespace cairn::e2e
