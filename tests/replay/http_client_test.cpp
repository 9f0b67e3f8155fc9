#include "client/http_client.hpp"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <string>

#include "tests/fakes/temp_dir.hpp"
#include "tests/replay/scripted_server.hpp"

namespace cairn::replay_test {
namespace {

using client::HttpClient;
using client::HttpRequest;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(HttpClientTest, SendsTheRequestWithItsBodyInPieces) {
  ReceivedRequest seen;
  ScriptedServer server([&seen](const ReceivedRequest& request) {
    seen = request;
    return answer(200, "fine");
  });
  HttpClient http(server.endpoint(), {.bearer_token = "secret"});
  const std::string first = "one ", second = "two";
  const std::array pieces = {std::as_bytes(std::span(first)), std::as_bytes(std::span(second))};
  const client::HttpHeader header{"Content-Type", "text/plain"};
  const auto response = http.request(
      {.method = "PUT", .target = "/a/b?c=d", .headers = {&header, 1}, .body = pieces});
  ASSERT_TRUE(response) << response.error().detail;
  EXPECT_EQ(response->status, 200U);
  EXPECT_EQ(response->body, "fine");
  EXPECT_EQ(seen.method, "PUT");
  EXPECT_EQ(seen.target, "/a/b?c=d");
  EXPECT_EQ(seen.body, "one two");
  EXPECT_THAT(seen.head, testing::HasSubstr("\r\nContent-Type: text/plain\r\n"));
  EXPECT_THAT(seen.head, testing::HasSubstr("\r\nAuthorization: Bearer secret\r\n"));
  EXPECT_THAT(seen.head, testing::HasSubstr("\r\nHost: 127.0.0.1:" + server.endpoint().port));
}

TEST(HttpClientTest, ReadsAResponseInAnyPieces) {
  const std::string whole =
      "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nCairn-Matched: 3\r\n\r\n0123456789";
  for (std::size_t cut = 1; cut < whole.size(); ++cut) {
    ScriptedServer server([&whole, cut](const ReceivedRequest&) {
      return ScriptedAnswer{{whole.substr(0, cut), whole.substr(cut)}};
    });
    HttpClient http(server.endpoint());
    const auto response = http.request({});
    ASSERT_TRUE(response) << "cut at " << cut << ": " << response.error().detail;
    EXPECT_EQ(response->body, "0123456789") << "cut at " << cut;
    EXPECT_EQ(response->header("cairn-matched"), "3") << "cut at " << cut;
  }
}

TEST(HttpClientTest, ReadsTheBodyDirectlyIntoTheBuffer) {
  const std::string body = "abcdefghijklmnop";
  ScriptedServer server([&body](const ReceivedRequest&) {
    return ScriptedAnswer{{"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n" + body.substr(0, 3),
                           body.substr(3, 6), body.substr(9)}};
  });
  HttpClient http(server.endpoint());
  std::array<std::byte, 5> first{};
  std::array<std::byte, 11> second{};
  const std::array<std::span<std::byte>, 2> room = {first, second};
  const auto response = http.request({}, room);
  ASSERT_TRUE(response) << response.error().detail;
  EXPECT_EQ(response->room_bytes, body.size());
  EXPECT_EQ(text_of(first) + text_of(second), body);
  EXPECT_TRUE(response->body.empty());
}

TEST(HttpClientTest, RefusesABodyLargerThanTheBuffer) {
  ScriptedServer server([](const ReceivedRequest&) { return answer(200, "12345"); });
  HttpClient http(server.endpoint());
  std::array<std::byte, 4> four{};
  const std::span<std::byte> room = four;
  const auto response = http.request({}, {&room, 1});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code, client::kBadAnswer);
}

TEST(HttpClientTest, LeavesTheBufferAloneOnAnError) {
  ScriptedServer server([](const ReceivedRequest&) { return answer(404, "{\"code\":\"x\"}"); });
  HttpClient http(server.endpoint());
  std::array<std::byte, 64> bytes{};
  const std::span<std::byte> room = bytes;
  const auto response = http.request({}, {&room, 1});
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 404U);
  EXPECT_EQ(response->body, "{\"code\":\"x\"}");
  EXPECT_EQ(response->room_bytes, 0U);
  EXPECT_EQ(bytes[0], std::byte{0});
}

