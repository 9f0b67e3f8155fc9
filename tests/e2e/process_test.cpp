#include <sys/socket.h>
#include <sys/un.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/file_descriptor.hpp"
#include "tests/e2e/support/event_listener.hpp"
#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"

// Starting and ending a server.
namespace cairn::e2e {
namespace {

using testing::HasSubstr;

struct Ended {
  std::optional<int> code;
  std::string out;
  std::string err;
};

class ProcessTest : public testing::Test {
 protected:
  // Runs a server that is expected to exit by itself.
  Ended run(std::vector<std::string> flags) {
    flags.insert(flags.begin(), CAIRN_SERVER_PROGRAM);
    ChildProcess child(flags);
    const auto code = child.wait();
    return {code, child.standard_output(), child.standard_error()};
  }
  std::string file(const std::string& name, const std::string& text) {
    const auto path = folder_.path() / name;
    std::ofstream(path) << text;
    return path.string();
  }
  // Flags of a server without the large cache named default.
  std::vector<std::string> small() { return {"--config", file("small.json", R"({"caches": []})")}; }
  std::string data() { return (folder_.path() / "data").string(); }

  fakes::TempDir folder_;
};

TEST_F(ProcessTest, PrintsItsFlags) {
  const Ended ended = run({"--help"});
  EXPECT_EQ(ended.code, 0);
  for (const char* flag : {"--listen", "--unix", "--data-dir", "--runtime", "--config", "--tokens",
                           "--tls-cert", "--tls-key"}) {
    EXPECT_THAT(ended.out, HasSubstr(flag));
  }
}

struct WrongFlags {
  std::vector<std::string> flags;
  std::string named;
};
class WrongFlagsTest : public ProcessTest, public testing::WithParamInterface<WrongFlags> {};
INSTANTIATE_TEST_SUITE_P(
    Flags, WrongFlagsTest,
    testing::Values(WrongFlags{{"--nonsense"}, "nonsense"}, WrongFlags{{"word"}, "positional"},
                    WrongFlags{{"--listen"}, "listen"}, WrongFlags{{"--listen", "here"}, "listen"},
                    WrongFlags{{"--listen", "127.0.0.1:99999"}, "listen"},
                    WrongFlags{{"--listen", "127.0.0.1:-1"}, "listen"},
                    WrongFlags{{"--listen", "no.such.host.invalid:0"}, "no.such.host.invalid"},
                    WrongFlags{{"--runtime", "tpu"}, "runtime"},
                    WrongFlags{{"--threads", "0"}, "threads"},
                    WrongFlags{{"--threads", "many"}, "threads"},
                    WrongFlags{{"--log-level", "loud"}, "log"},
                    WrongFlags{{"--config", "/nonexistent/file"}, "/nonexistent/file"},
                    WrongFlags{{"--data-dir", "/dev/null/x"}, "/dev/null/x"},
                    WrongFlags{{"--unix", "/nonexistent/folder/socket"}, "socket"}));

TEST_P(WrongFlagsTest, ExitsWith2AndTheReason) {
  std::vector<std::string> flags = {"--listen", "127.0.0.1:0", "--data-dir", data()};
  // A flag of the test replaces the usual one.
  const auto same = std::find(flags.begin(), flags.end(), GetParam().flags.front());
  if (same != flags.end()) flags.erase(same, same + 2);
  flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
  const Ended ended = run(flags);
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr(GetParam().named));
  EXPECT_EQ(ended.out, "");
}

struct WrongConfig {
  std::string text;
  std::string named;
};
class WrongConfigTest : public ProcessTest, public testing::WithParamInterface<WrongConfig> {};
INSTANTIATE_TEST_SUITE_P(
    Files, WrongConfigTest,
    testing::Values(
        WrongConfig{"{", "config"}, WrongConfig{"[]", "config"}, WrongConfig{"", "config"},
        WrongConfig{R"({"lissten": "127.0.0.1:0"})", "lissten"},
        WrongConfig{R"({"threads": 0})", "threads"}, WrongConfig{R"({"threads": "2"})", "threads"},
        WrongConfig{R"({"http": {"max_connections": -1}})", "http.max_connections"},
        WrongConfig{R"({"http": []})", "http"},
        WrongConfig{R"({"blocks": {"max_lease_ms": 1e99}})", "blocks.max_lease_ms"},
        WrongConfig{R"({"pressure": {"device": {"elevated": 2}}})", "pressure.device.elevated"},
        WrongConfig{R"({"pressure": {"device": {"reactions": {"hot": {"kind": "none"}}}}})", "hot"},
        WrongConfig{R"({"caches": [{"name": "a b"}]})", "name"},
        WrongConfig{R"({"caches": [{"name": "a", "tiers": {}}]})", "layout"}));

TEST_P(WrongConfigTest, ExitsWith2AndTheFieldsName) {
  const Ended ended = run({"--listen", "127.0.0.1:0", "--data-dir", data(), "--config",
                           file("config.json", GetParam().text)});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr(GetParam().named));
}

