// Checks what clients receive from the sockets that publish events, and how these treat bad peers.
#include "server/events/zmtp_server.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <vector>

#include "base/file_descriptor.hpp"
#include "tests/fakes/manual_clock.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

using ::testing::ElementsAre;

using Message = std::vector<std::string>;

std::string number_bytes(std::uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
  return bytes;
}

std::string part(const std::string& body, bool more) {
  const char flags = static_cast<char>(more ? 1 : 0);
  if (body.size() < 256) return std::string{flags, static_cast<char>(body.size())} + body;
  return std::string(1, static_cast<char>(flags | 2)) + number_bytes(body.size()) + body;
}

std::string command(const std::string& name, const std::string& data) {
  const std::string body = std::string(1, static_cast<char>(name.size())) + name + data;
  return std::string{4, static_cast<char>(body.size())} + body;
}

std::string greeting() {
  std::string bytes("\xff\0\0\0\0\0\0\0\0\x7f\3\0NULL", 16);
  bytes.resize(64, '\0');
  return bytes;
}

std::string ready(const std::string& type) {
  return command("READY",
                 std::string("\x0bSocket-Type\0\0\0", 15) + static_cast<char>(type.size()) + type);
}

const std::string kReplayFromTheFirst = part("", true) + part(number_bytes(0), false);

// A socket that never blocks.
class Stranger {
 public:
  explicit Stranger(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  // Sends as much as fits. Returns false if the server has closed.
  bool send(std::string_view bytes) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent >= 0 || errno == EAGAIN;
  }
  // The new whole messages, without the server's greeting and READY.
  std::vector<Message> messages(std::size_t most_bytes = SIZE_MAX) {
    take(most_bytes);
    std::vector<Message> whole;
    Message message;
    std::size_t at = 64;
    if (bytes_.size() < at) return whole;
    std::size_t end_of_last = begin_;
    at = std::max(at, begin_);
    while (at + 2 <= bytes_.size()) {
      const auto flags = static_cast<unsigned char>(bytes_[at]);
      const std::size_t head = (flags & 2U) != 0 ? 9 : 2;
      if (at + head > bytes_.size()) break;
      std::uint64_t size = 0;
      for (std::size_t i = 1; i < head; ++i) {
        size = size << 8U | static_cast<unsigned char>(bytes_[at + i]);
      }
      if (at + head + size > bytes_.size()) break;
      const std::string body = bytes_.substr(at + head, size);
      at += head + size;
      if ((flags & 4U) != 0) {
        commands_.push_back(body);
        end_of_last = at;
        continue;
      }
      message.push_back(body);
      if ((flags & 1U) != 0) continue;
      whole.push_back(std::exchange(message, {}));
      end_of_last = at;
    }
    begin_ = end_of_last;
    return whole;
  }
  const std::vector<std::string>& commands() const { return commands_; }
  bool closed() {
    take(SIZE_MAX);
    return closed_;
  }

 private:
  void take(std::size_t most_bytes) {
    char room[65'536];
    while (most_bytes > 0) {
      const ssize_t bytes =
          ::recv(fd_.get(), room, std::min(most_bytes, sizeof room), MSG_DONTWAIT);
      if (bytes < 0 && errno == EAGAIN) return;
      closed_ = bytes <= 0;
      if (closed_) return;
      bytes_.append(room, static_cast<std::size_t>(bytes));
      most_bytes -= static_cast<std::size_t>(bytes);
    }
  }

  FileDescriptor fd_;
  std::string bytes_;
  std::size_t begin_ = 0;  // of the bytes that messages() has not returned yet
  std::vector<std::string> commands_;
  bool closed_ = false;
};

class ZmtpServerTest : public ::testing::Test {
 protected:
  void serve(ZmtpServer::Kind kind, std::uint32_t max_clients = 8) {
    auto bound = ZmtpServer::bind({.io = io_, .history = history_, .clock = clock_, .log = log_},
                                  {.kind = kind,
                                   .endpoint = "ipc://" + path_,
                                   .max_clients = max_clients,
                                   .most_behind = 50});
    ASSERT_TRUE(bound) << bound.error().detail;
    server_ = std::move(*bound);
  }
  void run() {
    for (int i = 0; i < 8; ++i) {
      io_.restart();
      io_.poll();
      server_->tick();
    }
  }
  Stranger join(const std::string& type) {
    Stranger client(path_);
    client.send(greeting() + ready(type));
    run();
    return client;
  }
  void publish(const std::string& topic, const std::string& payload) {
    history_.add({.topic = topic, .payload = payload});
  }

