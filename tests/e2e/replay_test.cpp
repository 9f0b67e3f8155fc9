#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"

// The replayer against a real server, and whether its verdict is right.
namespace cairn::e2e {
namespace {

struct Outcome {
  std::optional<int> code;
  json result;
  std::string err;
};

class ReplayTest : public ServedTest {
 protected:
  static void SetUpTestSuite() { start({"--threads", "3"}); }

  // Tiers of 4 KiB blocks, all smaller than the workload.
  Outcome replay(std::vector<std::string> flags) {
    std::vector<std::string> command = {CAIRN_REPLAY_PROGRAM, "--server", server().url(), "--json",
                                        "--block-bytes",      "4096"};
    command.insert(command.end(), flags.begin(), flags.end());
    ChildProcess child(command);
    const auto code = child.wait();
    return {code, json::parse(child.standard_output(), nullptr, false), child.standard_error()};
  }
  static constexpr int kTotalBlocks = 32 + 64 + 160;
  static std::vector<std::string> workload(const std::string& kind) {
    return {"--generate",      kind, "--requests",      "120", "--connections", "3",
            "--device-blocks", "32", "--pinned-blocks", "64",  "--disk-blocks", "160"};
  }
  static void append(std::vector<std::string>& flags, const std::vector<std::string>& more) {
    flags.insert(flags.end(), more.begin(), more.end());
  }
};

struct Way {
  std::string kind;
  std::string mode;
  std::string read_via;
  std::string offload;
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << way.kind << " " << way.mode << " " << way.read_via << " " << way.offload;
}
class ReplayWaysTest : public ReplayTest, public testing::WithParamInterface<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, ReplayWaysTest,
                         testing::Values(Way{"chat", "slots", "read", "on_evict"},
                                         Way{"agents", "write", "keys", "on_evict"},
                                         Way{"mixed", "slots", "keys", "on_evict"},
                                         Way{"mixed", "write", "read", "on_commit"}),
                         [](const auto& way) {
                           return way.param.kind + "_" + way.param.mode + "_" + way.param.read_via +
                                  "_" + way.param.offload;
                         });

TEST_P(ReplayWaysTest, FindsNoWrongByteAndHitsOnEveryTier) {
  auto flags = workload(GetParam().kind);
  append(flags, {"--mode", GetParam().mode, "--read-via", GetParam().read_via, "--offload",
                 GetParam().offload});
  const Outcome outcome = replay(flags);
  EXPECT_EQ(outcome.code, 0) << outcome.result << outcome.err;
  ASSERT_TRUE(outcome.result.is_object()) << outcome.err;
  EXPECT_EQ(outcome.result.at("wrong_bytes"), 0) << outcome.result;
  for (const char* tier : kTierNames) {
    EXPECT_GT(outcome.result.at("match").at(tier), 0) << outcome.result;
  }
  // All tiers together hold less than what was stored.
  EXPECT_GT(outcome.result.at("stored"), kTotalBlocks);
  EXPECT_EQ(outcome.result.at("match"), outcome.result.at("server_match"));
  int asked = 0;
  for (const json& count : outcome.result.at("match")) asked += count.get<int>();
  EXPECT_EQ(asked, outcome.result.at("blocks_asked"));
}

TEST_F(ReplayTest, SendsHintsWithReleases) {
  auto flags = workload("chat");
  append(flags, {"--hints", "when=1", "--cache", "hinted", "--keep"});
  const Outcome outcome = replay(flags);
  EXPECT_EQ(outcome.code, 0) << outcome.result << outcome.err;
  for (const char* kind : {"never", "within"}) {
    EXPECT_GT(
        rest_.metric("cairn_hints_total{cache=\"hinted\",reuse=\"" + std::string(kind) + "\"}"), 0)
        << kind;
  }
  EXPECT_TRUE(rest_.del("/v1/caches/hinted?force=true").ok());
}

TEST_F(ReplayTest, LeavesNothingBehind) {
  const json before = rest_.get("/v1/caches").document();
  EXPECT_EQ(replay(workload("chat")).code, 0);
  EXPECT_EQ(rest_.get("/v1/caches").document(), before);
}

// One block of a replay is stored again under its key with a byte changed. The next replay of the
// same workload must report it.
TEST_F(ReplayTest, FindsOneWrongByte) {
  const std::vector<std::string> flags = {"--generate",      "chat", "--requests",      "20",
                                          "--connections",   "1",    "--device-blocks", "4000",
                                          "--pinned-blocks", "0",    "--disk-blocks",   "0",
                                          "--cache",         "kept", "--keep"};
  ASSERT_EQ(replay(flags).code, 0);
  const json first = rest_.get("/v1/caches/kept/blocks?limit=1").document().at("blocks").at(0);
  const std::string path = "/v1/caches/kept/keys/" + first.at("key").get<std::string>();
  std::string bytes = rest_.get(path).body;
  ASSERT_FALSE(bytes.empty());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  ASSERT_TRUE(rest_.del(path).ok());
  ASSERT_THAT(rest_.put_bytes(path, bytes), has_status(201));
  const Outcome outcome = replay(flags);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_GE(outcome.result.at("wrong_bytes"), 1);
}

// A model with larger blocks in its windows than in its other groups, and keys of half a block of
// the workload.
void write_model(const std::filesystem::path& path) {
  const auto layout = [](int layers, int page_size) {
    return json{{"num_layers", layers},
                {"outer_dim", 2},
                {"page_size", page_size},
                {"inner_dim", 1},
                {"dtype_width_bytes", 2}};
  };
  std::ofstream(path) << json{
      {"block_tokens", 256},
      {"kv_groups",
       {{{"name", "attention"}, {"kind", "full"}, {"layout", layout(1, 256)}},
        {{"name", "swa"}, {"kind", "window"}, {"window_tokens", 700}, {"layout", layout(2, 512)}},
        {{"name", "mamba"}, {"kind", "state"}, {"layout", layout(3, 1)}}}}};
}

struct GroupWay {
  std::string model;
  std::string mode;
  std::string read_via;
};
void PrintTo(const GroupWay& way, std::ostream* out) {
  *out << way.model << " " << way.mode << " " << way.read_via;
}
class ReplayGroupsTest : public ReplayTest, public testing::WithParamInterface<GroupWay> {};
INSTANTIATE_TEST_SUITE_P(Ways, ReplayGroupsTest,
                         testing::Values(GroupWay{"gemma", "slots", "read"},
                                         GroupWay{"state", "write", "keys"},
                                         GroupWay{"file", "slots", "read"},
                                         GroupWay{"file", "write", "keys"}),
                         [](const auto& way) {
                           return way.param.model + "_" + way.param.mode + "_" + way.param.read_via;
                         });

TEST_P(ReplayGroupsTest, FindsNoWrongByteAndTheBlocksThatEachMatchNeeds) {
  const fakes::TempDir folder;
  const std::string path = (folder.path() / "model.json").string();
  write_model(path);
  const Outcome outcome =
      replay({"--generate", "agents", "--requests", "120", "--connections", "3", "--kv-groups",
              GetParam().model == "file" ? path : GetParam().model, "--device-blocks", "0",
              "--pinned-blocks", "64", "--disk-blocks", "160", "--mode", GetParam().mode,
              "--read-via", GetParam().read_via});
  EXPECT_EQ(outcome.code, 0) << outcome.result << outcome.err;
  ASSERT_TRUE(outcome.result.is_object()) << outcome.err;
  EXPECT_EQ(outcome.result.at("wrong_bytes"), 0);
  EXPECT_GT(outcome.result.at("match").at("pinned"), 0) << outcome.result;
  EXPECT_GT(outcome.result.at("match").at("disk"), 0) << outcome.result;
  const int matched = outcome.result.at("kv_groups").at("matched");
  EXPECT_GT(matched, 0);
  EXPECT_GE(outcome.result.at("kv_groups").at("full_matched"), matched);
  EXPECT_EQ(matched + outcome.result.at("match").at("miss").get<int>(),
            outcome.result.at("blocks_asked"));
  EXPECT_EQ(outcome.result.at("match"), outcome.result.at("server_match"));
}

TEST_F(ReplayTest, FindsOneWrongByteOfAWindow) {
  const std::vector<std::string> flags = {
      "--generate",      "chat",  "--requests",      "20",      "--connections", "1",
      "--device-blocks", "0",     "--pinned-blocks", "4000",    "--disk-blocks", "0",
      "--kv-groups",     "gemma", "--cache",         "windows", "--keep"};
  ASSERT_EQ(replay(flags).code, 0);
  const json blocks = rest_.get("/v1/caches/windows/blocks?limit=1000").document().at("blocks");
  const auto window = std::ranges::find_if(
      blocks, [](const json& block) { return block.at("kv_group") == "window-3"; });
  ASSERT_NE(window, blocks.end());
  const std::string block =
      "/v1/caches/windows/keys/" + window->at("key").get<std::string>() + "?kv_group=window-3";
  std::string bytes = rest_.get(block).body;
  ASSERT_FALSE(bytes.empty());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  ASSERT_TRUE(rest_.del(block).ok());
  ASSERT_THAT(rest_.put_bytes(block, bytes), has_status(201));
  const Outcome outcome = replay(flags);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_GE(outcome.result.at("wrong_bytes"), 1);
}

TEST_F(ReplayTest, RefusesACacheOfOtherKvGroups) {
  const std::vector<std::string> flags = {
      "--generate",      "chat",       "--requests",    "1", "--device-blocks", "0",
      "--pinned-blocks", "100",        "--disk-blocks", "0", "--cache",         "others",
      "--keep",          "--kv-groups"};
  auto first = flags;
  first.emplace_back("gemma");
  ASSERT_EQ(replay(first).code, 0);
  auto second = flags;
  second.emplace_back("state");
  const Outcome outcome = replay(second);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, testing::HasSubstr("has other KV groups"));
}