TEST_F(ProcessTest, CreatesTheCachesOfItsConfiguration) {
  json cache = cache_body({.pinned = 3});
  cache["name"] = "mine";
  const std::string config = file("config.json", json{{"caches", {cache}}}.dump());
  const ServerProcess server({.flags = {"--config", config}, .data_dir = data()});
  Rest rest(server.endpoint());
  EXPECT_THAT(rest.put_bytes("/v1/caches/mine/keys/00", block(1)), has_status(201));
  EXPECT_THAT(rest.get("/v1/caches/default"), is_problem(404));
}

TEST_F(ProcessTest, LocksItsDataDirectory) {
  const ServerProcess first({.flags = small(), .data_dir = data()});
  const Ended second = run({"--listen", "127.0.0.1:0", "--data-dir", data()});
  EXPECT_EQ(second.code, 1) << "the first server may end, so a retry makes sense";
  EXPECT_THAT(second.err, HasSubstr(data()));
  Rest rest(first.endpoint());
  EXPECT_THAT(rest.get("/readyz"), has_status(200));
}

TEST_F(ProcessTest, RefusesAPortInUse) {
  const ServerProcess first({.flags = small(), .data_dir = data()});
  const Ended second = run({"--listen", first.endpoint().authority(), "--data-dir",
                            (folder_.path() / "other").string()});
  EXPECT_EQ(second.code, 1) << "the first server may end, so a retry makes sense";
  EXPECT_THAT(second.err, HasSubstr(first.endpoint().port));
}

TEST_F(ProcessTest, ListensOnAUnixSocketToo) {
  const std::string socket = (folder_.path() / "cairn.sock").string();
  auto flags = small();
  flags.insert(flags.end(), {"--unix", socket});
  ServerProcess server({.flags = flags, .data_dir = data()});
  Rest by_tcp(server.endpoint());
  Rest by_unix(client::Endpoint::parse("unix:" + socket).value());
  TestCache cache(by_unix, {.device = 2, .disk = 2});
  cache.store(1);
  EXPECT_TRUE(by_tcp.get(cache.key_path(1)).body == block(1));
  EXPECT_EQ(std::filesystem::status(socket).permissions() & std::filesystem::perms::others_all,
            std::filesystem::perms::none);
  EXPECT_EQ(server.stop(), 0);
  EXPECT_FALSE(std::filesystem::exists(socket));
}

class StopTest : public ProcessTest, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, StopTest, testing::Values(SIGTERM, SIGINT));

TEST_P(StopTest, FinishesTheRequestInProgressAndExits) {
  ServerProcess server({.flags = small(), .data_dir = data()});
  Rest rest(server.endpoint());
  TestCache cache(rest, {.device = 2, .disk = 2});
  RawConnection slow(server.endpoint());
  slow.send(head_text("PUT", cache.key_path(1, "?tier=disk"),
                      {"Content-Type: application/octet-stream",
                       "Content-Length: " + std::to_string(kBlockBytes)}));
  slow.send(block(1).substr(0, 50));
  ASSERT_TRUE(eventually([&] { return cache.count("disk", "allocated") == 1; }));

  ::kill(server.pid(), GetParam());
  // A new request finds no server, or one that is draining.
  EXPECT_TRUE(eventually([&] {
    Rest late(server.endpoint());
    const Reply reply = late.get("/readyz");
    return reply.status == 0 || reply.status == 503;
  }));
  EXPECT_TRUE(server.running()) << "a request is still in progress";
  slow.send(block(1).substr(50));
  EXPECT_THAT(slow.receive(), has_status(201));
  EXPECT_EQ(server.wait(), 0);
}

