#include "server/config/settings.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "server/config/command_line.hpp"
#include "server/config/data_dir.hpp"
#include "server/config/setting_list.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using Words = std::vector<const char*>;

Result<std::variant<Settings, PrintAndExit, HashToken, CheckConfig>> run(
    Words args, const Words& environment = {}) {
  args.insert(args.begin(), "cairn-server");
  return read_command_line({.arguments = args, .environment = environment});
}

Settings settings_of(Words args, const Words& environment = {}) {
  auto read = run(std::move(args), environment);
  if (!read) throw std::runtime_error(read.error().detail);
  return std::get<Settings>(*read);
}

std::string refusal_of(Words args, const Words& environment = {}) {
  const auto read = run(std::move(args), environment);
  return read ? "taken" : read.error().detail;
}

TEST(CommandLine, WithoutFlagsServesTheDefaultCache) {
  const Settings settings = settings_of({});
  EXPECT_EQ(settings.listen.host, "127.0.0.1");
  EXPECT_EQ(settings.listen.port, 7070);
  EXPECT_EQ(settings.runtime, RuntimeChoice::automatic);
  EXPECT_EQ(settings.blocks.data_dir, settings.data_dir);
  ASSERT_EQ(settings.caches.size(), 1u);
  EXPECT_EQ(settings.caches[0].name, "default");
  EXPECT_EQ(block_bytes(settings.caches[0].shape), 2u << 20);
  EXPECT_EQ(settings.caches[0].tiers[index_of(Tier::device)]->num_blocks, 64u);
  EXPECT_EQ(settings.caches[0].tiers[index_of(Tier::pinned)]->num_blocks, 256u);
  EXPECT_EQ(settings.caches[0].tiers[index_of(Tier::disk)]->num_blocks, 1024u);
}

TEST(CommandLine, FlagsSetTheirFields) {
  const Settings settings = settings_of({"--listen", "[::1]:0", "--unix", "/tmp/s", "--data-dir=d",
                                         "--runtime", "host", "--threads", "3", "--log-level",
                                         "debug", "--log-format", "json", "--max-lease-ms", "5"});
  EXPECT_EQ(settings.listen.host, "::1");
  EXPECT_EQ(settings.listen.port, 0);
  EXPECT_EQ(settings.listen.unix_path, "/tmp/s");
  EXPECT_EQ(settings.data_dir, "d");
  EXPECT_EQ(settings.runtime, RuntimeChoice::host);
  EXPECT_EQ(settings.http.threads, 3u);
  EXPECT_EQ(settings.log_level, LogLevel::debug);
  EXPECT_EQ(settings.log_format, LogFormat::json_lines);
  EXPECT_EQ(settings.blocks.max_lease_ms, 5u);
}

TEST(CommandLine, SizesAndDurationsMayHaveUnits) {
  const Settings settings = settings_of(
      {"--max-body-bytes", "16MiB", "--max-lease-ms", "1.5h", "--least-rate-bytes-per-s", "1MB/s"});
  EXPECT_EQ(settings.api.max_body_bytes, 16u << 20);
  EXPECT_EQ(settings.blocks.max_lease_ms, 5'400'000u);
  EXPECT_EQ(settings.http.least_rate_bytes_per_s, 1'000'000u);
}

TEST(CommandLine, WrongUnitsAreNamed) {
  EXPECT_THAT(refusal_of({"--max-body-bytes", "16XB"}),
              HasSubstr("--max-body-bytes: http.max_body_bytes is '16XB'; it takes a number, or "
                        "one with a unit, as in 16GiB"));
  EXPECT_THAT(refusal_of({"--max-lease-ms", "5MiB"}), HasSubstr("as in 10s"));
  EXPECT_THAT(refusal_of({"--max-body-bytes", "1TiB"}),
              HasSubstr("is 1099511627776; it takes 1024 to"));
  EXPECT_THAT(refusal_of({"--max-leases", "1KiB"}), HasSubstr("it takes an integer"));
}

