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
        {"http://host?c", "/?c"},
        {"HTTPS://host/a", "/a?"}}) {
    client.send("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(client.receive().body, "GET " + path_and_query + " ");
  }
  client.send("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive().body, "OPTIONS *? ");
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

TEST_F(HttpRequestTest, ReadsFieldsInAnyCaseAndTrimsThem) {
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

TEST_F(HttpRequestTest, ReportsTheHostAndTheOrigin) {
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
  EXPECT_EQ(client.receive().status, 400u) << "two hosts are ambiguous";
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
    ASSERT_TRUE(received(i + 1));  // each byte is a separate read
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

TEST_F(HttpRequestTest, RefusesMalformedRequestsAndCloses) {
  struct Case {
    const char* name;
    std::string request;
    unsigned status;
  };
  const Case cases[] = {
      {"a bare line end before it", "\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"empty lines without an end", "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n", 400},
      {"a bare line end behind the start line", "GET / HTTP/1.1\nHost: x\r\n\r\n", 400},
      {"a target for a proxy", "GET host:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"a target without a host", "GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"a target with a user", "GET http://u@host/a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"a target of another scheme", "GET ftp://host/a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"a target with a fragment", "GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"a target that is no path", "GET a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"the whole server, for a GET", "GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"a connection to another", "CONNECT host:80 HTTP/1.1\r\nHost: host:80\r\n\r\n", 400},
      {"two spaces", "GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"a space before the first field", "GET / HTTP/1.1\r\n Host: x\r\nHost: x\r\n\r\n", 400},
      {"a space behind the version", "GET / HTTP/1.1 \r\nHost: x\r\n\r\n", 400},
      {"the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"no target", "GET HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"a control character in the target", "GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"a method with a brace", "G{T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"version 2.0", "GET / HTTP/2.0\r\n\r\n", 505},
      {"version 1.2", "GET / HTTP/1.2\r\n\r\n", 505},
      {"no version", "GET / HTTQ/1.1\r\n\r\n", 400},
      {"a version of two digits", "GET / HTTP/1.10\r\n\r\n", 400},
      {"no colon in a field", "GET / HTTP/1.1\r\nHost: x\r\nbroken\r\n\r\n", 400},
      {"a space before the colon", "GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400},
      {"a NUL in a field", "GET / HTTP/1.1\r\nHost: x\r\nA: x\0y\r\n\r\n"s, 400},
      {"a bare LF", "GET / HTTP/1.1\r\nHost: x\nA: y\r\n\r\n", 400},
      {"a bare CR", "GET / HTTP/1.1\r\nHost: x\rA: y\r\n\r\n", 400},
      {"a folded field", "GET / HTTP/1.1\r\nHost: x\r\nAccept: x\r\n y\r\n\r\n", 400},
      {"folded behind an empty line", "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n 1\r\n\r\nx",
       400},
      {"folded behind blanks", "GET / HTTP/1.1\r\nHost: x\r\nA: \t\r\n\ty\r\n\r\n", 400},
      {"folded twice", "GET / HTTP/1.1\r\nHost: x\r\nA:\r\n \r\n y\r\n\r\n", 400},
      {"folded into nothing", "GET / HTTP/1.1\r\nHost: x\r\nA: y\r\n \r\n\r\n", 400},
      {"empty and folded into nothing", "GET / HTTP/1.1\r\nHost: x\r\nA:\r\n \r\n\r\n", 400},
      {"a long field that is folded",
       "GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(5000, 'a') + "\r\n y\r\n\r\n", 400},
      {"a trailer that is folded",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA:\r\n b\r\n\r\n", 400},
      {"two tokens", "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n",
       400},
      {"two types", "GET / HTTP/1.1\r\nHost: x\r\nContent-Type: a\r\nContent-Type: b\r\n\r\n", 400},
      {"two codings of the body",
       "PUT / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Encoding: identity\r\n\r\n",
       400},
      {"an unknown expectation", "GET / HTTP/1.1\r\nHost: x\r\nExpect: a-miracle\r\n\r\n", 417},
      {"a known expectation with an unknown one",
       "GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue, a-miracle\r\n\r\n", 417},
      {"a length that is no number", "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400},
      {"a negative length", "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
      {"a length over 64 bits",
       "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"two lengths", "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
       400},
      {"a length and chunks",
       "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"two lengths in one field", "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 2\r\n\r\n",
       400},
      {"an empty length", "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", 400},
      {"a length with a sign", "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\nx", 400},
      {"chunks and a length",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
      {"chunks in HTTP/1.0",
       "PUT / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       400},
      {"a coding that hides the body's end",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", 400},
      {"no coding", "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n\r\n", 400},
      {"the identity coding", "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n",
       400},
      {"chunks of chunks",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 400},
      {"chunks of chunks in two fields",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: "
       "chunked\r\n\r\n",
       400},
      {"an unknown coding", "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
       501},
      {"a chunk size that is no number",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"a chunk longer than its size",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", 400},
      {"a chunk's line that ends in LF",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", 400},
      {"an extension with a line's end",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
       "chunked\r\n\r\n1;a=\"\n\"\r\na\r\n0\r\n\r\n",
       400},
      {"a length as a trailer",
       "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: "
       "1\r\n\r\n",
       400},
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

TEST_F(HttpRequestTest, SkipsEmptyLinesBeforeARequest) {
  SocketClient client = connect();
  for (const std::string lines : {"\r\n", "\r\n\r\n\r\n", ""}) {
    client.send(lines + "POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody\r\n");
    EXPECT_EQ(client.receive().body, "POST /1? body");
  }
  SocketClient slow = connect();
  std::uint64_t sent = server_->stats().bytes_received;
  for (const char byte : std::string("\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n")) {
    slow.send({&byte, 1});
    ASSERT_TRUE(received(++sent));
  }
  EXPECT_EQ(slow.receive().body, "GET /2? ");
}

// Such a client has sent no request, so it gets no 408.
TEST_F(HttpRequestTest, ConnectionIsIdleAfterAnEmptyLine) {
  SocketClient client = connect();
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive().status, 200u);
  const std::uint64_t before = server_->stats().bytes_received;
  client.send("\r\n");
  ASSERT_TRUE(received(before + 2));
  clock_.advance_ms(limits_.header_timeout_ms + 1);
  ASSERT_TRUE(has_ticked());
  client.send("GET /2 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive().body, "GET /2? ");
}

TEST_F(HttpRequestTest, ClosesIfAnyConnectionOptionIsClose) {
  for (const std::string fields : {"HTTP/1.1\r\nConnection: keep-alive, Close\r\n",
                                   "HTTP/1.1\r\nConnection: keep-alive\r\nConnection: close\r\n",
                                   "HTTP/1.0\r\nConnection: close, keep-alive\r\n"}) {
    SocketClient client = connect();
    client.send("GET / " + fields + "Host: x\r\n\r\n");
    EXPECT_EQ(client.receive().field("Connection"), "close") << fields;
    EXPECT_TRUE(client.closed_by_server()) << fields;
  }
}

TEST_F(HttpRequestTest, TakesChunksWithExtensionsAndTrailers) {
  SocketClient client = connect();
  for (const std::string chunks : {"4;a=b;c=\"d e\";f\r\nbody\r\n0;g\r\n\r\n",
                                   "0002\r\nbo\r\n2\r\ndy\r\n00\r\nX-Sum: 1\r\nHost: y\r\n\r\n"}) {
    client.send("PUT /1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n" + chunks);
    EXPECT_EQ(client.receive().body, "PUT /1? body") << chunks;
  }
}

// A body's framing has one limit in total. Otherwise chunks of one byte could send any amount.
TEST_F(HttpRequestTest, RefusesChunksWithTooMuchFraming) {
  const std::string extension = "1;" + std::string(1000, 'e') + "\r\na\r\n";
  const std::string padding = std::string(1000, '0') + "1\r\na\r\n";
  for (const std::string& chunk : {extension, padding}) {
    SocketClient client = connect();
    client.send("PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    std::string all;
    for (int i = 0; i < 20; ++i) all += chunk;
    client.send(all);
    EXPECT_EQ(client.receive().status, 400u);
  }
  SocketClient client = connect();
  std::string small;
  for (int i = 0; i < 5000; ++i) small += "1\r\na\r\n";
  client.send("PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + small +
              "0\r\n\r\n");
  EXPECT_EQ(client.receive().body, "PUT /? " + std::string(5000, 'a'));
}

TEST_F(HttpRequestTest, IgnoresExpectOfAnHttp10Client) {
  SocketClient client = connect();
  client.send("PUT /1 HTTP/1.0\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(received(1));
  client.send("body");
  EXPECT_EQ(client.receive().body, "PUT /1? body");
}

TEST_F(HttpRequestTest, RefusesAnHttp11RequestWithoutExactlyOneHost) {
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

TEST_F(HttpRequestTest, ReportsTheHeadOfARequestWithoutABody) {
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

TEST_F(HttpRequestTest, AnswersRequestsBeforeAMalformedOne) {
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