TEST_F(ProcessTest, DrainTimeoutCutsSlowRequests) {
  auto flags = small();
  flags.insert(flags.end(), {"--drain-timeout-ms", "100"});
  ServerProcess server({.flags = flags, .data_dir = data()});
  Rest rest(server.endpoint());
  const TestCache cache(rest, {.device = 2});
  RawConnection stuck(server.endpoint());
  stuck.send(head_text("PUT", cache.key_path(1),
                       {"Content-Type: application/octet-stream",
                        "Content-Length: " + std::to_string(kBlockBytes)}));
  EXPECT_EQ(server.stop(), 0);
}

TEST_F(ProcessTest, ExitsWithTransfersAndLeasesInProgress) {
  ServerProcess server({.flags = small(), .data_dir = data()});
  Rest rest(server.endpoint());
  TestCache cache(rest, {.device = 32, .pinned = 32, .disk = 32});
  cache.store_prefix(0, 32, "device");
  cache.match(keys(0, 32), 600'000);
  EXPECT_TRUE(rest.post(cache.path("/transfers"), {{"keys", keys(0, 32)}, {"to", "disk"}}).ok());
  EXPECT_EQ(server.stop(), 0) << server.output();
}

// Two of four connections listen to events, which is the limit, and two wait. Only probes and
// scrapes get in.
TEST_F(ProcessTest, RefusesExcessConnectionsButAnswersProbes) {
  auto flags = small();
  flags.insert(flags.end(), {"--max-connections", "4"});
  const ServerProcess server({.flags = flags, .data_dir = data()});
  std::string waited_for;
  {
    const EventListener first(server.endpoint(), "");
    const EventListener second(server.endpoint(), "");
    {
      Rest rest(server.endpoint());
      ASSERT_THAT(rest.put("/v1/caches/c", cache_body({.pinned = 2})), has_status(201));
      const Reply group = rest.post("/v1/groups", {{"name", "g"}, {"rank", 0}, {"world_size", 2}});
      ASSERT_TRUE(group.ok()) << group.body;
      const Reply receiving =
          rest.post("/v1/groups/g/recv", {{"cache", "c"}, {"keys", {key(1)}}, {"peer", 1}});
      waited_for = receiving.document().at("transfer");
      EXPECT_THAT(rest.get("/v1/events"), is_problem(429)) << "half of the connections";
    }
    std::vector<std::unique_ptr<RawConnection>> waiting;
    for (int i = 0; i < 2; ++i) {
      waiting.push_back(std::make_unique<RawConnection>(server.endpoint()));
      waiting.back()->send(head_text("GET", "/v1/transfers/" + waited_for + "?wait_ms=60000", {}));
    }
    EXPECT_TRUE(eventually([&] {
      Rest more(server.endpoint());
      const Reply refused = more.get("/v1/caches");
      return refused.status == 503 && refused.header("Retry-After") == "1";
    }));
    for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
      Rest probe(server.endpoint());
      EXPECT_THAT(probe.get(path), has_status(200)) << path;
    }
  }
  // All of these connections are closed.
  EXPECT_TRUE(eventually([&] {
    Rest next(server.endpoint());
    return next.get("/v1/caches").status == 200;
  }));
}

// A load balancer sends requests until it learns that the server is draining.
TEST_F(ProcessTest, ServesWhileDraining) {
  auto flags = small();
  flags.insert(flags.end(), {"--drain-delay-ms", "3600000"});
  ServerProcess server({.flags = flags, .data_dir = data()});
  Rest rest(server.endpoint());
  TestCache cache(rest, {.device = 2});
  EXPECT_THAT(rest.get("/readyz"), has_status(200));
  ::kill(server.pid(), SIGTERM);
  EXPECT_TRUE(eventually([&] { return rest.get("/readyz").status == 503; }));
  EXPECT_THAT(rest.get("/readyz").document().at("detail"), HasSubstr("draining"));
  EXPECT_EQ(rest.get("/v1/system").document().at("state"), "draining");
  cache.store(1);
  Rest late(server.endpoint());
  EXPECT_THAT(late.get("/healthz"), has_status(200)) << "its sockets are still open";
  ::kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.wait(), 128 + SIGTERM) << "a second signal does not wait";
}

