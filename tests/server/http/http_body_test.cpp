#include <gtest/gtest.h>

#include <string>

#include "tests/server/http/http_fixture.hpp"
#include "tests/server/http/scripted_bodies.hpp"

namespace cairn::http::testing {
namespace {

constexpr std::size_t kCollectLimit = 1024 * 1024;  // TestHandler's

std::string put(const std::string& body) {
  return "PUT /p HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

class HttpBodyTest : public HttpTest {
 protected:
  HttpBodyTest() { start(); }
};

TEST_F(HttpBodyTest, CollectsBodiesUpToTheLimitWithPaddingBehindThem) {
  std::string got;
  unsigned padding_sum = 0;
  handler_.on_handle = [&](const Request& request, Responder respond) {
    got = body_text(request);
    const std::byte* end = request.body.data() + request.body.size();
    if (!request.body.empty()) {
      for (std::size_t i = 0; i < kBodyPadding; ++i) padding_sum += static_cast<unsigned>(end[i]);
    }
    respond(text_response(200, std::string(request.path) + std::string(request.accept)));
  };
  SocketClient client = connect();
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{16 * 1024}, std::size_t{32 * 1024 - 60},
        std::size_t{32 * 1024}, std::size_t{100'000}, kCollectLimit}) {
    const std::string body = pattern(bytes);
    client.send("PUT /views HTTP/1.1\r\nHost: x\r\nAccept: hold\r\nContent-Length: " +
                std::to_string(bytes) + "\r\n\r\n" + body);
    EXPECT_EQ(client.receive().body, "/viewshold") << bytes;
    EXPECT_TRUE(got == body) << bytes;
  }
}

TEST_F(HttpBodyTest, RefusesALongerBodyBeforeItIsSent) {
  SocketClient client = connect();
  client.send("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(kCollectLimit + 1) +
              "\r\n\r\n");
  const ClientResponse response = client.receive();
  EXPECT_EQ(response.status, 413u);
  EXPECT_EQ(response.field("Connection"), "close");
  client.close();
  EXPECT_TRUE(none_open());
}

TEST_F(HttpBodyTest, LetsAClientThatSendsTooMuchReadTheRefusal) {
  SocketClient client = connect();
  ASSERT_TRUE(client.send(put(std::string(32 * 1024 * 1024, 'x'))));
  EXPECT_EQ(client.receive().status, 413u);
  EXPECT_TRUE(client.closed_by_server());
  client.close();
  EXPECT_TRUE(none_open());
}

TEST_F(HttpBodyTest, CollectsChunksWithExtensionsAndTrailers) {
  SocketClient client = connect();
  client.send(
      "PUT /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "4;name=value\r\nWiki\r\n005\r\npedia\r\nA\r\n0123456789\r\n0\r\nAccept: trailer\r\n\r\n"
      "GET /next HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive().body, "PUT /p? Wikipedia0123456789");
  EXPECT_EQ(client.receive().body, "GET /next? ");
}

TEST_F(HttpBodyTest, CollectsChunksByteByByte) {
  SocketClient client = connect();
  const std::string request =
      "PUT /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n4\r\nWiki\r\n5;e\r\npedia\r\n0\r\n\r\n";
  for (std::size_t i = 0; i < request.size(); ++i) {
    client.send(request.substr(i, 1));
    ASSERT_TRUE(received(i + 1));
  }
  EXPECT_EQ(client.receive().body, "PUT /p? Wikipedia");
}

TEST_F(HttpBodyTest, CollectsManyChunksOfALongBody) {
  std::string got;
  handler_.on_handle = [&got](const Request& request, Responder respond) {
    got = body_text(request);
    respond(text_response(200, std::string(request.path)));
  };
  const std::string body = pattern(kCollectLimit);
  std::string chunks;
  for (std::size_t at = 0; at < body.size(); at += 1024) {
    chunks += "400\r\n" + body.substr(at, 1024) + "\r\n";
  }
  SocketClient client = connect();
  client.send("PUT /held HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks +
              "0\r\n\r\n");
  EXPECT_EQ(client.receive().body, "/held");
  EXPECT_TRUE(got == body);
}

TEST_F(HttpBodyTest, RefusesChunksOverTheLimitAsTheyCome) {
  handler_.on_begin = [](const RequestHead&) -> BodyPlan { return CollectBody{8}; };
  SocketClient client = connect();
  client.send(
      "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n12345678\r\n1\r\nx\r\n");
  EXPECT_EQ(client.receive().status, 413u);
  SocketClient huge = connect();
  huge.send("PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n");
  EXPECT_EQ(huge.receive().status, 413u);
}

TEST_F(HttpBodyTest, RefusesAChunkHeadWithoutAnEnd) {
  SocketClient client = connect();
  client.send("PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
              std::string(64 * 1024, 'e'));
  EXPECT_EQ(client.receive().status, 400u);
}

TEST_F(HttpBodyTest, SendsContinueToAClientThatWaitsForIt) {
  SocketClient client = connect();
  for (const std::string length : {"5", "100000"}) {
    client.send("PUT /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: " + length +
                "\r\n\r\n");
    EXPECT_EQ(client.receive().status, 100u);
    const std::string body(std::stoul(length), 'b');
    client.send(body);
    EXPECT_EQ(client.receive().body, "PUT /p? " + body);
  }
  client.send(
      "PUT /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(client.receive().status, 100u);
  client.send("1\r\nx\r\n0\r\n\r\n");
  EXPECT_EQ(client.receive().body, "PUT /p? x");
}

TEST_F(HttpBodyTest, SendsNoContinueIfTheBodyIsThereOrRefused) {
  SocketClient client = connect();
  client.send("PUT /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx");
  EXPECT_EQ(client.receive().body, "PUT /p? x");
  client.send(
      "PUT /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
  EXPECT_EQ(client.receive().status, 413u);
}

TEST_F(HttpBodyTest, SkipsAShortUnwantedBody) {
  handler_.on_begin = [](const RequestHead& head) -> BodyPlan {
    if (head.method == Method::put) return text_response(404, "no");
    return CollectBody{0};
  };
  SocketClient client = connect();
  client.send("PUT /p HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n");
  EXPECT_EQ(client.receive().status, 404u);
  client.send(std::string(60000, 'x') + "GET /next HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive().body, "GET /next? ");
}

TEST_F(HttpBodyTest, ClosesAfterAnAnswerThatLeavesALongBodyUnread) {
  handler_.on_begin = [](const RequestHead&) -> BodyPlan { return text_response(404, "no"); };
  SocketClient client = connect();
  client.send(put(std::string(8 * 1024 * 1024, 'x')));
  const ClientResponse response = client.receive();
  EXPECT_EQ(response.status, 404u);
  EXPECT_EQ(response.field("Connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
}

}  // namespace
}  // namespace cairn::http::testing
