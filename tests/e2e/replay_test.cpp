#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>

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

TEST_F(ReplayTest, SendsActionsAndCountsWhatTheServerCounts) {
  const Outcome outcome =
      replay({"--generate", "agents", "--requests", "150", "--connections", "3", "--device-blocks",
              "0", "--pinned-blocks", "500", "--disk-blocks", "3000", "--actions",
              "demote=1,prefetch=0.8,right=0.9", "--cache", "acted", "--keep"});
  EXPECT_EQ(outcome.code, 0) << outcome.result << outcome.err;
  const json& actions = outcome.result.at("actions");
  EXPECT_THAT(actions, testing::SizeIs(2));
  for (const char* type : {"demote", "prefetch"}) {
    EXPECT_GT(actions.at(type).value("accepted", 0), 0) << actions;
    for (const auto& [word, count] : actions.at(type).items()) {
      EXPECT_EQ(rest_.metric(std::string("cairn_actions_total{cache=\"acted\",type=\"") + type +
                             "\",outcome=\"" + word + "\"}"),
                count.get<double>())
          << type << " " << word;
    }
  }
  const json& prefetched = outcome.result.at("prefetched_blocks");
  EXPECT_GT(prefetched.at("used"), 0) << prefetched;
  EXPECT_GT(outcome.result.at("latency_us").at("action").at("count"), 0);
  EXPECT_TRUE(rest_.del("/v1/caches/acted?force=true").ok());
}

TEST_F(ReplayTest, LeavesNoPins) {
  const Outcome outcome =
      replay({"--generate", "agents", "--requests", "150", "--connections", "3", "--device-blocks",
              "0", "--pinned-blocks", "500", "--disk-blocks", "0", "--actions", "pin=1,right=0.8",
              "--cache", "pinned", "--keep"});
  EXPECT_EQ(outcome.code, 0) << outcome.result << outcome.err;
  int begun = 0;
  for (const char* word : {"accepted", "clipped"}) {
    begun += outcome.result.at("actions").at("pin").value(word, 0);
  }
  EXPECT_GT(begun, 0);
  EXPECT_EQ(outcome.result.at("actions").at("unpin").at("accepted"), begun);
  const json document = rest_.get("/v1/caches/pinned/pins").document();
  EXPECT_THAT(document.at("pins"), testing::IsEmpty());
  EXPECT_TRUE(rest_.del("/v1/caches/pinned?force=true").ok());
}

// A request of a new cache computes all its tokens. In the next replay, it loads all its blocks.
TEST_F(ReplayTest, ReportsTheTimeToTheLastByteInTheEngine) {
  const std::vector<std::string> flags = {
      "--generate",      "chat",  "--requests",      "1",
      "--device-blocks", "0",     "--pinned-blocks", "100",
      "--disk-blocks",   "0",     "--engine",        "token_us=2,block_us=1000",
      "--cache",         "timed", "--keep"};
  for (const bool is_first : {true, false}) {
    const Outcome outcome = replay(flags);
    ASSERT_EQ(outcome.code, 0) << outcome.result << outcome.err;
    const json& times = outcome.result.at("engine_us");
    const double blocks = outcome.result.at("blocks_asked");
    const double simulated_us = blocks * (is_first ? 512 * 2 : 1000);
    EXPECT_NEAR(times.at("virtual").at("p99").get<double>(), simulated_us, 1);
    const double real_us = times.at("real").at("p99");
    EXPECT_GT(real_us, 0);
    EXPECT_NEAR(times.at("both").at("p99").get<double>(), simulated_us + real_us, 1);
  }
  EXPECT_TRUE(rest_.del("/v1/caches/timed?force=true").ok());
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

// Of `--simulate` with one capacity and one order. NaN after a failure.
double simulated_hit_rate(const std::vector<std::string>& workload, const std::string& capacity,
                          const std::string& order) {
  std::vector<std::string> command = {
      CAIRN_REPLAY_PROGRAM, "--simulate", "--json", "--capacity", capacity, "--policy", order};
  command.insert(command.end(), workload.begin(), workload.end());
  ChildProcess simulation(command);
  const auto code = simulation.wait();
  EXPECT_EQ(code, 0) << simulation.standard_error();
  if (code != 0) return std::numeric_limits<double>::quiet_NaN();
  const json simulated = json::parse(simulation.standard_output());
  return simulated.at("hit_rates").at(order).at(0).get<double>();
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
    const double hit_rate = served.result.at("hit_rate");
    EXPECT_GT(hit_rate, 0.1);
    EXPECT_NEAR(simulated_hit_rate(workload, "300", order), hit_rate, 0.01) << order;
  }
}