// One connection, so that the requests come in the order of the workload.
TEST_F(ReplayTest, SimulationOfKvGroupsFindsWhatTheServerFinds) {
  const std::vector<std::string> workload = {"--generate", "mixed",       "--requests",
                                             "600",        "--kv-groups", "gemma"};
  for (const std::string order : {"lru", "class_hazard"}) {
    auto flags = workload;
    append(flags, {"--connections", "1", "--device-blocks", "0", "--disk-blocks", "0",
                   "--pinned-blocks", "300", "--eviction", order});
    const Outcome served = replay(flags);
    ASSERT_EQ(served.code, 0) << served.result << served.err;
    std::vector<std::string> command = {
        CAIRN_REPLAY_PROGRAM, "--simulate", "--json", "--capacity", "300", "--policy", order};
    append(command, workload);
    ChildProcess simulation(command);
    ASSERT_EQ(simulation.wait(), 0) << simulation.standard_error();
    const json simulated = json::parse(simulation.standard_output());
    const double hit_rate = served.result.at("hit_rate");
    EXPECT_GT(hit_rate, 0.1);
    EXPECT_NEAR(simulated.at("hit_rates").at(order).at(0).get<double>(), hit_rate, 0.01) << order;
  }
}

// --simulate reads what --record writes: the same requests have the same hits.
TEST(RecordTest, SimulationFindsTheHitsOfTheServer) {
  const fakes::TempDir folder;
  const std::string trace = (folder.path() / "trace.jsonl").string();
  constexpr const char* kBlocks = "300";
  ServerProcess server({.flags = {"--record", trace}});
  ChildProcess replay({CAIRN_REPLAY_PROGRAM,
                       "--server",
                       server.url(),
                       "--generate",
                       "chat",
                       "--requests",
                       "400",
                       "--connections",
                       "1",
                       "--block-bytes",
                       "4096",
                       "--device-blocks",
                       "0",
                       "--disk-blocks",
                       "0",
                       "--pinned-blocks",
                       kBlocks,
                       "--eviction",
                       "lru",
                       "--cache",
                       "recorded",
                       "--keep"});
  ASSERT_EQ(replay.wait(), 0) << replay.standard_error();
  Rest rest(server.endpoint());
  const json counts = rest.get("/v1/caches/recorded").document();
  const double asked = counts.at("hits").get<double>() + counts.at("misses").get<double>();
  const double hit_rate = counts.at("hits").get<double>() / asked;
  ASSERT_EQ(server.stop(), 0) << server.output();

  ChildProcess simulation({CAIRN_REPLAY_PROGRAM, "--simulate", "--trace", trace, "--capacity",
                           kBlocks, "--policy", "lru", "--block-tokens", "16", "--json"});
  ASSERT_EQ(simulation.wait(), 0) << simulation.standard_error();
  const json simulated = json::parse(simulation.standard_output());
  EXPECT_EQ(simulated.at("requests"), 400);
  EXPECT_EQ(simulated.at("blocks_asked"), asked);
  EXPECT_GT(hit_rate, 0.1);
  EXPECT_NEAR(simulated.at("hit_rates").at("lru").at(0).get<double>(), hit_rate, 0.005);
}