TEST_F(ProcessTest, ExitsAfterTheDrainDelay) {
  auto flags = small();
  flags.insert(flags.end(), {"--drain-delay-ms", "1"});
  ServerProcess server({.flags = flags, .data_dir = data()});
  EXPECT_EQ(server.stop(), 0) << server.output();
}

TEST_F(ProcessTest, ChecksItsSettingsAndTouchesNothing) {
  json cache = cache_body({.pinned = 3, .disk = 3});
  cache["name"] = "mine";
  const auto check = [this](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--check-config", "--data-dir", data()});
    return run(flags);
  };
  const Ended right = check({"--config", file("right.json", json{{"caches", {cache}}}.dump())});
  EXPECT_EQ(right.code, 0) << right.err;
  EXPECT_FALSE(std::filesystem::exists(data()));

  cache["layout"]["num_layers"] = 4'000'000'000;
  const std::string impossible = file("impossible.json", json{{"caches", {cache}}}.dump());
  for (const auto& [flags, named] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--config", impossible}, "mine"},
           {{"--tokens", "/nowhere/tokens"}, "/nowhere/tokens"},
           {{"--tls-cert", "/nowhere/c", "--tls-key", "/nowhere/k"}, "/nowhere/c"},
           {{"--listen", "0.0.0.0:7070"}, "loopback"},
           {{"--listen", "no.such.host.invalid:0"}, "no.such.host.invalid"},
           {{"--unix", "/nonexistent/folder/socket"}, "/nonexistent/folder"},
           {{"--unix-group", "no-such-group"}, "no-such-group"},
           {{"--unix-users", "0,no-such-user"}, "no-such-user"},
           {{"--allowed-hosts", "http://cairn"}, "http://cairn"},
           {{"--threads", "0"}, "threads"}}) {
    const Ended wrong = check(flags);
    EXPECT_EQ(wrong.code, 2) << named;
    EXPECT_THAT(wrong.err, HasSubstr(named));
  }
  EXPECT_EQ(run({"--check-config", "--data-dir", "/dev/null/x"}).code, 2);
  EXPECT_FALSE(std::filesystem::exists(data()));
}

// A service manager's socket, like systemd's.
class NotifySocket {
 public:
  explicit NotifySocket(const std::filesystem::path& path)
      : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const timeval timeout{.tv_sec = ChildProcess::kPatience.count(), .tv_usec = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  }
  // The next message; empty if none comes.
  std::string next() {
    char text[256];
    const ssize_t bytes = ::recv(fd_.get(), text, sizeof text, 0);
    return bytes < 0 ? "" : std::string(text, static_cast<std::size_t>(bytes));
  }

 private:
  FileDescriptor fd_;
};

TEST_F(ProcessTest, NotifiesItsServiceManager) {
  const std::string path = (folder_.path() / "notify").string();
  NotifySocket manager(path);
  ServerProcess server({.flags = small(),
                        .data_dir = data(),
                        .environment = {"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=400000"}});
  EXPECT_EQ(manager.next(), "READY=1");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(manager.next(), "WATCHDOG=1");
  ::kill(server.pid(), SIGTERM);
  std::string word = manager.next();
  while (word == "WATCHDOG=1") word = manager.next();
  EXPECT_EQ(word, "STOPPING=1");
  EXPECT_EQ(server.wait(), 0);
}

TEST_F(ProcessTest, IgnoresTheWatchdogOfAnotherProcess) {
  const std::string path = (folder_.path() / "notify").string();
  NotifySocket manager(path);
  ServerProcess server(
      {.flags = small(),
       .data_dir = data(),
       .environment = {"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=1000", "WATCHDOG_PID=1"}});
  EXPECT_EQ(manager.next(), "READY=1");
  EXPECT_EQ(server.stop(), 0);
  EXPECT_EQ(manager.next(), "STOPPING=1");
}