// The server copies the hits into the memory of the replay's engine, from both tiers.
TEST(ReplayLoadTest, FindsWhatTheServerCopiedAndOneWrongByte) {
  const fakes::TempDir folder;
  const std::string socket = (folder.path() / "socket").string();
  ServerProcess server({.flags = {"--unix", socket}});
  const auto replay = [&] {
    ChildProcess child(
        {CAIRN_REPLAY_PROGRAM, "--server", "unix:" + socket,  "--json", "--generate",    "agents",
         "--requests",         "40",       "--connections",   "2",      "--block-bytes", "4096",
         "--device-blocks",    "0",        "--pinned-blocks", "400",    "--disk-blocks", "4000",
         "--read-via",         "load",     "--cache",         "loaded", "--keep"});
    const auto code = child.wait();
    return Outcome{code, json::parse(child.standard_output(), nullptr, false),
                   child.standard_error()};
  };
  const Outcome first = replay();
  ASSERT_EQ(first.code, 0) << first.result << first.err;
  EXPECT_GT(first.result.at("match").at("pinned"), 0);
  const Outcome second = replay();
  ASSERT_EQ(second.code, 0) << second.result << second.err;
  EXPECT_GT(second.result.at("match").at("disk"), 0);
  EXPECT_EQ(second.result.at("blocks_read"), second.result.at("blocks_asked"));

  Rest rest(server.endpoint());
  EXPECT_GT(rest.metric("cairn_agent_blocks_total{direction=\"load\",outcome=\"done\"}"), 0);
  const json list = rest.get("/v1/caches/loaded/blocks?limit=1").document();
  const std::string path =
      "/v1/caches/loaded/keys/" + list.at("blocks").at(0).at("key").get<std::string>();
  std::string bytes = rest.get(path).body;
  ASSERT_FALSE(bytes.empty());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  ASSERT_TRUE(rest.del(path).ok());
  ASSERT_THAT(rest.put_bytes(path, bytes), has_status(201));
  const Outcome third = replay();
  EXPECT_EQ(third.code, 1);
  EXPECT_GE(third.result.at("wrong_bytes"), 1);
}

struct ActedWay {
  std::string order;
  std::string actions;
};
void PrintTo(const ActedWay& way, std::ostream* out) { *out << way.order << " " << way.actions; }
class ReplayActionsTest : public ReplayTest, public testing::WithParamInterface<ActedWay> {};
INSTANTIATE_TEST_SUITE_P(
    Ways, ReplayActionsTest,
    testing::Values(ActedWay{"lru", "pin=1,right=0.8"}, ActedWay{"class_hazard", "pin=1,right=0.8"},
                    ActedWay{"lru", "within=0.9,right=0.9"},
                    ActedWay{"class_hazard", "pause=1,prefetch=0.8,right=0.9"}),
    [](const auto& way) {
      return way.param.order + "_" + way.param.actions.substr(0, way.param.actions.find('='));
    });

// One connection, so that requests and actions come in the order of the workload.
TEST_P(ReplayActionsTest, SimulationFindsWhatTheServerFinds) {
  const std::vector<std::string> workload = {"--generate", "agents",    "--requests",
                                             "200",        "--actions", GetParam().actions};
  auto flags = workload;
  append(flags, {"--connections", "1", "--device-blocks", "0", "--disk-blocks", "0",
                 "--pinned-blocks", "600", "--eviction", GetParam().order});
  const Outcome served = replay(flags);
  ASSERT_EQ(served.code, 0) << served.result << served.err;
  const double hit_rate = served.result.at("hit_rate");
  EXPECT_GT(hit_rate, 0.1);
  EXPECT_NEAR(simulated_hit_rate(workload, "600", GetParam().order), hit_rate, 0.005);
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
