#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/http/http_fixture.hpp"

namespace cairn::http::testing {
namespace {

using HttpLimitsTest = HttpTest;

TEST_F(HttpLimitsTest, RefusesAHeadOverTheLimitAndTakesOneAtIt) {
  limits_.max_header_bytes = 1000;
  start();
  const std::string start_line = "GET / HTTP/1.1\r\nHost: x\r\n";
  auto head_of = [&](std::size_t bytes) {
    return start_line + "A: " + std::string(bytes - start_line.size() - 3 - 4, 'x') + "\r\n\r\n";
  };
  SocketClient client = connect();
  client.send(head_of(1000));
  EXPECT_EQ(client.receive().status, 200u);
  client.send(head_of(1001));
  EXPECT_EQ(client.receive().status, 431u);
}

// A body grows by doubling, and each size comes from a slab of eight.
TEST_F(HttpLimitsTest, RefusesABodyWithoutMemoryAndServesTheNext) {
  limits_.body_memory_bytes = 4 << 20;
  start();
  const std::string body(600 * 1024, 'x');
  for (const bool chunked : {false, true}) {
    SocketClient client = connect();
    client.send(chunked
                    ? "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n96000\r\n"
                    : "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 614400\r\n\r\n");
    client.send(body);
    EXPECT_EQ(client.receive().status, 503u) << chunked;
    EXPECT_TRUE(client.closed_by_server());
  }
  SocketClient next = connect();
  next.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 102400\r\n\r\n" +
            std::string(102400, 'y'));
  EXPECT_EQ(next.receive().status, 200u);
  for (const NamedAllocator& one : server_->allocators()) {
    EXPECT_LE(one.now.reserved_bytes, std::uint64_t{64} << 20) << one.allocator;
  }
}

TEST_F(HttpLimitsTest, RefusesAHeadWithoutAnEnd) {
  start();
  std::string fields;
  for (int i = 0; i < 5000; ++i) fields += "A: b\r\n";
  for (const std::string& head : {"GET /" + std::string(64 * 1024, 'x'),
                                  "GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(64 * 1024, 'x'),
                                  "GET / HTTP/1.1\r\nHost: x\r\n" + fields}) {
    SocketClient client = connect();
    client.send(head);
    EXPECT_EQ(client.receive().status, 431u);
    EXPECT_TRUE(client.closed_by_server());
  }
}

TEST_F(HttpLimitsTest, LimitsTheWholeHeadOfASlowClient) {
  limits_.max_header_bytes = 1000;
  start();
  SocketClient client = connect();
  std::uint64_t sent = 0;
  const std::string field = "A: 0123456789\r\n";
  client.send("GET / HTTP/1.1\r\nHost: x\r\n");
  ASSERT_TRUE(received(sent += 25));
  for (int i = 0; i < 64; ++i) {  // 985 bytes
    client.send(field);
    ASSERT_TRUE(received(sent += field.size()));
  }
  EXPECT_EQ(handler_.all_finished().size(), 0u);
  client.send(field + field);
  EXPECT_EQ(client.receive().status, 431u);
}

TEST_F(HttpLimitsTest, SlowHeadTimesOutDespiteNewBytes) {
  start();
  SocketClient client = connect();
  const std::string head = "GET / HTTP/1.1\r\nHost: x\r\nA: ";
  client.send(head);
  ASSERT_TRUE(received(head.size()));
  client.send("x");
  ASSERT_TRUE(received(head.size() + 1));  // so the head's timer runs
  clock_.advance_ms(limits_.header_timeout_ms - 1);
  client.send("y");
  ASSERT_TRUE(received(head.size() + 2));
  clock_.advance_ms(1);
  const ClientResponse response = client.receive();
  EXPECT_EQ(response.status, 408u);
  EXPECT_EQ(response.field("Connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(HttpLimitsTest, TimeoutWithoutMemoryClosesTheConnection) {
  start();
  handler_.has_no_memory = true;
  SocketClient client = connect();
  const std::string head = "GET / HTTP/1.1\r\nHost: x\r\nA: ";
  client.send(head);
  ASSERT_TRUE(received(head.size()));
  EXPECT_EQ(receive_in_time(client, limits_.header_timeout_ms).status, 0u);
  EXPECT_TRUE(none_open());
}

TEST_F(HttpLimitsTest, ConnectionContinuesIfFinishedThrows) {
  start();
  handler_.has_no_memory = true;
  SocketClient client = connect();
  for (int i = 0; i < 2; ++i) {
    client.send(kGet);
    EXPECT_EQ(client.receive().status, 200u);
  }
  client.close();
  EXPECT_TRUE(none_open());
}

TEST_F(HttpLimitsTest, SlowBodyTimesOut) {
  start();
  for (const std::string start_of_body :
       {"Content-Length: 100\r\n\r\nx", "Content-Length: 100000\r\n\r\nx",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nx"}) {
    const std::uint64_t before = server_->stats().bytes_received;
    SocketClient client = connect();
    const std::string request = "PUT / HTTP/1.1\r\nHost: x\r\n" + start_of_body;
    client.send(request);
    ASSERT_TRUE(received(before + request.size()));
    EXPECT_EQ(receive_in_time(client, limits_.body_timeout_ms).status, 408u) << start_of_body;
  }
}

TEST_F(HttpLimitsTest, TricklingBodyTimesOut) {
  limits_.body_timeout_ms = 10'000;
  limits_.least_rate_bytes_per_s = 1000;
  start();
  SocketClient client = connect();
  const std::string request = "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n";
  client.send(request);
  std::uint64_t sent = request.size();
  ASSERT_TRUE(received(sent));
  // One byte per second: each adds a millisecond to the ten seconds of grace.
  for (int seconds = 0; seconds < 12 && handler_.all_finished().empty(); ++seconds) {
    clock_.advance_ms(1000);
    client.send("x");
    ++sent;
    ASSERT_TRUE(eventually([&] {
      return server_->stats().bytes_received >= sent || !handler_.all_finished().empty();
    }));
  }
  // Only the millisecond of the last byte is left.
  clock_.advance_ms(2);
  EXPECT_EQ(client.receive().status, 408u);
}

TEST_F(HttpLimitsTest, BodyMayTakeAsLongAsItsRateAllows) {
  limits_.body_timeout_ms = 10'000;
  limits_.least_rate_bytes_per_s = 1024;
  start();
  SocketClient client = connect();
  const std::string request = "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 61440\r\n\r\n";
  client.send(request);
  std::uint64_t sent = request.size();
  ASSERT_TRUE(received(sent));
  const std::string piece(2048, 'x');
  for (int i = 0; i < 30; ++i) {  // 1 s each: four times the grace and twice the rate
    clock_.advance_ms(1000);
    client.send(piece);
    ASSERT_TRUE(received(sent += piece.size()));
  }
  EXPECT_EQ(client.receive().status, 200u);
}

TEST_F(HttpLimitsTest, ClosesAnIdleConnectionSilently) {
  start();
  SocketClient fresh = connect();
  SocketClient used = connect();
  used.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(used.receive().status, 200u);
  EXPECT_TRUE(eventually([&] {
    clock_.advance_ms(limits_.idle_timeout_ms);
    return server_->stats().connections_open == 0;
  }));
  EXPECT_TRUE(fresh.closed_by_server());
  EXPECT_TRUE(used.closed_by_server());
  EXPECT_EQ(handler_.all_finished().size(), 1u);
}

TEST_F(HttpLimitsTest, KeepsAnIdleConnectionThatMustStayOpen) {
  start();
  SocketClient staying = connect();
  staying.send("GET /stay HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(staying.receive().status, 200u);
  SocketClient other = connect();
  EXPECT_TRUE(eventually([&] {
    clock_.advance_ms(limits_.idle_timeout_ms);
    return server_->stats().connections_accepted == 2 && server_->stats().connections_open == 1;
  }));
  EXPECT_TRUE(other.closed_by_server());
  staying.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(staying.receive().status, 200u);
}

TEST_F(HttpLimitsTest, WorkingHandlerNeverTimesOut) {
  std::optional<Responder> waiting;
  std::atomic<bool> asked{false};
  handler_.on_handle = [&](const Request&, Responder respond) {
    waiting.emplace(std::move(respond));
    asked = true;
  };
  start();
  SocketClient client = connect();
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return asked.load(); }));
  clock_.advance_ms(std::int64_t{10} * limits_.idle_timeout_ms);
  // A second client's idle timeout shows that the server has checked its deadlines.
  SocketClient other = connect();
  EXPECT_TRUE(eventually([&] {
    clock_.advance_ms(limits_.idle_timeout_ms);
    return server_->stats().connections_accepted == 2 && server_->stats().connections_open == 1;
  }));
  (*waiting)(text_response(200, "at last"));
  EXPECT_EQ(client.receive().body, "at last");
}

TEST_F(HttpLimitsTest, RefusesToStartWithoutAThread) {
  limits_.threads = 0;
  const auto server = HttpServer::start(listen_, limits_, handler_, clock_, log_);
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, ErrorCode::out_of_range);
}

}  // namespace
}  // namespace cairn::http::testing
