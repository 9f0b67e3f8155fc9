#include <gtest/gtest.h>

#include <string>

#include "tests/server/http/http_fixture.hpp"

namespace cairn::http::testing {
namespace {

using std::string_literals::operator""s;

class HttpRequestTest : public HttpTest {
 protected:
  HttpRequestTest() { start(); }
};

TEST_F(HttpRequestTest, SplitsTheTargetAtTheFirstQuestionMark) {
  SocketClient client = connect();
  client.send("GET /a%20b/c?x=1?&y HTTP/1.1\r\nHost: x\r\n\r\n");
  const ClientResponse response = client.receive();
  EXPECT_EQ(response.status, 200u);
  EXPECT_EQ(response.body, "GET /a%20b/c?x=1?&y ");
}

TEST_F(HttpRequestTest, TakesATargetWithItsOrigin) {
  SocketClient client = connect();
  for (const auto& [target, path_and_query] :
       {std::pair<std::string, std::string>{"http://host:80/a/b?c", "/a/b?c"},
        {"http://host", "/?"},
        {"*", "*?"}}) {
    client.send("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(client.receive().body, "GET " + path_and_query + " ");
  }
}

TEST_F(HttpRequestTest, KnowsTheMethodsOfTheContract) {
  SocketClient client = connect();
  for (const std::string method : {"GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"}) {
    client.send(method + " / HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(client.receive().body, method + " /? ");
  }
  client.send("TRACE / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive().body, "OTHER /? ");
}

TEST_F(HttpRequestTest, GivesTheFieldsInAnyCaseAndTrimmed) {
  std::string seen;
  handler_.on_handle = [&seen](const Request& request, Responder respond) {
    for (std::string_view value :
         {request.content_type, request.content_encoding, request.accept, request.authorization,
          request.range, request.if_range, request.if_none_match, request.last_event_id}) {
      seen += std::string(value) + "|";
    }
    respond(text_response(200, ""));
  };
  SocketClient client = connect();
  client.send(
      "GET / HTTP/1.1\r\nHost: x\r\nCONTENT-TYPE:  a/b \r\nContent-Encoding: br\r\naccept: "
      "c/d\r\nAuthorization: Bearer "
      "t\r\n"
      "Range: bytes=0-1\r\nIf-Range: \"r\"\r\nIf-None-Match: \"e\"\r\nlast-event-id: "
      "17\r\nX-Other: z\r\n\r\n");
  EXPECT_EQ(client.receive().status, 200u);
  EXPECT_EQ(seen, "a/b|br|c/d|Bearer t|bytes=0-1|\"r\"|\"e\"|17|");
}

TEST_F(HttpRequestTest, TellsTheHostAndWhereTheRequestComesFrom) {
  std::string seen;
  handler_.on_handle = [&seen](const Request& request, Responder respond) {
    seen = std::string(request.host.value_or("none")) + "|" + std::string(request.origin) + "|" +
           std::string(request.sec_fetch_site) + "|" + std::string(request.traceparent) + "|" +
           request.ends->local_address;
    respond(text_response(200, ""));
  };
  SocketClient client = connect();
  client.send(
      "GET / HTTP/1.1\r\nHost: cairn:7070\r\norigin: http://a\r\nsec-fetch-site: none\r\n"
      "TraceParent: 00-1\r\n\r\n");
  EXPECT_EQ(client.receive().status, 200u);
  EXPECT_EQ(seen, "cairn:7070|http://a|none|00-1|127.0.0.1");
  client.send("GET http://evil.example/x HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.receive().status, 200u);
  EXPECT_EQ(seen, "evil.example||||127.0.0.1") << "an absolute target's host wins";
  client.send("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n");
  EXPECT_EQ(client.receive().status, 400u) << "one of two hosts would be believed";
  SocketClient old = connect();
  old.send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.receive().status, 200u);
  EXPECT_EQ(seen, "none||||127.0.0.1");
}

TEST_F(HttpRequestTest, AnswersPipelinedRequestsInOrder) {
  SocketClient client = connect();
  std::string all;
  constexpr int kRequests = 500;  // more than the server reads at once
  for (int i = 0; i < kRequests; ++i) {
    const std::string body(static_cast<std::size_t>(i), 'b');
    all += "POST /" + std::to_string(i) +
           " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           body;
  }
  std::thread sender([&] { client.send(all); });
  for (int i = 0; i < kRequests; ++i) {
    EXPECT_EQ(client.receive().body,
              "POST /" + std::to_string(i) + "? " + std::string(static_cast<std::size_t>(i), 'b'));
  }
  sender.join();
}

TEST_F(HttpRequestTest, TakesARequestByteByByte) {
  SocketClient client = connect();
  const std::string request =
      "PUT /path?query HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nAccept: y\r\n\r\nbody";
  for (std::size_t i = 0; i < request.size(); ++i) {
    ASSERT_TRUE(client.send(request.substr(i, 1)));
    ASSERT_TRUE(received(i + 1));  // each byte is a read of its own
  }
  EXPECT_EQ(client.receive().body, "PUT /path?query body");
}

TEST_F(HttpRequestTest, KeepsAnHttp11ConnectionUnlessToldToClose) {
  SocketClient client = connect();
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive().field("Connection"), std::nullopt);
  client.send("GET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.receive().field("Connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(HttpRequestTest, ClosesAnHttp10ConnectionUnlessToldToKeepIt) {
  SocketClient client = connect();
  client.send("GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(client.receive().field("Connection"), "keep-alive");
  client.send("GET /2 HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.receive().field("Connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(HttpRequestTest, AnswersAClientThatHasShutItsSendingSide) {
  SocketClient client = connect();
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n");
  client.shutdown_send();
  EXPECT_EQ(client.receive().body, "GET /1? ");
  EXPECT_EQ(client.receive().body, "GET /2? ");
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(HttpRequestTest, RefusesWhatIsNotHttpAndCloses) {
  struct Case {
    const char* name;
    std::string request;
    unsigned status;
  };
  const Case cases[] = {
      {"no request line", "\r\n\r\n", 400},
      {"no target", "GET HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"a control character in the target", "GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"a method with a brace", "G{T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"version 2.0", "GET / HTTP/2.0\r\n\r\n", 505},
      {"version 1.2", "GET / HTTP/1.2\r\n\r\n", 505},
      {"no version's number", "GET / HTTQ/1.1\r\n\r\n", 505},
      {"no colon in a field", "GET / HTTP/1.1\r\nHost: x\r\nbroken\r\n\r\n", 400},
      {"a space before the colon", "GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400},
      {"a NUL in a field", "GET / HTTP/1.1\r\nHost: x\r\nA: x\0y\r\n\r\n"s, 400},
      {"a bare LF", "GET / HTTP/1.1\r\nHost: x\nA: y\r\n\r\n", 400},
      {"a folded field", "GET / HTTP/1.1\r\nHost: x\r\nAccept: x\r\n y\r\n\r\n", 400},
      {"a length that is no number", "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400},
      {"a negative length", "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
      {"a length over 64 bits",
       "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"two lengths", "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
       400},
      {"a length and chunks",
       "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"a coding that is not known",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"a chunk size that is no number",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"a chunk longer than its size",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", 400},
  };
  for (const Case& c : cases) {
    SocketClient client = connect();
    client.send(c.request);
    const ClientResponse response = client.receive();
    EXPECT_EQ(response.status, c.status) << c.name;
    EXPECT_EQ(response.field("Connection"), "close") << c.name;
    EXPECT_TRUE(client.closed_by_server()) << c.name;
  }
}

TEST_F(HttpRequestTest, RefusesAnHttp11RequestWithoutOneHost) {
  for (const std::string fields : {"", "Accept: a\r\n", "Host: a\r\nHost: a\r\n"}) {
    SocketClient client = connect();
    client.send("GET / HTTP/1.1\r\n" + fields + "\r\n");
    EXPECT_EQ(client.receive().status, 400u) << fields;
    EXPECT_TRUE(client.closed_by_server());
  }
  SocketClient older = connect();
  older.send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(older.receive().status, 200u);
}

TEST_F(HttpRequestTest, TellsTheHeadOfARequestWhoseBodyWasRefused) {
  SocketClient client = connect();
  client.send("PUT /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n");
  EXPECT_EQ(client.receive().status, 413u);
  client = connect();
  client.send("PUT /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx");
  ASSERT_TRUE(eventually([&] { return server_->stats().connections_accepted == 2; }));
  client.close();
  ASSERT_TRUE(finished(2));
  const auto all = handler_.all_finished();
  EXPECT_EQ(all[0].path, "/1");
  EXPECT_EQ(all[1].path, "/2");
  EXPECT_EQ(all[1].status, kStatusLost);
}

TEST_F(HttpRequestTest, StillAnswersWhatCameBeforeAMalformedRequest) {
  SocketClient client = connect();
  client.send("GET /good HTTP/1.1\r\nHost: x\r\n\r\nbad\r\n\r\n");
  EXPECT_EQ(client.receive().body, "GET /good? ");
  EXPECT_EQ(client.receive().status, 400u);
}

TEST_F(HttpRequestTest, CountsEachRequestOnce) {
  SocketClient client = connect();
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\nHEAD /2 HTTP/1.1\r\nHost: x\r\n\r\nbad\r\n\r\n");
  client.receive();
  client.receive(/*to_head=*/true);
  client.receive();
  ASSERT_TRUE(eventually([&] { return handler_.all_finished().size() == 3; }));
  const auto finished = handler_.all_finished();
  EXPECT_EQ(finished[0].method, Method::get);
  EXPECT_EQ(finished[0].status, 200u);
  EXPECT_EQ(finished[1].method, Method::head);
  EXPECT_EQ(finished[1].path, "/2");
  EXPECT_EQ(finished[2].status, 400u);
  EXPECT_EQ(finished[2].path, "");
}

}  // namespace
}  // namespace cairn::http::testing