TEST(ReadSettings, SizesOfCachesMayHaveUnits) {
  const auto settings = read_settings(R"({"drain_delay_ms": "2s", "caches": [{"name": "one",
      "layout": {"num_layers": 1, "outer_dim": 1, "page_size": 1, "inner_dim": 512,
                 "dtype_width_bytes": 2},
      "tiers": {"pinned": {"size_bytes": "1MiB"}}, "default_lease_ms": "10s"}]})");
  ASSERT_TRUE(settings) << settings.error().detail;
  EXPECT_EQ(settings->drain_delay_ms, 2000u);
  EXPECT_EQ(settings->caches.at(0).default_lease_ms, 10'000u);
  // Blocks of 1 KiB at multiples of 4 KiB.
  EXPECT_EQ(settings->caches.at(0).tiers[index_of(Tier::pinned)]->num_blocks, 256u);
}

TEST(CommandLine, WrongFlagsAreNamed) {
  EXPECT_THAT(refusal_of({"--colour"}), HasSubstr("--colour"));
  EXPECT_THAT(refusal_of({"--thread", "1"}), HasSubstr("--thread"));
  EXPECT_THAT(refusal_of({"stray"}), Not(HasSubstr("taken")));
  EXPECT_THAT(refusal_of({"--threads"}), HasSubstr("--threads"));
  EXPECT_THAT(refusal_of({"--threads", "0"}), HasSubstr("--threads: threads is 0"));
  EXPECT_THAT(refusal_of({"--threads", "-1"}), HasSubstr("--threads: threads is -1"));
  EXPECT_THAT(refusal_of({"--threads", "many"}), HasSubstr("--threads: threads is a string"));
  EXPECT_THAT(refusal_of({"--threads", "1.5"}), HasSubstr("--threads"));
  EXPECT_THAT(refusal_of({"--max-connections", "0"}), HasSubstr("--max-connections"));
  EXPECT_THAT(refusal_of({"--runtime", "rocm"}), HasSubstr("--runtime: runtime is 'rocm'"));
  EXPECT_THAT(refusal_of({"--listen", "7070"}), HasSubstr("--listen: listen is '7070'"));
  EXPECT_THAT(refusal_of({"--listen", "localhost:70000"}), HasSubstr("--listen"));
  EXPECT_THAT(refusal_of({"--listen", "::1:7070"}), HasSubstr("--listen"));
  EXPECT_THAT(refusal_of({"--data-dir", ""}), HasSubstr("data"));
  EXPECT_THAT(refusal_of({"--config", "/nowhere/c.json"}), HasSubstr("/nowhere/c.json"));
}

TEST(CommandLine, AnonymousServersStayOnLoopbackUnlessAllowed) {
  for (const char* listen : {"0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.org:0"}) {
    EXPECT_THAT(refusal_of({"--listen", listen}), HasSubstr("--allow-anonymous")) << listen;
    EXPECT_EQ(refusal_of({"--listen", listen, "--allow-anonymous"}), "taken") << listen;
    EXPECT_EQ(refusal_of({"--listen", listen, "--tokens", "file"}), "taken") << listen;
  }
  for (const char* listen : {"127.0.0.1:0", "127.8.9.1:0", "[::1]:0", "localhost:0"}) {
    EXPECT_EQ(refusal_of({"--listen", listen}), "taken") << listen;
  }
}

TEST(CommandLine, TlsNeedsBothCertificateAndKey) {
  EXPECT_THAT(refusal_of({"--tls-cert", "c"}), HasSubstr("tls_key"));
  EXPECT_THAT(refusal_of({"--tls-key", "k"}), HasSubstr("tls_cert"));
  EXPECT_THAT(refusal_of({"--tls-client-ca", "a"}), HasSubstr("tls_cert"));
  const Settings settings = settings_of({"--tls-cert", "c", "--tls-key", "k"});
  EXPECT_EQ(settings.tls.certificate, "c");
  EXPECT_EQ(settings.tls.key, "k");
}

TEST(CommandLine, HelpListsTheFlags) {
  const auto read = run({"--help"});
  ASSERT_TRUE(read);
  const std::string text = std::get<PrintAndExit>(*read).text;
  for (const char* flag : {"--listen", "--unix", "--data-dir", "--runtime", "--config", "--threads",
                           "--log-level", "--tokens", "--tls-cert", "--tls-key", "--version"}) {
    EXPECT_THAT(text, HasSubstr(flag));
  }
}