TEST(HttpClientTest, ReadsAChunkedBody) {
  ScriptedServer server([](const ReceivedRequest&) {
    return ScriptedAnswer{{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
                           "c\r\n2\r", "\nde\r\n0\r\n\r\n"}};
  });
  HttpClient http(server.endpoint());
  const auto text = http.request({});
  ASSERT_TRUE(text) << text.error().detail;
  EXPECT_EQ(text->body, "abcde");
  std::array<std::byte, 8> bytes{};
  const std::span<std::byte> room = bytes;
  const auto placed = http.request({}, {&room, 1});
  ASSERT_TRUE(placed) << placed.error().detail;
  EXPECT_EQ(text_of(std::span(bytes).first(placed->room_bytes)), "abcde");
  EXPECT_EQ(server.connections(), 1U);
}

TEST(HttpClientTest, SkipsAContinueBeforeTheResponse) {
  ScriptedServer server([](const ReceivedRequest&) {
    return ScriptedAnswer{
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"}};
  });
  HttpClient http(server.endpoint());
  const auto response = http.request({});
  ASSERT_TRUE(response) << response.error().detail;
  EXPECT_EQ(response->status, 201U);
  EXPECT_EQ(response->body, "ok");
}

TEST(HttpClientTest, ResponseToHeadHasNoBody) {
  ScriptedServer server([](const ReceivedRequest&) {
    return ScriptedAnswer{{"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n"}};
  });
  HttpClient http(server.endpoint());
  const auto response = http.request({.method = "HEAD"});
  ASSERT_TRUE(response) << response.error().detail;
  EXPECT_TRUE(response->body.empty());
  EXPECT_EQ(response->header("Content-Length"), "999999999999");
}

TEST(HttpClientTest, UsesOneConnectionForManyRequests) {
  ScriptedServer server([](const ReceivedRequest&) { return answer(200, "x"); });
  HttpClient http(server.endpoint());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(http.request({}));
  EXPECT_EQ(server.connections(), 1U);
}

TEST(HttpClientTest, OpensAnotherConnectionAfterAClose) {
  ScriptedServer server([](const ReceivedRequest&) {
    ScriptedAnswer reply = answer(200, "x", "text/plain", "Connection: close\r\n");
    reply.close = true;
    return reply;
  });
  HttpClient http(server.endpoint());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(http.request({.method = "POST"}));
  EXPECT_EQ(server.connections(), 3U);
}

// On the first connection the server reads the second request and closes without sending a byte. On
// other connections it responds.
ScriptedAnswer close_on_second_request(const ReceivedRequest& request,
                                       std::atomic<int>& on_first_connection) {
  if (request.connection == 0 && ++on_first_connection == 2) return {{}, true};
  return answer(200, "x");
}

TEST(HttpClientTest, RetriesAnIdempotentRequestIfItsConnectionCloses) {
  std::atomic<int> count = 0;
  ScriptedServer server(
      [&count](const ReceivedRequest& r) { return close_on_second_request(r, count); });
  HttpClient http(server.endpoint());
  ASSERT_TRUE(http.request({}));
  const auto again = http.request({});
  EXPECT_TRUE(again) << again.error().detail;
  EXPECT_EQ(server.connections(), 2U);
}

TEST(HttpClientTest, DoesNotRetryAPostThatMayHaveBeenDone) {
  std::atomic<int> count = 0;
  ScriptedServer server(
      [&count](const ReceivedRequest& r) { return close_on_second_request(r, count); });
  HttpClient http(server.endpoint());
  ASSERT_TRUE(http.request({.method = "POST"}));
  const auto again = http.request({.method = "POST"});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, client::kClosedUnanswered);
  EXPECT_EQ(again.error().status, 0U);
  EXPECT_EQ(server.connections(), 1U);
}

