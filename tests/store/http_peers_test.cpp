// Reads from other servers over HTTP. The other servers send scripted responses.
#include "transport/store/http_peers.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <fstream>
#include <future>
#include <numeric>
#include <thread>

#include "tests/fakes/temp_dir.hpp"
#include "tests/store/scripted_store.hpp"

namespace cairn::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;
using Answer = ScriptedServer::Answer;

const std::string kBody = R"({"keys":["aa"]})";

class PeerClient {
 public:
  explicit PeerClient(PeerSettings settings = {.connections = 1, .timeout_ms = 30'000})
      : peers_(make_http_peers(std::move(settings)).value()) {}

  // Returns how many parts came. Without `part_bytes`, `into` is a single part.
  Result<std::size_t> read(const std::string& server, std::string& into,
                           std::size_t part_bytes = 0) {
    auto promise = std::make_shared<std::promise<Result<std::size_t>>>();
    auto future = promise->get_future();
    const std::size_t half = into.size() / 2;
    peers_->read({.server = server,
                  .target = "/read?shared=a",
                  .body = kBody,
                  .into = {{into.data(), half}, {into.data() + half, into.size() - half}},
                  .part_bytes = part_bytes > 0 ? part_bytes : into.size()},
                 [promise](Result<std::size_t> result) { promise->set_value(std::move(result)); });
    return future.get();
  }
  BlockPeers::Stats stats() const { return peers_->stats(); }

 private:
  std::unique_ptr<BlockPeers> peers_;
};

std::string bytes_of_size(std::size_t size) {
  std::string bytes(size, '\0');
  std::iota(bytes.begin(), bytes.end(), '\1');
  return bytes;
}

TEST(HttpPeers, ReadsABlockIntoItsPlaceAndKeepsTheConnection) {
  for (const std::size_t size : {2u, 1'000u, 16'300u, 3'000'001u}) {
    const std::string bytes = bytes_of_size(size);
    ScriptedServer server(
        [&](int, const std::string&) { return Answer{ScriptedServer::ok(bytes)}; });
    PeerClient client;
    for (int i = 0; i < 3; ++i) {
      std::string back(size, '\0');
      EXPECT_EQ(client.read(server.url(), back).value(), 1U);
      EXPECT_TRUE(back == bytes) << size;
    }
    EXPECT_EQ(server.connections(), 1);
  }
}

TEST(HttpPeers, RequestNamesTargetHostAndToken) {
  std::string head;
  ScriptedServer server([&](int, const std::string& asked) {
    head = asked;
    return Answer{ScriptedServer::ok("ab")};
  });
  PeerClient client({.token = "sesame", .connections = 1});
  std::string back(2, '\0');
  EXPECT_EQ(client.read(server.url(), back).value(), 1U);
  EXPECT_THAT(head, HasSubstr("POST /read?shared=a HTTP/1.1\r\n"));
  EXPECT_THAT(head, HasSubstr("Host: " + server.url().substr(7)));
  EXPECT_THAT(head, HasSubstr("Authorization: Bearer sesame"));
  EXPECT_THAT(head, HasSubstr("Content-Length: " + std::to_string(kBody.size())));
}

TEST(HttpPeers, NotFoundIsZeroPartsAndKeepsTheConnection) {
  ScriptedServer server([&](int number, const std::string&) {
    if (number == 0) return Answer{ScriptedServer::with_status("404 Not Found", "{\"code\": 1}")};
    return Answer{ScriptedServer::ok("ab")};
  });
  PeerClient client;
  std::string back(2, '\0');
  EXPECT_EQ(client.read(server.url(), back).value(), 0U);
  EXPECT_EQ(client.read(server.url(), back).value(), 1U);
  EXPECT_EQ(back, "ab");
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpPeers, ReadsTheLeadingPartsThatExist) {
  const std::string bytes = bytes_of_size(40'000);
  for (const std::size_t there : {0u, 1u, 3u, 4u}) {
    ScriptedServer server([&](int, const std::string&) {
      return Answer{ScriptedServer::ok(bytes.substr(0, there * 10'000))};
    });
    PeerClient client;
    for (int i = 0; i < 2; ++i) {
      std::string back(40'000, '.');
      EXPECT_EQ(client.read(server.url(), back, 10'000).value(), there);
      EXPECT_EQ(back, bytes.substr(0, there * 10'000) + std::string((4 - there) * 10'000, '.'));
    }
    EXPECT_EQ(server.connections(), 1);
    EXPECT_EQ(client.stats().reads.bytes, 2 * there * 10'000);
  }
}

TEST(HttpPeers, ReportsAWrongLengthAndWritesNothing) {
  ScriptedServer server([&](int number, const std::string&) {
    return Answer{ScriptedServer::ok(number == 0 ? "abc" : number == 1 ? "a" : "xy")};
  });
  PeerClient client;
  for (int i = 0; i < 2; ++i) {
    std::string back(2, '.');
    EXPECT_EQ(client.read(server.url(), back).error().code, ErrorCode::wrong_length);
    EXPECT_EQ(back, "..");
  }
  std::string back(2, '.');
  EXPECT_EQ(client.read(server.url(), back).value(), 1U);
  EXPECT_EQ(back, "xy");
}

TEST(HttpPeers, ReportsTheStatusOfARefusal) {
  ScriptedServer server([&](int, const std::string&) {
    return Answer{ScriptedServer::with_status("403 Forbidden", "{}")};
  });
  PeerClient client;
  std::string back(2, '.');
  EXPECT_EQ(client.read(server.url(), back).error().code, ErrorCode::io_error);
  const auto servers = client.stats().servers;
  ASSERT_EQ(servers.size(), 1u);
  EXPECT_THAT(servers[0].last_error, HasSubstr("403"));
}

TEST(HttpPeers, ATruncatedResponseFailsAndOpensTheCircuit) {
  ScriptedServer server([&](int, const std::string&) {
    return Answer{.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc", .closes = true};
  });
  PeerClient client;
  std::string back(1'000, '.');
  EXPECT_EQ(client.read(server.url(), back).error().code, ErrorCode::unavailable);
  EXPECT_EQ(client.read(server.url(), back).error().code, ErrorCode::unavailable);
  EXPECT_EQ(server.requests(), 1);
  const auto stats = client.stats();
  EXPECT_TRUE(stats.servers.at(0).is_open);
  // A read refused on this side took no time and would make the server look fast.
  ASSERT_EQ(stats.by_server.size(), 1U);
  EXPECT_EQ(stats.by_server[0].node, server.url());
  const auto& reads =
      stats.by_server[0].operations[static_cast<std::size_t>(StoreOperation::read)].counts;
  EXPECT_EQ(std::accumulate(reads.begin(), reads.end(), 0U), 1U);
}

TEST(HttpPeers, ReportsAnOpenCircuitOnlyWhileItIsOpen) {
  ScriptedServer server([&](int, const std::string&) {
    return Answer{.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc", .closes = true};
  });
  PeerClient client;
  std::string back(1'000, '.');
  EXPECT_FALSE(client.read(server.url(), back));
  while (client.stats().servers.at(0).is_open) std::this_thread::yield();
  EXPECT_FALSE(client.read(server.url(), back));
  EXPECT_EQ(server.requests(), 2);
}

TEST(HttpPeers, ReopensAConnectionThatTheServerClosed) {
  ScriptedServer server([&](int, const std::string&) {
    return Answer{.bytes = ScriptedServer::ok("ab"), .closes = true};
  });
  PeerClient client;
  for (int i = 0; i < 20; ++i) {
    std::string back(2, '.');
    EXPECT_EQ(client.read(server.url(), back).value(), 1U);
    EXPECT_EQ(back, "ab");
  }
}

TEST(HttpPeers, GivesUpASilentServer) {
  ScriptedServer server([&](int, const std::string&) {
    return Answer{.bytes = "HTTP/1.1 200 OK\r\nContent-Le", .waits_for_end = true};
  });
  PeerClient client({.connections = 1, .timeout_ms = 50});
  std::string back(2, '.');
  const auto reply = client.read(server.url(), back);
  EXPECT_EQ(reply.error().code, ErrorCode::unavailable);
  EXPECT_THAT(reply.error().detail, HasSubstr("nothing came"));
}

TEST(HttpPeers, AResponseThatIsNotHttpFails) {
  for (const char* nonsense :
       {"+OK, as another server would say it\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nab"}) {
    ScriptedServer server([&](int, const std::string&) { return Answer{nonsense}; });
    PeerClient client;
    std::string back(2, '.');
    EXPECT_EQ(client.read(server.url(), back).error().code, ErrorCode::unavailable) << nonsense;
  }
}

TEST(HttpPeers, FailsIfNoServerListens) {
  PeerClient client;
  std::string back(2, '.');
  EXPECT_EQ(client.read("http://127.0.0.1:1", back).error().code, ErrorCode::unavailable);
  EXPECT_EQ(client.read("unix:/nowhere/at/all", back).error().code, ErrorCode::unavailable);
}

TEST(HttpPeers, RefusesMalformedUrls) {
  PeerClient client;
  std::string back(2, '.');
  for (const char* url : {"", "ftp://a", "http://", "http://a b", "http://a/b", "http://a:99999",
                          "http://a\r\nX: y", "unix:relative", "unix:/a/../b", "unix:/\x1b[2J",
                          "http://\xff\xfe", "http://a\x1b[2J", "http://a\"b", "http://a:0"}) {
    const auto refused = client.read(url, back).error();
    EXPECT_EQ(refused.code, ErrorCode::malformed) << url;
    EXPECT_THAT(refused.detail, Each(AllOf(Ge(' '), Le('~'))));
  }
  for (const std::string& url : {std::string("unix:/a\0b", 9), std::string("http://a\0b", 10),
                                 "unix:/" + std::string(300, 'a')}) {
    EXPECT_EQ(client.read(url, back).error().code, ErrorCode::malformed);
  }
  EXPECT_THAT(client.stats().servers, IsEmpty());
  PeerClient strict({.needs_tls = true, .connections = 1});
  EXPECT_EQ(strict.read("http://127.0.0.1:1", back).error().code, ErrorCode::malformed);
}

// Listens on a Unix socket, answers each connection once and counts the received bytes.
class Socket {
 public:
  // `owner` owns the file; `listener` listens.
  struct Users {
    uid_t owner = ::geteuid();
    uid_t listener = ::geteuid();
  };
  explicit Socket(const Users& users) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = ""};
    path().copy(address.sun_path, sizeof address.sun_path - 1);
    ::chmod(dir_.path().c_str(), 0777);
    const uid_t own = ::geteuid();
    EXPECT_EQ(::seteuid(users.listener), 0);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_, 4), 0);
    EXPECT_EQ(::seteuid(own), 0);
    EXPECT_EQ(::chown(path().c_str(), users.owner, static_cast<gid_t>(-1)), 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~Socket() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::string path() const { return (dir_.path() / "s").string(); }
  std::string url() const { return "unix:" + path(); }
  std::size_t come_bytes() const { return come_bytes_; }

 private:
  void serve() {
    while (true) {
      const int connection = ::accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      char buffer[4096];
      const auto bytes = ::recv(connection, buffer, sizeof buffer, 0);
      if (bytes > 0) {
        come_bytes_ += static_cast<std::size_t>(bytes);
        const std::string answer = ScriptedServer::ok("ab");
        ::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
        while (::recv(connection, buffer, sizeof buffer, 0) > 0) continue;
      }
      ::close(connection);
    }
  }

  const fakes::TempDir dir_;
  const int listener_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
  std::atomic<std::size_t> come_bytes_{0};
  std::thread thread_;
};

constexpr uid_t kStranger = 65'534;

TEST(HttpPeers, SendsTheTokenToASocketOfItsOwnUser) {
  Socket socket({});
  PeerClient client({.token = "sesame", .connections = 1});
  std::string back(2, '.');
  EXPECT_EQ(client.read(socket.url(), back).value(), 1U);
  EXPECT_EQ(back, "ab");
}

TEST(HttpPeers, SendsNothingToASocketOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives a file to another user";
  for (const Socket::Users& users :
       {Socket::Users{.owner = kStranger, .listener = kStranger}, Socket::Users{.owner = kStranger},
        Socket::Users{.listener = kStranger}}) {
    Socket socket(users);
    PeerClient client({.token = "sesame", .connections = 1});
    std::string back(2, '.');
    EXPECT_EQ(client.read(socket.url(), back).error().code, ErrorCode::unavailable);
    EXPECT_EQ(socket.come_bytes(), 0U);
  }
}

TEST(HttpPeers, ReadsFromASocketOfAConfiguredUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives a file to another user";
  for (const bool needs_tls : {false, true}) {
    Socket socket({.owner = kStranger, .listener = kStranger});
    PeerClient client(
        {.needs_tls = needs_tls, .unix_users = {kStranger}, .token = "sesame", .connections = 1});
    std::string back(2, '.');
    EXPECT_EQ(client.read(socket.url(), back).value(), 1U) << needs_tls;
  }
}

// No certificate proves who listens.
TEST(HttpPeers, WithTlsSendsNothingToASocketOfItsOwnUser) {
  Socket socket({});
  PeerClient client({.needs_tls = true, .token = "sesame", .connections = 1});
  std::string back(2, '.');
  EXPECT_EQ(client.read(socket.url(), back).error().code, ErrorCode::malformed);
  PeerClient other(
      {.needs_tls = true, .unix_users = {kStranger}, .token = "sesame", .connections = 1});
  EXPECT_EQ(other.read(socket.url(), back).error().code, ErrorCode::unavailable);
  EXPECT_EQ(socket.come_bytes(), 0U);
}

TEST(HttpPeers, RefusesAPathThatIsNotASocket) {
  const fakes::TempDir dir;
  std::ofstream(dir.path() / "file") << "text";
  PeerClient client;
  std::string back(2, '.');
  for (const std::string name : {"file", ".", "nothing"}) {
    EXPECT_EQ(client.read("unix:" + (dir.path() / name).string(), back).error().code,
              ErrorCode::unavailable);
  }
}

TEST(HttpPeers, FreesTheEntriesOfFailedServers) {
  PeerClient client;
  std::string back(2, '.');
  // No server listens there.
  for (int port = 1; port <= 4'300; ++port) {
    const std::string server = "http://127.0.0.2:" + std::to_string(port);
    ASSERT_EQ(client.read(server, back).error().code, ErrorCode::unavailable) << port;
  }
  EXPECT_THAT(client.stats().servers, SizeIs(4'096U));
  ScriptedServer server([](int, const std::string&) { return Answer{ScriptedServer::ok("ab")}; });
  EXPECT_EQ(client.read(server.url(), back).value(), 1U);
}

TEST(HttpPeers, GivesUpEndlessContinueResponses) {
  std::string waits;
  for (int i = 0; i < 500; ++i) waits += "HTTP/1.1 100 Continue\r\n\r\n";
  ScriptedServer server([&](int, const std::string&) { return Answer{waits}; });
  PeerClient client;
  std::string back(2, '.');
  EXPECT_EQ(client.read(server.url(), back).error().code, ErrorCode::unavailable);
}

TEST(HttpPeers, CompletesManyReadsAndRefusesTooMany) {
  ScriptedServer server([&](int, const std::string&) { return Answer{ScriptedServer::ok("ab")}; });
  auto peers = make_http_peers({.connections = 1, .timeout_ms = 30'000, .max_queued = 50}).value();
  std::vector<std::string> rooms(200, "..");
  std::atomic<int> whole{0};
  std::atomic<int> refused{0};
  for (std::string& room : rooms) {
    peers->read({.server = server.url(),
                 .target = "/",
                 .body = kBody,
                 .into = {{room.data(), 2}},
                 .part_bytes = 2},
                [&](const Result<std::size_t>& reply) { ++(reply ? whole : refused); });
  }
  while (whole + refused < 200) std::this_thread::yield();
  EXPECT_GE(whole, 50);
  EXPECT_EQ(std::ranges::count(rooms, "ab"), whole);
}

TEST(HttpPeers, DestructorCancelsReadsUnderWay) {
  ScriptedServer server(
      [&](int, const std::string&) { return Answer{.bytes = "HTTP/1.1", .waits_for_end = true}; });
  auto peers = make_http_peers({.connections = 1, .timeout_ms = 30'000}).value();
  std::string back(2, '.');
  auto reported = std::make_shared<std::promise<ErrorCode>>();
  auto future = reported->get_future();
  peers->read(
      {.server = server.url(),
       .target = "/",
       .body = kBody,
       .into = {{back.data(), 2}},
       .part_bytes = 2},
      [reported](const Result<std::size_t>& result) { reported->set_value(result.error().code); });
  while (server.requests() == 0) std::this_thread::yield();
  peers.reset();
  EXPECT_EQ(future.get(), ErrorCode::cancelled);
}

}  // namespace
}  // namespace cairn::testing