json listed_settings() {
  const auto read = run({"--list-settings"});
  return json::parse(std::get<PrintAndExit>(*read).text);
}

TEST(ListSettings, ListsEveryFieldOnce) {
  const json list = listed_settings();
  for (const FieldNote& note : setting_notes()) {
    int listed = 0;
    for (const json& row : list) {
      if (stands_for(row.at("field").get<std::string>(), note.path)) ++listed;
    }
    EXPECT_EQ(listed, 1) << note.path;
  }
}

TEST(ListSettings, ShowsTheReadersDefaults) {
  for (const json& row : listed_settings()) {
    const auto field = row.at("field").get<std::string>();
    const auto notes = setting_notes();
    const auto note = std::ranges::find(notes, field, &FieldNote::path);
    if (note == notes.end() || !note->standard) continue;
    EXPECT_THAT(row.at("help").get<std::string>(),
                HasSubstr("(default " + std::to_string(*note->standard) + ")"))
        << field;
  }
}

TEST(ListSettings, ShowsTheValuesOfASetting) {
  const json list = listed_settings();
  const auto takes = [&](const char* field) -> std::string {
    for (const json& row : list) {
      if (row.at("field") == field) return row.at("takes");
    }
    return "";
  };
  EXPECT_EQ(takes("threads"), "1 to 256");
  EXPECT_EQ(takes("runtime"), "auto, host, cuda");
  EXPECT_EQ(takes("disk.direct"), "true or false");
  EXPECT_EQ(takes("pressure.TIER.elevated"), "a share of 0 to 1");
}

TEST(ListSettings, AWordInCapitalsStandsForAnyName) {
  EXPECT_TRUE(stands_for("a.TIER.b", "a.disk.b"));
  EXPECT_FALSE(stands_for("a.TIER.b", "a.pools.b"));
  EXPECT_FALSE(stands_for("a.TIER.b", "a.disk"));
  EXPECT_FALSE(stands_for("a.TIER", "a.disk.b"));
  EXPECT_FALSE(stands_for("a.b", "a.c"));
}

TEST(Environment, SetsTheSameFieldsAsFlags) {
  const Settings settings = settings_of({}, {"PATH=/bin", "CAIRN_LISTEN=[::1]:0", "CAIRN_THREADS=3",
                                             "CAIRN_MAX_LEASE_MS=5", "CAIRN_DATA_DIR=a=b"});
  EXPECT_EQ(settings.listen.host, "::1");
  EXPECT_EQ(settings.http.threads, 3u);
  EXPECT_EQ(settings.blocks.max_lease_ms, 5u);
  EXPECT_EQ(settings.data_dir, "a=b");
}

TEST(Environment, FlagsOverrideIt) {
  EXPECT_EQ(settings_of({"--threads", "4"}, {"CAIRN_THREADS=3"}).http.threads, 4u);
}

TEST(Environment, RefusalNamesTheVariable) {
  EXPECT_THAT(refusal_of({}, {"CAIRN_THREADS=0"}), StartsWith("CAIRN_THREADS: threads is 0"));
  EXPECT_THAT(refusal_of({}, {"CAIRN_CONFIG=/nowhere/c.json"}),
              StartsWith("CAIRN_CONFIG: '/nowhere/c.json'"));
}

TEST(Environment, IgnoresEmptyAndForeignVariables) {
  const Settings settings = settings_of(
      {}, {"CAIRN_THREADS=", "CAIRN_PORT=tcp://10.0.0.1:80", "CAIRN_TOKEN=9", "THREADS=9"});
  EXPECT_EQ(settings.http.threads, 1u);
}

TEST(Environment, RefusesMistypedVariables) {
  EXPECT_THAT(refusal_of({}, {"CAIRN_THREADS_X=9"}), StartsWith("CAIRN_THREADS_X: "));
  EXPECT_THAT(refusal_of({}, {"CAIRN_THREAD=9"}), StartsWith("CAIRN_THREAD: "));
}

