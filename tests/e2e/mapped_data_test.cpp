#include <atomic>
#include <fstream>
#include <thread>

#include "tests/e2e/support/served_test.hpp"

// Files that are larger than what a server may keep of them in memory.
namespace cairn::e2e {
namespace {

constexpr std::uint64_t kFileMiB = 1 << 20;
constexpr std::size_t kMappedBlockBytes = 64 * 1024;
constexpr int kMappedBlocks = 1536;  // 96 MiB
constexpr std::uint64_t kBoundBytes = 24 * kFileMiB;

// The resident bytes of files in a process.
std::uint64_t resident_of_files(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("RssFile:")) return std::stoull(line.substr(8)) * 1024;
  }
  return 0;
}

// Samples them until most_bytes() returns the maximum.
class FileMemoryWatch {
 public:
  explicit FileMemoryWatch(pid_t pid)
      : thread_([this, pid] {
          while (!ended_) most_ = std::max(most_, resident_of_files(pid));
        }) {}
  ~FileMemoryWatch() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
  }
  std::uint64_t most_bytes() {
    ended_ = true;
    thread_.join();
    return most_;
  }

 private:
  std::atomic<bool> ended_{false};
  std::uint64_t most_ = 0;
  std::thread thread_;
};

std::string mapped_block(int n) {
  return std::string(kMappedBlockBytes - 1, static_cast<char>('a' + n % 26)) +
         static_cast<char>(n / 26);
}

TEST(MappedDataTest, RestoresALargeSnapshotWithLittleMemory) {
  const fakes::TempDir folder;
  std::ofstream(folder.path() / "config.json") << R"({"caches": []})";
  ServerProcess server({.flags = {"--config", (folder.path() / "config.json").string()}});
  Rest rest(server.endpoint());
  ASSERT_EQ(rest.put("/v1/caches/large", {{"layout",
                                           {{"num_layers", 1},
                                            {"outer_dim", 1},
                                            {"page_size", 1},
                                            {"inner_dim", kMappedBlockBytes / 2},
                                            {"dtype_width_bytes", 2}}},
                                          {"tiers", {{"pinned", {{"num_blocks", kMappedBlocks}}}}}})
                .status,
            201U);
  for (int first = 0; first < kMappedBlocks; first += 128) {
    std::string bytes;
    for (int n = first; n < first + 128; ++n) bytes += mapped_block(n);
    ASSERT_EQ(
        rest.post_bytes("/v1/caches/large/write", write_body({{"keys", keys(first, 128)}}, bytes))
            .status,
        200U);
  }
  ASSERT_TRUE(rest.post("/v1/caches/large/snapshots", {{"name", "s"}, {"wait_ms", 60'000}}).ok());
  ASSERT_TRUE(rest.post("/v1/caches/large/clear").ok());
  const double mapped = rest.metric(R"(cairn_mapped_files_total{memory="mapped"})");
  const std::uint64_t before = resident_of_files(server.pid());
  FileMemoryWatch watch(server.pid());
  const json back =
      rest.post("/v1/caches/large/snapshots/s/restore", {{"wait_ms", 60'000}}).document();
  EXPECT_EQ(back.at("state"), "done");
  EXPECT_LE(watch.most_bytes(), before + kBoundBytes);
  EXPECT_EQ(rest.metric(R"(cairn_mapped_files_total{memory="mapped"})"), mapped + 1);
  // Once to check all of it, once to load it.
  EXPECT_GE(rest.metric("cairn_mapped_released_bytes_total"),
            2.0 * (kMappedBlocks * kMappedBlockBytes - kBoundBytes));
  EXPECT_EQ(rest.metric("cairn_mapped_advice_refused_total"), 0);
  for (const int n : {0, 700, kMappedBlocks - 1}) {
    EXPECT_TRUE(rest.get("/v1/caches/large/keys/" + key(n)).body == mapped_block(n)) << n;
  }
}

TEST(MappedDataTest, ReadsTheIndexOfADiskTierThroughAMapping) {
  const fakes::TempDir folder;
  std::ofstream(folder.path() / "config.json") << R"({"caches": []})";
  const ServerSetup setup{.flags = {"--config", (folder.path() / "config.json").string()},
                          .data_dir = folder.path() / "data"};
  std::string name;
  {
    ServerProcess server(setup);
    Rest rest(server.endpoint());
    TestCache cache(rest, {.disk = 8});
    cache.store(1);
    name = cache.name();
    EXPECT_EQ(server.stop(), 0);
  }
  ServerProcess server(setup);
  Rest rest(server.endpoint());
  EXPECT_GE(rest.metric(R"(cairn_mapped_files_total{memory="mapped"})"), 1);
  EXPECT_EQ(rest.get("/v1/caches/" + name + "/keys/" + key(1)).body, block(1));
}

}  // namespace
}  // namespace cairn::e2e