class ReplayOverARestartTest : public testing::TestWithParam<int> {
 protected:
  ReplayOverARestartTest() {
    std::ofstream(dir_.path() / "config.json") << R"({"caches": []})";
    start();
  }
  void start() {
    server_ = std::make_unique<ServerProcess>(
        ServerSetup{.flags = {"--config", (dir_.path() / "config.json").string()},
                    .data_dir = dir_.path() / "data"});
  }
  // The server writes every stored block through to disk.
  Outcome replay() {
    ChildProcess child({CAIRN_REPLAY_PROGRAM, "--server", server_->url(), "--json", "--generate",
                        "chat", "--requests", "40", "--connections", "2", "--block-bytes", "4096",
                        "--device-blocks", "0", "--offload", "on_commit", "--cache", "kept",
                        "--keep"});
    const auto code = child.wait();
    return {code, json::parse(child.standard_output(), nullptr, false), child.standard_error()};
  }
  bool on_disk(std::uint64_t blocks) {
    Rest rest(server_->endpoint());
    double there = 0;
    for (const char* state : {"committed", "leased", "evictable"}) {
      there += rest.metric(std::string("cairn_blocks{cache=\"kept\",tier=\"disk\",state=\"") +
                           state + "\"}");
    }
    return there == static_cast<double>(blocks);
  }