TEST(HttpClientTest, ReportsACutResponse) {
  ScriptedServer server([](const ReceivedRequest&) {
    return ScriptedAnswer{{"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"}, true};
  });
  HttpClient http(server.endpoint());
  const auto text = http.request({});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, client::kClosedEarly);
  std::array<std::byte, 10> bytes{};
  const std::span<std::byte> room = bytes;
  const auto placed = http.request({}, {&room, 1});
  ASSERT_FALSE(placed);
  EXPECT_EQ(placed.error().code, client::kClosedEarly);
}

TEST(HttpClientTest, ReportsAResponseThatIsNotHttp) {
  ScriptedServer server(
      [](const ReceivedRequest&) { return ScriptedAnswer{{"SSH-2.0-x\r\n\r\n"}}; });
  HttpClient http(server.endpoint());
  const auto response = http.request({});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code, client::kBadAnswer);
}

TEST(HttpClientTest, TimesOutIfTheServerSendsNothing) {
  ScriptedServer server([](const ReceivedRequest&) { return ScriptedAnswer{}; });
  HttpClient http(server.endpoint(), {.timeout_ms = 50});
  const auto response = http.request({});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code, client::kTimeout);
}

TEST(HttpClientTest, ReportsThatNobodyListens) {
  client::Endpoint endpoint;
  {
    ScriptedServer gone([](const ReceivedRequest&) { return answer(200, ""); });
    endpoint = gone.endpoint();
  }
  HttpClient http(endpoint);
  const auto response = http.request({});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code, client::kNotConnected);
}

TEST(HttpClientTest, TalksOverAUnixSocket) {
  const fakes::TempDir folder;
  const std::string path = (folder.path() / "server.sock").string();
  ScriptedServer server([](const ReceivedRequest&) { return answer(200, "unix"); }, path);
  const auto endpoint = client::Endpoint::parse("unix:" + path);
  ASSERT_TRUE(endpoint);
  HttpClient http(*endpoint);
  const auto response = http.request({});
  ASSERT_TRUE(response) << response.error().detail;
  EXPECT_EQ(response->body, "unix");
}

TEST(EndpointTest, ReadsTheFormsOfAUrl) {
  const auto tcp = client::Endpoint::parse("http://127.0.0.1:7070");
  ASSERT_TRUE(tcp);
  EXPECT_EQ(tcp->host, "127.0.0.1");
  EXPECT_EQ(tcp->port, "7070");
  EXPECT_EQ(tcp->authority(), "127.0.0.1:7070");
  const auto ipv6 = client::Endpoint::parse("http://[::1]:81/");
  ASSERT_TRUE(ipv6);
  EXPECT_EQ(ipv6->host, "::1");
  EXPECT_EQ(ipv6->authority(), "[::1]:81");
  const auto no_port = client::Endpoint::parse("http://cairn.example");
  ASSERT_TRUE(no_port);
  EXPECT_EQ(no_port->port, "80");
  EXPECT_FALSE(no_port->tls);
  const auto tls = client::Endpoint::parse("https://cairn.example");
  ASSERT_TRUE(tls);
  EXPECT_EQ(tls->authority(), "cairn.example:443");
  EXPECT_TRUE(tls->tls);
}

TEST(EndpointTest, RefusesInvalidUrls) {
  for (const char* url : {"", "127.0.0.1:7070", "ftp://x", "https://", "http://", "http://:80",
                          "http://x:0", "http://x:70000", "http://x:7070x", "http://x/path",
                          "http://[::1", "http://a@b:80", "unix:relative"}) {
    EXPECT_FALSE(client::Endpoint::parse(url)) << url;
  }
}

}  // namespace
}  // namespace cairn::replay_test