class ConfigFile : public ::testing::Test {
 protected:
  std::string write(std::string_view text) {
    const auto path = dir_.path() / "config.json";
    std::ofstream(path) << text;
    return path.string();
  }
  fakes::TempDir dir_;
};

TEST_F(ConfigFile, FlagsOverrideIt) {
  const std::string path = write(R"({"threads": 2, "http": {"max_connections": 9}, "caches": []})");
  const Settings settings = settings_of({"--config", path.c_str(), "--threads", "4"});
  EXPECT_EQ(settings.http.threads, 4u);
  EXPECT_EQ(settings.http.max_connections, 9u);
  EXPECT_TRUE(settings.caches.empty());
}

TEST_F(ConfigFile, EnvironmentOverridesIt) {
  const std::string variable =
      "CAIRN_CONFIG=" + write(R"({"threads": 2, "http": {"max_connections": 9}})");
  const Settings settings = settings_of({}, {variable.c_str(), "CAIRN_THREADS=4"});
  EXPECT_EQ(settings.http.threads, 4u);
  EXPECT_EQ(settings.http.max_connections, 9u);
}

TEST_F(ConfigFile, RefusalNamesTheFile) {
  const std::string path = write(R"({"threads": "2"})");
  const std::string refusal = refusal_of({"--config", path.c_str()});
  EXPECT_THAT(refusal, HasSubstr(path));
  EXPECT_THAT(refusal, HasSubstr("threads"));
}

TEST_F(ConfigFile, PeerTokenIsTheTrimmedFirstLineOfItsFile) {
  const std::string path = write(
      json{{"shared", {{"peer", {{"token_file", (dir_.path() / "token").string()}}}}}}.dump());
  const auto holds = [this](std::string_view text) {
    std::ofstream(dir_.path() / "token") << text;
  };
  holds(" peer-peer-peer-peer\t\r\nsecond\n");
  EXPECT_EQ(settings_of({"--config", path.c_str()}).peers.token, "peer-peer-peer-peer");
  holds("peer-peer secret\n");
  const std::string refusal = refusal_of({"--config", path.c_str()});
  EXPECT_THAT(refusal, HasSubstr("shared.peer.token_file has white space"));
  EXPECT_THAT(refusal, Not(HasSubstr("secret")));
}

TEST_F(ConfigFile, MustBeAJsonObject) {
  EXPECT_THAT(refusal_of({"--config", write("{").c_str()}), HasSubstr("byte"));
  EXPECT_THAT(refusal_of({"--config", write("[]").c_str()}), HasSubstr("no object"));
  EXPECT_THAT(refusal_of({"--config", write(R"({"http": 3})").c_str(), "--max-connections", "1"}),
              HasSubstr("http"));
}