  fakes::TempDir folder_;
  const std::string path_ = (folder_.path() / "events").string();
  fakes::ManualClock clock_;
  Logger log_{clock_, 2, LogLevel::error};
  boost::asio::io_context io_{1};
  BatchHistory history_{{.max_batches = 4'000, .max_replayed = 3'000, .max_bytes = 64ULL << 20U}};
  std::unique_ptr<ZmtpServer> server_;
};

TEST_F(ZmtpServerTest, SubscriberReceivesOnlyLaterEventsOfItsTopics) {
  serve(ZmtpServer::Kind::publish);
  publish("kv@a", "before");
  Stranger client = join("SUB");
  publish("kv@a", "unasked");
  client.send(part("\1kv@a", false));
  run();
  publish("kv@b", "another topic");
  publish("kv@a", std::string(300, 'x'));
  run();
  EXPECT_THAT(client.messages(),
              ElementsAre(ElementsAre("kv@a", number_bytes(3), std::string(300, 'x'))));
  client.send(part(std::string("\0kv@a", 5), false) + command("SUBSCRIBE", "kv@b"));
  run();
  publish("kv@a", "no more");
  publish("kv@b", "by a command");
  run();
  EXPECT_THAT(client.messages(), ElementsAre(ElementsAre("kv@b", number_bytes(5), "by a command")));
}

TEST_F(ZmtpServerTest, ReplaySendsItsBatchesAndAnEnd) {
  serve(ZmtpServer::Kind::replay);
  for (const char* payload : {"a", "b", "c"}) publish("kv", payload);
  for (const char* type : {"DEALER", "REQ", "ROUTER"}) {
    Stranger client = join(type);
    client.send(part("", true) + part(number_bytes(1), false));
    run();
    EXPECT_THAT(client.messages(), ElementsAre(ElementsAre("", number_bytes(1), "b"),
                                               ElementsAre("", number_bytes(2), "c"),
                                               ElementsAre("", number_bytes(~0ULL), "")))
        << type;
  }
}

TEST_F(ZmtpServerTest, SlowlyReadReplayHasNoGap) {
  serve(ZmtpServer::Kind::replay);
  constexpr std::size_t kBatches = 2'500;
  for (std::size_t n = 0; n < kBatches; ++n) publish("kv", std::string(10'000, 'x'));
  Stranger client = join("DEALER");
  client.send(kReplayFromTheFirst);
  std::vector<std::string> numbers;
  while (numbers.empty() || numbers.back() != number_bytes(~0ULL)) {
    run();
    ASSERT_FALSE(client.closed() && numbers.empty());
    for (const Message& message : client.messages(100'000)) numbers.push_back(message.at(1));
    clock_.advance_ms(1'000);  // 25 MB so far
    ASSERT_LE(numbers.size(), kBatches + 1);
  }
  ASSERT_EQ(numbers.size(), kBatches + 1);
  for (std::size_t n = 0; n < kBatches; ++n) EXPECT_EQ(numbers[n], number_bytes(n));
}

TEST_F(ZmtpServerTest, UnreadReplayTimesOutWithoutDelayingOthers) {
  serve(ZmtpServer::Kind::replay);
  for (std::size_t n = 0; n < 2'000; ++n) publish("kv", std::string(10'000, 'x'));
  Stranger silent = join("DEALER");
  silent.send(kReplayFromTheFirst);
  run();
  Stranger other = join("DEALER");
  other.send(part("", true) + part(number_bytes(1'999), false));
  run();
  EXPECT_EQ(other.messages().size(), 2U);
  clock_.advance_ms(3'600'000);
  run();
  EXPECT_LT(silent.messages().size(), 2'000U);
  EXPECT_TRUE(silent.closed());
  EXPECT_FALSE(other.closed());
}

TEST_F(ZmtpServerTest, ReplaySlowerThanTheHistoryEndsWithoutAGap) {
  serve(ZmtpServer::Kind::replay);
  for (std::size_t n = 0; n < 2'000; ++n) publish("kv", std::string(10'000, 'x'));
  Stranger client = join("DEALER");
  client.send(kReplayFromTheFirst);
  run();
  for (std::size_t n = 0; n < 4'000; ++n) publish("kv", "newer");
  std::size_t received = 0;
  for (int round = 0; round < 20; ++round) {
    for (const Message& message : client.messages()) {
      EXPECT_EQ(message.at(1), number_bytes(received++));
    }
    run();
  }
  EXPECT_TRUE(client.closed());
  EXPECT_LT(received, 2'000U);
}

TEST_F(ZmtpServerTest, SlowSubscriberReceivesTheNewestEvents) {
  serve(ZmtpServer::Kind::publish);
  Stranger client = join("SUB");
  client.send(part("\1", false));
  run();
  for (std::size_t n = 0; n < 1'000; ++n) {
    publish("kv", std::string(50'000, 'x'));
    if (n % 10 == 0) run();
  }
  std::vector<std::string> numbers;
  for (int round = 0; round < 100; ++round) {
    for (const Message& message : client.messages()) numbers.push_back(message.at(1));
    run();
  }
  EXPECT_LT(numbers.size(), 1'000U);
  ASSERT_GE(numbers.size(), 50U);
  EXPECT_EQ(numbers.back(), number_bytes(999));
  EXPECT_EQ(numbers[numbers.size() - 50], number_bytes(950));
}

TEST_F(ZmtpServerTest, WrongReplayRequestEndsTheConnection) {
  serve(ZmtpServer::Kind::replay, 32);
  publish("kv", "a");
  const std::string three_parts = part("", true) + part(number_bytes(0), true) + part("", false);
  for (const std::string& bytes :
       {part(std::string(4'000, 'x'), true), part("", true) + part("", true), three_parts,
        part("", false), part(number_bytes(0), false), part("", true) + part("1", false),
        part("", true) + command("PING", std::string(2, '\0')), command("SUBSCRIBE", "kv"),
        command("", ""), std::string("\4\0", 2),
        std::string("\2\xff\xff\xff\xff\xff\xff\xff\xff", 9)}) {
    Stranger client = join("DEALER");
    client.send(bytes);
    run();
    EXPECT_TRUE(client.closed()) << ::testing::PrintToString(bytes.substr(0, 20));
  }
}

TEST_F(ZmtpServerTest, SubscriptionsAreBoundedInNumberAndLength) {
  serve(ZmtpServer::Kind::publish, 32);
  Stranger many = join("SUB");
  for (int n = 0; n < 64; ++n) many.send(part("\1" + std::to_string(n), false));
  for (int n = 0; n < 64; ++n) many.send(part("\1" + std::to_string(n), false));
  run();
  EXPECT_FALSE(many.closed()) << "repeated subscriptions count once";
  many.send(part("\1one more", false));
  run();
  EXPECT_TRUE(many.closed());
  for (const std::string& bytes : {part("\1" + std::string(1'024, 'x'), false), part("\1kv", true),
                                   part("", false), part("unknown", false)}) {
    Stranger client = join("SUB");
    client.send(bytes);
    run();
    EXPECT_TRUE(client.closed()) << ::testing::PrintToString(bytes.substr(0, 20));
  }
}

TEST_F(ZmtpServerTest, WrongProtocolOrSocketTypeEndsTheConnection) {
  serve(ZmtpServer::Kind::publish, 32);
  std::string curve = greeting();
  curve.replace(12, 5, "CURVE");
  std::string older = greeting();
  older[10] = 1;
  std::string http = "GET / HTTP/1.1\r\n\r\n";
  http.resize(64, ' ');
  for (const std::string& bytes :
       {curve, older, http, greeting() + ready("DEALER"), greeting() + ready("PUB"),
        greeting() + part("\1kv", false), greeting() + command("READY", "\x0bSocket-Type")}) {
    Stranger client(path_);
    client.send(bytes);
    run();
    EXPECT_TRUE(client.closed()) << ::testing::PrintToString(bytes.substr(0, 80));
  }
}

TEST_F(ZmtpServerTest, MissingHandshakeTimesOut) {
  serve(ZmtpServer::Kind::publish);
  Stranger silent(path_);
  Stranger half(path_);
  half.send(greeting());
  Stranger subscriber = join("SUB");
  clock_.advance_ms(9'999);
  run();
  EXPECT_FALSE(silent.closed());
  clock_.advance_ms(1);
  run();
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(half.closed());
  EXPECT_FALSE(subscriber.closed());
}

TEST_F(ZmtpServerTest, UnsubscribedClientsGiveWayToNewOnes) {
  serve(ZmtpServer::Kind::publish, 3);
  Stranger subscriber = join("SUB");
  subscriber.send(part("\1kv", false));
  run();
  Stranger idle = join("SUB");
  Stranger silent(path_);
  run();
  Stranger second = join("SUB");
  EXPECT_TRUE(silent.closed());
  second.send(part("\1kv", false));
  run();
  Stranger third = join("SUB");
  EXPECT_TRUE(idle.closed());
  third.send(part("\1kv", false));
  run();
  Stranger late = join("SUB");
  EXPECT_TRUE(late.closed()) << "all places are in use";
  publish("kv", "a");
  run();
  for (Stranger* client : {&subscriber, &second, &third}) EXPECT_EQ(client->messages().size(), 1U);
}

TEST_F(ZmtpServerTest, PingReturnsPong) {
  serve(ZmtpServer::Kind::publish);
  Stranger client = join("SUB");
  client.send(command("PING", std::string("\0\x10", 2) + "context"));
  run();
  client.messages();
  EXPECT_EQ(client.commands().back(), std::string("\4PONG") + "context");
  client.send(command("PING", std::string(2 + 17, 'x')));
  run();
  EXPECT_TRUE(client.closed());
}

TEST_F(ZmtpServerTest, RefusalNamesTheEndpoint) {
  for (const char* endpoint : {"tcp://127.0.0.1", "tcp://127.0.0.1:x", "tcp://127.0.0.1:65536",
                               "ipc://", "ipc://@abstract", "inproc://x", "127.0.0.1:5557", ""}) {
    const auto bound =
        ZmtpServer::bind({.io = io_, .history = history_, .clock = clock_, .log = log_},
                         {.endpoint = endpoint, .max_clients = 1, .most_behind = 1});
    ASSERT_FALSE(bound) << endpoint;
    EXPECT_EQ(bound.error().code, ErrorCode::malformed);
    EXPECT_THAT(bound.error().detail, ::testing::HasSubstr(endpoint));
  }
}

TEST_F(ZmtpServerTest, EmptyHostBindsToLoopback) {
  const auto bind = [this](const std::string& endpoint) {
    return ZmtpServer::bind({.io = io_, .history = history_, .clock = clock_, .log = log_},
                            {.endpoint = endpoint, .max_clients = 1, .most_behind = 1})
        .value();
  };
  const auto own = bind("tcp://:0");
  EXPECT_THAT(own->endpoint(), ::testing::StartsWith("tcp://127.0.0.1:"));
  EXPECT_FALSE(own->is_open_to_network());
  const auto any = bind("tcp://*:*");
  EXPECT_THAT(any->endpoint(), ::testing::StartsWith("tcp://0.0.0.0:"));
  EXPECT_TRUE(any->is_open_to_network());
}

}  // namespace
}  // namespace cairn