  fakes::TempDir dir_;
  std::unique_ptr<ServerProcess> server_;
};
INSTANTIATE_TEST_SUITE_P(Ends, ReplayOverARestartTest, testing::Values(SIGTERM, SIGKILL),
                         [](const auto& end) { return end.param == SIGTERM ? "term" : "kill"; });

TEST_P(ReplayOverARestartTest, HitsFromDiskAfterTheRestart) {
  const Outcome first = replay();
  ASSERT_EQ(first.code, 0) << first.result << first.err;
  const auto stored = first.result.at("stored").get<std::uint64_t>();
  ASSERT_GT(stored, 0u);
  ASSERT_TRUE(eventually([&] { return on_disk(stored); }));
  if (GetParam() == SIGTERM) {
    ASSERT_EQ(server_->stop(), 0);
  } else {
    server_->kill();
  }
  start();
  const Outcome second = replay();
  EXPECT_EQ(second.code, 0) << second.result << second.err;
  EXPECT_EQ(second.result.at("own_cache"), false);
  EXPECT_EQ(second.result.at("wrong_bytes"), 0);
  EXPECT_EQ(second.result.at("match").at("disk"), second.result.at("blocks_asked"));
}

TEST_F(ReplayTest, RefusesWrongArguments) {
  EXPECT_EQ(replay({"--generate", "nonsense"}).code, 2);
  EXPECT_EQ(replay({"--trace", "/nonexistent"}).code, 2);
}

TEST_F(ReplayTest, FailsWithoutAServer) {
  ChildProcess child({CAIRN_REPLAY_PROGRAM, "--server", "http://127.0.0.1:1", "--generate", "chat",
                      "--requests", "1"});
  EXPECT_EQ(child.wait(), 1);
}

}  // namespace
}  // namespace cairn::e2e