// Regression: if a flag's section, or a section around it, was no object in the file, the JSON
// library threw and the server ended.
TEST_F(ConfigFile, RefusalNamesASectionThatIsNoObject) {
  int tried = 0;
  for (const json& row : listed_settings()) {
    const auto field = row.at("field").get<std::string>();
    const auto name = row.value("flag", "");
    if (name.empty()) continue;
    const std::string flag = "--" + name + "=1";
    for (auto end = field.find('.'); end != std::string::npos; end = field.find('.', end + 1)) {
      const std::string section = field.substr(0, end);
      std::string pointer = "/" + section;
      std::ranges::replace(pointer, '.', '/');
      for (const json& wrong : {json(3), json("x"), json(true), json(nullptr), json::array({1})}) {
        json document = json::object();
        document[json::json_pointer(pointer)] = wrong;
        const std::string path = write(document.dump());
        EXPECT_THAT(refusal_of({"--config", path.c_str(), flag.c_str()}),
                    HasSubstr(path + "': " + section + " is"))
            << flag << " into " << document.dump();
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 100);
}

TEST(Settings, ReadsPressureAndCaches) {
  const auto settings = read_settings(R"({
      "pressure": {"pinned": {"elevated": 0.5, "reactions": {
          "critical": {"kind": "shrink", "target_use": 0.7}, "warning": {"kind": "callback"},
          "normal": {"kind": "shrink", "target_use": 0.5}}},
          "pools": {"warning": 0.85, "reactions": {"normal": {"kind": "shrink"}}}},
      "caches": [{"name": "a", "layout": {"num_layers": 1, "outer_dim": 1, "page_size": 1,
          "inner_dim": 1, "dtype_width_bytes": 1}, "tiers": {"pinned": {"num_blocks": 1}}}]})");
  ASSERT_TRUE(settings) << settings.error().detail;
  const PressureConfig& pinned = settings->blocks.pressure[index_of(Tier::pinned)];
  EXPECT_EQ(pinned.elevated, 0.5);
  EXPECT_EQ(pinned.warning, PressureConfig().warning);
  const auto& critical = pinned.reactions[static_cast<std::size_t>(PressureLevel::critical)];
  EXPECT_EQ(critical.kind, PressureReaction::Kind::shrink);
  EXPECT_EQ(critical.target_use, 0.7);
  EXPECT_EQ(pinned.reactions[0].target_use, 0.5);
  EXPECT_EQ(settings->pool_pressure.warning, 0.85);
  EXPECT_EQ(settings->pool_pressure.reactions[0].kind, PressureReaction::Kind::shrink);
  ASSERT_EQ(settings->caches.size(), 1u);
  EXPECT_EQ(settings->caches[0].name, "a");
}

TEST(Settings, ReadsTheRestoreList) {
  const auto settings = read_settings(R"({"restore": ["c=s", "c=./f", "/a=b/f"]})");
  ASSERT_TRUE(settings) << settings.error().detail;
  ASSERT_EQ(settings->restore.size(), 3u);
  EXPECT_EQ(settings->restore[0].cache, "c");
  EXPECT_EQ(settings->restore[0].name, "s");
  EXPECT_EQ(settings->restore[1].cache, "c");
  EXPECT_EQ(settings->restore[1].file, "./f");
  EXPECT_EQ(settings->restore[2].cache, "");
  EXPECT_EQ(settings->restore[2].file, "/a=b/f");
  for (const char* wrong : {R"({"restore": ["s"]})", R"({"restore": ["c="]})",
                            R"({"restore": [""]})", R"({"restore": [1]})"}) {
    const auto refused = read_settings(wrong);
    ASSERT_FALSE(refused) << wrong;
    EXPECT_NE(refused.error().detail.find("restore[0] "), std::string::npos) << wrong;
  }
}

TEST(Settings, ReadsTheCopyFormsOfCalibration) {
  const auto settings = read_settings(R"({"transfers": {"copy_forms": {
      "store": {"batch_least_pieces": 2, "kernel_least_pieces": 9, "kernel_most_piece_bytes": 77,
                "rows_least_rows": 5}}}})");
  ASSERT_TRUE(settings.has_value()) << settings.error().detail;
  const CopyThresholds& forms = settings->transfers.copy_forms;
  EXPECT_EQ(forms.store, (FormThresholds{2, 9, 77, 5}));
  EXPECT_EQ(forms.load, CopyThresholds{}.load);
  EXPECT_EQ(forms.device, CopyThresholds{}.device);
}

