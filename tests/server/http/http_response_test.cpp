#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "server/http/held_answers.hpp"
#include "server/http/response_head.hpp"
#include "tests/server/http/http_fixture.hpp"
#include "tests/server/http/scripted_bodies.hpp"

namespace cairn::http::testing {
namespace {

class HttpResponseTest : public HttpTest {
 protected:
  HttpResponseTest() { start(); }
  ~HttpResponseTest() override { server_.reset(); }

  // Every request gets the response that `make` returns.
  void answer(std::function<Response()> make) {
    handler_.on_handle = [make = std::move(make)](const Request&, Responder respond) {
      respond(make());
    };
  }
  void download(std::uint64_t bytes, ScriptedDownload::Next next) {
    answer([this, bytes, next = std::move(next)] {
      auto alive = std::make_shared<int>();
      alive_ = alive;
      Response response = text_response(200, "");
      response.download = std::make_unique<ScriptedDownload>(std::move(alive), next);
      response.download_bytes = bytes;
      return response;
    });
  }

  std::string date() const { return std::string(DateLine().at(clock_.unix_ms())); }

  std::weak_ptr<int> alive_;
  std::string text_;  // outlives the server, too
};

TEST(DateLine, HasTheFormatOfHttp) {
  DateLine date;
  EXPECT_EQ(date.at(784'111'777'999), "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
  EXPECT_EQ(date.at(784'111'778'000), "Date: Sun, 06 Nov 1994 08:49:38 GMT\r\n");
  EXPECT_EQ(date.at(0), "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n");
}

constexpr std::string_view kHead = "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n";

TEST_F(HttpResponseTest, WritesStatusTypeLengthAndTheHandlersFields) {
  answer([] {
    Response response = text_response(507, "12345");
    response.headers = "Retry-After: 1\r\nETag: \"x\"\r\n";
    return response;
  });
  SocketClient client = connect();
  client.send(kGet);
  const ClientResponse response = client.receive();
  EXPECT_EQ(
      response.head,
      "HTTP/1.1 507 Insufficient Storage\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n" +
          date() +
          "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n"
          "Retry-After: 1\r\nETag: \"x\"\r\n\r\n");
  EXPECT_EQ(response.body, "12345");
}

TEST_F(HttpResponseTest, SendsAnEndlessResponseInChunks) {
  static char first[] = "hello ";
  static char second[] = "worldwideweb";
  const std::array<iovec, 2> pieces = {{{first, 6}, {second, 12}}};
  int call = 0;
  answer([&call, &pieces] {
    Response response = text_response(200, "");
    response.endless = true;
    response.download = std::make_unique<ScriptedDownload>(nullptr, [&call, &pieces](auto ready) {
      const std::span<const iovec> all(pieces);
      ready(++call == 1 ? all : call == 2 ? all.last(1) : all.first(0));
    });
    return response;
  });
  SocketClient client = connect();
  client.send(kGet);
  const std::string whole =
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"
      "Connection: close\r\n" +
      date() +
      "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n"
      "\r\n"
      "12\r\nhello worldwideweb\r\nc\r\nworldwideweb\r\n0\r\n\r\n";
  EXPECT_EQ(client.receive_bytes(whole.size()), whole);
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_TRUE(finished(1));
}

TEST_F(HttpResponseTest, SendsAnEndlessResponseUnchunkedToHttp10) {
  static char text[] = "hello";
  static iovec piece{text, 5};
  int call = 0;
  answer([&call] {
    Response response = text_response(200, "");
    response.endless = true;
    response.download = std::make_unique<ScriptedDownload>(nullptr, [&call](auto ready) {
      ready(std::span<const iovec>(&piece, ++call == 1 ? 1 : 0));
    });
    return response;
  });
  SocketClient client = connect();
  client.send("GET / HTTP/1.0\r\n\r\n");
  const std::string whole =
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n" + date() +
      "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n"
      "\r\nhello";
  EXPECT_EQ(client.receive_bytes(whole.size()), whole);
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(HttpResponseTest, AnswersHeadWithTheLengthAlone) {
  answer([] { return text_response(200, "12345"); });
  SocketClient client = connect();
  client.send(kHead);
  EXPECT_EQ(client.receive(/*to_head=*/true).field("Content-Length"), "5");
  answer([] {
    Response response = text_response(200, "");
    response.announced_bytes = 123'456'789'012;
    return response;
  });
  client.send(kHead);
  EXPECT_EQ(client.receive(/*to_head=*/true).field("Content-Length"), "123456789012");
  // No body followed that could be confused with the next response.
  client.send(kGet);
  EXPECT_EQ(client.receive().status, 200u);
}

TEST_F(HttpResponseTest, SendsNoBodyWith204And304) {
  SocketClient client = connect();
  answer([] { return text_response(204, ""); });
  client.send(kGet);
  const ClientResponse none = client.receive();
  EXPECT_EQ(none.field("Content-Length"), std::nullopt);
  answer([] {
    Response response = text_response(304, "");
    response.announced_bytes = 77;
    return response;
  });
  client.send(kGet);
  EXPECT_EQ(client.receive().field("Content-Length"), "77");
  client.send(kGet);
  EXPECT_EQ(client.receive().status, 304u);
}

TEST_F(HttpResponseTest, ClosesAfterAResponseThatSaysSo) {
  answer([] {
    Response response = text_response(200, "bye");
    response.close = true;
    return response;
  });
  SocketClient client = connect();
  client.send(kGet);
  EXPECT_EQ(client.receive().field("Connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(HttpResponseTest, SendsADownloadPieceByPiece) {
  std::string& body = text_ = pattern(3'000'000);
  std::size_t given = 0;
  iovec piece{};
  download(body.size(), [&](auto ready) {
    const std::size_t bytes =
        std::min<std::size_t>(given % 7 == 0 ? 1 : 700'001, body.size() - given);
    piece = {body.data() + given, bytes};
    given += bytes;
    ready(std::span<const iovec>(&piece, 1));
  });
  SocketClient client = connect();
  for (int i = 0; i < 3; ++i) {
    given = 0;
    client.send(kGet);
    const ClientResponse response = client.receive();
    EXPECT_EQ(response.field("Content-Length"), "3000000");
    EXPECT_TRUE(response.body == body);
  }
}

TEST_F(HttpResponseTest, SendsMorePiecesThanOneSystemCallTakes) {
  Scattered& body = memory(std::vector<std::size_t>(5000, 7), 'x');
  download(5000 * 7 - 10, [&](auto ready) { ready(body.pieces()); });
  SocketClient client = connect();
  client.send(kGet);
  EXPECT_TRUE(client.receive().body == std::string(5000 * 7 - 10, 'x'));
  client.send(kGet);
  EXPECT_EQ(client.receive().status, 200u);
}

TEST_F(HttpResponseTest, TakesPiecesFromAnotherThread) {
  Scattered& body = memory({1000}, 'y');
  std::vector<std::thread> others;
  download(5000, [&](auto ready) {
    others.emplace_back([&body, ready = std::move(ready)]() mutable { ready(body.pieces()); });
  });
  SocketClient client = connect();
  client.send(kGet);
  EXPECT_EQ(client.receive().body, std::string(5000, 'y'));
  for (std::thread& other : others) other.join();
  EXPECT_EQ(others.size(), 5u);
}

TEST_F(HttpResponseTest, HeadReadsNoBytesOfADownload) {
  std::atomic<int> asked{0};
  download(100, [&](auto) { ++asked; });
  SocketClient client = connect();
  client.send(kHead);
  EXPECT_EQ(client.receive(/*to_head=*/true).field("Content-Length"), "100");
  EXPECT_EQ(asked, 0);
  EXPECT_TRUE(eventually([&] { return alive_.expired(); }));
}

TEST_F(HttpResponseTest, ReportsAnErrorOfTheFirstPiece) {
  download(100, [](auto ready) { ready(Error{ErrorCode::checksum_mismatch, "rotten"}); });
  SocketClient client = connect();
  client.send(kGet);
  const ClientResponse response = client.receive();
  EXPECT_EQ(response.status, 507u);
  EXPECT_EQ(response.body, "failed: rotten");
}

TEST_F(HttpResponseTest, CutsTheBodyAtALaterError) {
  Scattered& body = memory({60}, 'y');
  int asked = 0;
  download(100, [&](auto ready) {
    if (++asked == 1) return ready(body.pieces());
    ready(Error{ErrorCode::io_error, "gone"});
  });
  SocketClient client = connect();
  client.send(kGet);
  const ClientResponse response = client.receive();
  EXPECT_FALSE(response.complete);
  EXPECT_EQ(response.body, std::string(60, 'y'));
  EXPECT_TRUE(none_open());
  EXPECT_TRUE(alive_.expired());
}

TEST_F(HttpResponseTest, EndsADownloadWhoseClientHasGone) {
  Scattered& body = memory({1 << 20}, 'y');
  download(1ull << 40, [&](auto ready) { ready(body.pieces()); });
  SocketClient client = connect();
  client.send(kGet);
  EXPECT_EQ(client.receive_bytes(2 << 20).size(), std::size_t{2 << 20});
  client.close();
  EXPECT_TRUE(none_open());
  EXPECT_TRUE(alive_.expired());
}

TEST_F(HttpResponseTest, EndsADownloadWhoseClientStopsReading) {
  Scattered& body = memory({1 << 20}, 'y');
  std::atomic<std::uint64_t> asked{0};
  download(1ull << 40, [&](auto ready) {
    ++asked;
    ready(body.pieces());
  });
  SocketClient client = connect();
  client.shrink_receive_buffer();
  client.send(kGet);
  ASSERT_TRUE(eventually([&] { return asked > 1; }));
  // The clock advances only while the connection is open, so it is the timeout that ends it.
  EXPECT_TRUE(eventually([&] {
    clock_.advance_ms(limits_.body_timeout_ms);
    return server_->stats().connections_open == 0;
  }));
  EXPECT_TRUE(alive_.expired());
}

TEST_F(HttpResponseTest, ServesOthersWhileOneReadsWithoutEnd) {
  Scattered& body = memory({1 << 20}, 'y');
  handler_.on_handle = [&](const Request& request, Responder respond) {
    Response response = text_response(200, "small");
    if (request.path == "/endless") {
      response.download =
          std::make_unique<ScriptedDownload>(nullptr, [&](auto ready) { ready(body.pieces()); });
      response.download_bytes = 1ull << 40;
    }
    respond(std::move(response));
  };
  SocketClient greedy = connect();
  greedy.send("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n");
  std::atomic<bool> enough{false};
  std::thread reader([&] {
    while (!enough) greedy.receive_bytes(1 << 20);
  });
  SocketClient client = connect();
  for (int i = 0; i < 20; ++i) {
    client.send(kGet);
    EXPECT_EQ(client.receive().body, "small");
  }
  enough = true;
  reader.join();
}

// Three requests run in one turn. The first is quick, the second is slow, and the third waits until
// both responses have arrived. The server must therefore send them before the turn ends.
TEST_F(HttpResponseTest, SendsHeldAnswersBeforeASlowTurnEnds) {
  std::promise<void> all_sent;
  std::promise<void> two_answered;
  std::atomic<int> handled{0};
  handler_.on_handle = [&](const Request&, Responder respond) {
    const int number = ++handled;
    if (number == 1) all_sent.get_future().wait();  // holds the thread until the others are there
    if (number == 3) clock_.advance(HeldAnswers::kMost + std::chrono::microseconds(1));
    if (number == 4) {
      const auto answered = two_answered.get_future().wait_for(std::chrono::seconds(20));
      EXPECT_EQ(answered, std::future_status::ready);
    }
    respond(text_response(200, "done"));
  };
  SocketClient holder = connect();
  SocketClient clients[3] = {connect(), connect(), connect()};
  holder.send(kGet);
  ASSERT_TRUE(eventually([&] { return handled == 1; }));
  for (SocketClient& client : clients) client.send(kGet);
  all_sent.set_value();
  std::atomic<int> answered{0};
  std::thread readers[3];
  for (int i = 0; i < 3; ++i) {
    readers[i] = std::thread([&, i] {
      EXPECT_EQ(clients[i].receive().body, "done");
      if (++answered == 2) two_answered.set_value();
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(holder.receive().body, "done");
}

TEST_F(HttpResponseTest, LostConnectionLosesOnlyItsOwnHeldAnswer) {
  std::promise<void> both_sent;
  std::atomic<int> handled{0};
  handler_.on_handle = [&](const Request&, Responder respond) {
    if (++handled == 1) both_sent.get_future().wait();
    respond(text_response(200, "done"));
  };
  SocketClient holder = connect();
  SocketClient gone = connect();
  SocketClient stays = connect();
  holder.send(kGet);
  ASSERT_TRUE(eventually([&] { return handled == 1; }));
  gone.send(kGet);
  stays.send(kGet);
  gone.close();
  both_sent.set_value();
  EXPECT_EQ(holder.receive().body, "done");
  EXPECT_EQ(stays.receive().body, "done");
  EXPECT_TRUE(finished(3));
}

}  // namespace
}  // namespace cairn::http::testing