// The log has who changed which cache, from where, and the status.
TEST_F(ProcessTest, WritesAnAuditLog) {
  auto flags = small();
  const std::string socket = (folder_.path() / "cairn.sock").string();
  flags.insert(flags.end(), {"--unix", socket, "--log-level", "debug"});
  ServerProcess server({.flags = flags, .data_dir = data()});
  Rest rest(server.endpoint());
  Rest local(client::Endpoint::parse("unix:" + socket).value());
  const auto logged = [&server](const std::string& line) {
    return eventually(
        [&] { return testing::Value(server.output(), testing::ContainsRegex(line)); });
  };
  const std::string body = cache_body({.pinned = 2}).dump();
  rest.send(
      {.method = "PUT",
       .target = "/v1/caches/mine",
       .body = body,
       .content_type = "application/json",
       .headers = {{"traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}});
  EXPECT_TRUE(
      logged("level=info msg=audit who=anonymous from=127.0.0.1:[0-9]+ method=PUT "
             "path=/v1/caches/mine status=201 "
             "trace_id=4bf92f3577b34da6a3ce929d0e0e4736 parent_id=00f067aa0ba902b7"))
      << server.output();
  EXPECT_TRUE(logged("msg=request method=PUT .*trace_id=4bf92f3577b34da6a3ce929d0e0e4736"));
  local.del("/v1/caches/nowhere");
  EXPECT_TRUE(logged("msg=audit who=uid:" + std::to_string(::getuid()) +
                     " from=unix method=DELETE path=/v1/caches/nowhere status=404"))
      << server.output();
  rest.send(
      {.method = "POST",
       .target = "/v1/caches/mine/clear",
       .headers = {{"Origin", "http://evil.example"}, {"traceparent", "forged level=error"}}});
  EXPECT_TRUE(logged("msg=audit .*method=POST path=/v1/caches/mine/clear status=403"));
  EXPECT_THAT(server.output(), testing::Not(HasSubstr("forged")));
}

// A shell script that sets the limit of open files and becomes the server.
class FileLimitTest : public ProcessTest {
 protected:
  std::string server_with(const std::string& limits) {
    const std::string path =
        file("limited.sh", "#!/bin/sh\n" + limits + "\nexec " + CAIRN_SERVER_PROGRAM + " \"$@\"\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
};

TEST_F(FileLimitTest, IdleConnectionsDoNotTakeTheLastOpenFile) {
  constexpr int kFiles = 256;
  auto flags = small();
  flags.insert(flags.end(), {"--runtime", "host"});
  const ServerProcess server({.flags = flags,
                              .data_dir = data(),
                              .program = server_with("ulimit -n " + std::to_string(kFiles))});
  // The warning may be read a moment later than the line with the address.
  const auto is_logged = [&] {
    return server.output().find("the limit of open files is low") != std::string::npos;
  };
  EXPECT_TRUE(eventually(is_logged)) << server.output();
  Rest first(server.endpoint());
  EXPECT_THAT(first.get("/healthz"), has_status(200));
  std::vector<std::unique_ptr<RawConnection>> idle;
  for (int i = 1; i < kFiles / 2; ++i) {
    idle.push_back(std::make_unique<RawConnection>(server.endpoint()));
  }
  Rest more(server.endpoint());
  EXPECT_THAT(more.get("/v1/caches"), has_status(200)) << "an idle connection gives way";
  EXPECT_THAT(first.put("/v1/caches/late", cache_body({.pinned = 2, .disk = 2})), has_status(201));
}

TEST_F(FileLimitTest, RaisesTheSoftLimit) {
  const ServerProcess server({.flags = small(),
                              .data_dir = data(),
                              .program = server_with("ulimit -S -n 64\nulimit -H -n 600")});
  std::ifstream limits("/proc/" + std::to_string(server.pid()) + "/limits");
  std::string line;
  while (std::getline(limits, line) && !line.starts_with("Max open files")) {
  }
  EXPECT_THAT(line, testing::ContainsRegex("Max open files +600 +600"));
}

}  // namespace
}  // namespace cairn::e2e