TEST(Settings, ReadsTheUnixUsersOfPeers) {
  const auto settings = read_settings(
      R"({"shared": {"url": "redis://a", "peer": {"unix_users": ["root", "4711"], "ca": "/ca"}}})");
  ASSERT_TRUE(settings) << settings.error().detail;
  EXPECT_EQ(settings->peers.unix_users, (std::vector<uid_t>{0, 4711}));
  EXPECT_TRUE(settings->peers.needs_tls);
  EXPECT_EQ(read_settings("{}")->peers.unix_users, std::vector<uid_t>());
}

TEST(Settings, WrongFieldsAreNamed) {
  struct Wrong {
    const char* text;
    const char* names;
  };
  constexpr Wrong kTable[] = {
      {R"({"colour": 1})", "colour"},
      {R"({"http": {"max_connection": 1}})", "http.max_connection "},
      {R"({"http": []})", "http is"},
      {R"({"blocks": {"max_leases": 0}})", "blocks.max_leases is 0"},
      {R"({"blocks": {"max_lease_ms": 4294967296}})", "blocks.max_lease_ms"},
      {R"({"disk": {"engine": "tape"}})", "disk.engine is 'tape'"},
      {R"({"disk": {"depth": 0}})", "disk.depth is 0"},
      {R"({"disk": {"piece_bytes": 5000}})", "disk.piece_bytes is 5000, not a multiple"},
      {R"({"disk": {"folders": ["a", 1]}})", "disk.folders"},
      {R"({"disk": {"folders": ""}})", "disk.folders"},
      {R"({"disk": {"direct": 1}})", "disk.direct"},
      {R"({"disk": {"checksums": "yes"}})", "disk.checksums"},
      {R"({"disk": {"admission": "never"}})", "disk.admission is 'never'"},
      {R"({"disk": {"write_bytes_per_s": -1}})", "disk.write_bytes_per_s"},
      {R"({"disk": {"scrub_bytes_per_s": "fast"}})", "disk.scrub_bytes_per_s"},
      {R"({"disk": {"checkpoint_period_ms": 86400001}})", "disk.checkpoint_period_ms"},
      {R"({"disk": {"register_buffers": 1}})", "disk.register_buffers"},
      {R"({"disk": {"crash_at": 3}})", "disk.crash_at"},
      {R"({"transfers": {"workers": 65}})", "transfers.workers is 65"},
      {R"({"transfers": {"strategy": {"load": "stream"}}})", "transfers.strategy.load"},
      {R"({"transfers": {"strategy": {"down": "auto"}}})", "transfers.strategy.down"},
      {R"({"transfers": {"copy_forms": {"load": {"rows": 1}}}})", "transfers.copy_forms.load.rows"},
      {R"({"host": {"devices": 0}})", "host.devices"},
      {R"({"shared": {"peer": {"unix_users": "root"}}})", "shared.peer.unix_users"},
      {R"({"shared": {"peer": {"unix_users": [1]}}})", "shared.peer.unix_users"},
      {R"({"shared": {"peer": {"unix_users": ["no such user"]}}})", "shared.peer.unix_users"},
      {R"({"events": {"zmq": {"shared": "far"}}})", "events.zmq.shared is 'far'"},
      {R"({"events": {"zmq": {"hashes": "sha"}}})", "events.zmq.hashes is 'sha'"},
      {R"({"log_level": "loud"})", "log_level is 'loud'"},
      {R"({"log_format": "xml"})", "log_format is 'xml'"},
      {R"({"pressure": {"tape": {}}})", "pressure.tape"},
      {R"({"pressure": {"disk": {"elevated": 1.5}}})", "pressure.disk.elevated"},
      {R"({"pressure": {"disk": {"elevated": 0.95}}})", "pressure.disk.elevated"},
      {R"({"pressure": {"disk": {"reactions": {"mild": {}}}}})", "pressure.disk.reactions.mild"},
      {R"({"pressure": {"pools": {"reactions": {"normal": {"kind": "shrink", "target_use": 1}}}}})",
       "pressure.pools.reactions.normal.target_use"},
      {R"({"pressure": {"disk": {"reactions": {"warning": {"kind": "shrink"}}}}})",
       "pressure.disk.reactions.warning.target_use"},
      {R"({"caches": [{}]})", "caches[0].name"},
      {R"({"caches": [{"name": "a/b", "layout": {}, "tiers": {}}]})", "caches[0].name"},
      {R"({"caches": [{"name": "a", "layout": {"num_layers": 1}, "tiers": {}}]})",
       "caches[0].layout.outer_dim"},
  };
  for (const Wrong& wrong : kTable) {
    SCOPED_TRACE(wrong.text);
    const auto settings = read_settings(wrong.text);
    ASSERT_FALSE(settings);
    EXPECT_THAT(settings.error().detail, HasSubstr(wrong.names));
  }
}

TEST(DiskSettings, ReadsEveryField) {
  const auto read = read_settings(R"({"disk": {
      "engine": "threads", "depth": 32, "piece_bytes": 65536, "folders": ["/a", "/b"],
      "direct": false, "checksums": false, "replace_other_shape": true,
      "checkpoint_period_ms": 7, "admission": "second_use", "write_bytes_per_s": 11,
      "scrub_bytes_per_s": 13, "offload_at_stop": true, "register_buffers": false,
      "crash_at": "commit.noted:2"}})");
  ASSERT_TRUE(read) << read.error().detail;
  EXPECT_EQ(read->disk_engine, DiskEngine::threads);
  EXPECT_EQ(read->uring.depth, 32u);
  EXPECT_EQ(read->uring.piece_bytes, 65536u);
  EXPECT_FALSE(read->uring.register_buffers);
  const DiskOptions& disk = read->blocks.disk;
  EXPECT_THAT(disk.folders, ::testing::ElementsAre("/a", "/b"));
  EXPECT_FALSE(disk.direct);
  EXPECT_FALSE(disk.checksums);
  EXPECT_TRUE(disk.replace_other_shape);
  EXPECT_EQ(disk.checkpoint_period_ms, 7u);
  EXPECT_EQ(disk.admission, DiskAdmission::second_use);
  EXPECT_EQ(disk.write_bytes_per_s, 11u);
  EXPECT_EQ(disk.scrub_bytes_per_s, 13u);
  EXPECT_TRUE(read->offload_at_stop);
  EXPECT_EQ(read->crash_at, "commit.noted:2");
}

TEST(DiskSettings, ReadsFlagsAndDefaults) {
  const Settings defaults = settings_of({});
  EXPECT_EQ(defaults.disk_engine, DiskEngine::automatic);
  EXPECT_TRUE(defaults.uring.register_buffers);
  EXPECT_TRUE(defaults.blocks.disk.direct);
  EXPECT_TRUE(defaults.blocks.disk.checksums);
  EXPECT_EQ(defaults.blocks.disk.checkpoint_period_ms, 30'000u);
  EXPECT_EQ(defaults.blocks.disk.scrub_bytes_per_s, 0u);
  EXPECT_FALSE(defaults.offload_at_stop);
  const Settings given = settings_of({"--disk-engine", "io_uring", "--disk-admission", "second_use",
                                      "--disk-write-bytes-per-s", "5", "--disk-scrub-bytes-per-s",
                                      "6", "--disk-checkpoint-ms", "7"});
  EXPECT_EQ(given.disk_engine, DiskEngine::io_uring);
  EXPECT_EQ(given.blocks.disk.admission, DiskAdmission::second_use);
  EXPECT_EQ(given.blocks.disk.write_bytes_per_s, 5u);
  EXPECT_EQ(given.blocks.disk.scrub_bytes_per_s, 6u);
  EXPECT_EQ(given.blocks.disk.checkpoint_period_ms, 7u);
}

class DataDirectory : public ::testing::Test {
 protected:
  Result<DataDir> open(const std::filesystem::path& path) {
    return DataDir::open({.path = path}, log_);
  }
  const SystemClock clock_;
  Logger log_{clock_, STDERR_FILENO, LogLevel::error};
  fakes::TempDir temp_;
};

TEST_F(DataDirectory, IsMadeAndHeldByOneServer) {
  const auto path = temp_.path() / "a" / "b";
  {
    const auto first = open(path);
    ASSERT_TRUE(first) << first.error().detail;
    EXPECT_TRUE(std::filesystem::is_directory(path));
    // Also if its lock file was removed.
    for (const char* removed : {"none", "lock"}) {
      std::filesystem::remove(path / removed);
      const auto second = open(path);
      ASSERT_FALSE(second) << removed;
      EXPECT_EQ(second.error().code, ErrorCode::unavailable);
      EXPECT_THAT(second.error().detail, HasSubstr(path.string()));
    }
  }
  EXPECT_TRUE(open(path));
}

TEST_F(DataDirectory, RefusalNamesADirectoryThatCannotBeMade) {
  std::ofstream(temp_.path() / "file") << "x";
  const auto opened = open(temp_.path() / "file" / "d");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::impossible);
  EXPECT_THAT(opened.error().detail, HasSubstr("file/d"));
}

}  // namespace
}  // namespace cairn
