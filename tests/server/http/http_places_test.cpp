// Which connections keep their places at the limit.
#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <string>

#include "server/http/places.hpp"
#include "tests/fakes/temp_dir.hpp"
#include "tests/server/http/http_fixture.hpp"

namespace cairn::http::testing {
namespace {

// A request for /wait gets its response when the test ends.
class HttpPlacesTest : public HttpTest {
 protected:
  HttpPlacesTest() {
    clock_.advance_ms(60'000);
    listen_.unix_path = (folder_.path() / "socket").string();
    handler_.on_handle = [this](const Request& request, Responder respond) {
      if (!request.path.starts_with("/wait")) return respond(TestHandler::echo(request));
      MutexLock lock(mutex_);
      waiting_.push_back(std::move(respond));
    };
  }
  ~HttpPlacesTest() override {
    server_.reset();
    MutexLock lock(mutex_);
    waiting_.clear();
  }

  void start_with(std::uint32_t max_connections) {
    limits_.max_connections = max_connections;
    start();
  }
  static std::string get(const std::string& path) {
    return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  // A connection whose request is in progress.
  SocketClient busy() {
    SocketClient client = connect();
    const std::size_t before = waiting();
    client.send(get("/wait"));
    EXPECT_TRUE(eventually([&] { return waiting() == before + 1; }));
    return client;
  }
  // A connection that has received a response.
  SocketClient idle(const std::string& path = "/") {
    SocketClient client = connect();
    EXPECT_EQ(asked(client, path), 200u);
    return client;
  }
  // A connection that has sent nothing.
  SocketClient silent() {
    const std::uint64_t before = server_->stats().connections_open;
    SocketClient client = connect();
    EXPECT_TRUE(eventually([&] { return server_->stats().connections_open == before + 1; }));
    return client;
  }
  // Returns once the server has finished the request, a moment after the client gets the response.
  unsigned asked(SocketClient& client, const std::string& path = "/") {
    const std::size_t before = handler_.all_finished().size();
    client.send(get(path));
    const unsigned status = client.receive().status;
    EXPECT_TRUE(eventually([&] { return handler_.all_finished().size() > before; }));
    return status;
  }
  std::size_t waiting() {
    MutexLock lock(mutex_);
    return waiting_.size();
  }

  const fakes::TempDir folder_;
  Mutex mutex_;
  std::vector<Responder> waiting_ CAIRN_GUARDED_BY(mutex_);
};

TEST_F(HttpPlacesTest, Returns503IfAllConnectionsAreBusy) {
  start_with(2);
  SocketClient first = busy();
  const SocketClient second = busy();
  SocketClient third = connect();
  third.send(get("/"));
  const ClientResponse refused = third.receive();
  EXPECT_EQ(refused.status, 503u);
  EXPECT_EQ(refused.field("Connection"), "close");
  EXPECT_TRUE(third.closed_by_server());
  EXPECT_EQ(server_->stats().connections_refused, 1u);
  first.close();
  ASSERT_TRUE(eventually([&] { return server_->stats().connections_open == 1; }));
  SocketClient fourth = connect();
  EXPECT_EQ(asked(fourth), 200u);
}

TEST_F(HttpPlacesTest, AnswersLivenessProbesWhileAllConnectionsAreBusy) {
  start_with(1);
  const SocketClient first = busy();
  for (int i = 0; i < 100; ++i) {
    SocketClient probe = connect();
    probe.send(get("/alive"));
    const ClientResponse answer = probe.receive();
    EXPECT_EQ(answer.status, 200u);
    EXPECT_EQ(answer.field("Connection"), "close") << "the next connection needs the place";
  }
  EXPECT_EQ(server_->stats().connections_refused, 0u);
}

TEST_F(HttpPlacesTest, LivenessProbeClosesNoConnection) {
  start_with(1);
  SocketClient first = idle();
  clock_.advance(Places::kLeastIdle);
  SocketClient probe = connect();
  EXPECT_EQ(asked(probe, "/alive"), 200u);
  EXPECT_EQ(asked(first), 200u);
}

TEST_F(HttpPlacesTest, LongestIdleConnectionGivesWay) {
  start_with(3);
  SocketClient first = idle();
  SocketClient second = idle();
  SocketClient third = idle();
  clock_.advance_ms(1);
  EXPECT_EQ(asked(first), 200u);  // now the second is idle longest
  clock_.advance_ms(1);
  EXPECT_EQ(asked(third), 200u);
  clock_.advance(Places::kLeastIdle);
  SocketClient more = connect();
  EXPECT_EQ(asked(more), 200u);
  EXPECT_TRUE(second.closed_by_server());
  EXPECT_EQ(asked(first), 200u);
  EXPECT_EQ(asked(third), 200u);
  EXPECT_EQ(asked(more), 200u) << "it has a place like any other";
}

TEST_F(HttpPlacesTest, BrieflyIdleConnectionDoesNotGiveWay) {
  start_with(1);
  SocketClient first = idle();
  SocketClient second = connect();
  second.send(get("/"));
  ASSERT_TRUE(received(2 * get("/").size()));
  ASSERT_TRUE(has_ticked());
  EXPECT_EQ(asked(first), 200u) << "it was idle only briefly";
  clock_.advance(Places::kLeastIdle);
  EXPECT_EQ(second.receive().status, 200u);
  EXPECT_TRUE(first.closed_by_server());
}

TEST_F(HttpPlacesTest, UnusedConnectionGivesWayFirst) {
  start_with(2);
  SocketClient used = idle();
  clock_.advance(Places::kLeastIdle);
  SocketClient never = silent();
  SocketClient more = connect();
  EXPECT_EQ(asked(more), 200u);
  EXPECT_TRUE(never.closed_by_server());
  EXPECT_EQ(asked(used), 200u);
}

TEST_F(HttpPlacesTest, ConnectionWithHalfAHeadGivesWay) {
  start_with(1);
  SocketClient half = connect();
  half.send("GET / HTT");
  ASSERT_TRUE(received(9));
  clock_.advance(Places::kLeastIdle);
  SocketClient more = connect();
  EXPECT_EQ(asked(more), 200u);
  EXPECT_TRUE(half.closed_by_server());
}

TEST_F(HttpPlacesTest, ConnectionThatMustStayOpenKeepsItsPlace) {
  start_with(1);
  SocketClient first = idle("/stay");
  clock_.advance(Places::kLeastIdle);
  SocketClient second = connect();
  EXPECT_EQ(asked(second), 503u);
  EXPECT_EQ(asked(first), 200u);
}

// A client that also takes the places beyond the limit keeps nobody out.
TEST_F(HttpPlacesTest, LongestWaitingExtraConnectionGivesWay) {
  limits_.threads = 2;
  start_with(1);
  const SocketClient first = busy();
  std::deque<SocketClient> crowd;
  for (std::uint32_t i = 0; i < 3 * Places::kBeyond; ++i) {
    crowd.push_back(connect());
    if (i % 3 == 1) crowd.back().send("GET");
    // This client never reads its response.
    if (i % 3 == 2)
      crowd.back().send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n");
  }
  ASSERT_TRUE(
      eventually([&] { return server_->stats().connections_accepted == 3 * Places::kBeyond + 1; }));
  for (int i = 0; i < 10; ++i) {
    SocketClient probe = connect();
    EXPECT_EQ(asked(probe, "/alive"), 200u);
  }
  EXPECT_TRUE(eventually([&] { return server_->stats().connections_open <= 1 + Places::kBeyond; }));
}

// Regression: it was refused if others connected faster than the closed ones could leave.
TEST_F(HttpPlacesTest, NewConnectionWaitsWhileOthersGiveWay) {
  std::promise<void> goes_on;
  const std::shared_future<void> held = goes_on.get_future().share();
  handler_.on_handle = [held](const Request& request, Responder respond) {
    if (request.path == "/hold") held.wait();
    respond(TestHandler::echo(request));
  };
  limits_.threads = 2;
  start_with(1);
  SocketClient holds = connect();  // one of the two threads
  holds.send(get("/hold"));
  ASSERT_TRUE(received(get("/hold").size()));
  std::deque<SocketClient> crowd;
  for (std::uint32_t i = 0; i < 5 * Places::kBeyond; ++i) crowd.push_back(connect());
  ASSERT_TRUE(
      eventually([&] { return server_->stats().connections_open == 1 + 2 * Places::kBeyond; }));
  SocketClient last = connect();
  last.send(get("/alive"));
  goes_on.set_value();
  EXPECT_EQ(last.receive().status, 200u);
  EXPECT_EQ(holds.receive().status, 200u);
}

TEST_F(HttpPlacesTest, NoEndlessResponseBeginsOverTheLimit) {
  std::vector<UniqueFunction<void(Download::Pieces)>> kept;
  handler_.on_begin = [&kept](const RequestHead&) -> BodyPlan {
    Response response = text_response(200, "");
    response.endless = true;
    response.download = std::make_unique<ScriptedDownload>(
        nullptr, [&kept](auto ready) { kept.push_back(std::move(ready)); });
    return response;
  };
  start_with(1);
  SocketClient first = connect();
  first.send(get("/"));
  ASSERT_TRUE(received(get("/").size()));
  SocketClient second = connect();
  EXPECT_EQ(asked(second), 503u);
  server_.reset();
}

TEST_F(HttpPlacesTest, UnixSocketHasItsOwnPlaces) {
  limits_.max_unix_connections = 1;
  start_with(1);
  const SocketClient first = busy();
  SocketClient local = SocketClient::local(listen_.unix_path);
  EXPECT_EQ(asked(local), 200u);
  const std::size_t before = waiting();
  local.send(get("/wait"));
  ASSERT_TRUE(eventually([&] { return waiting() == before + 1; }));
  SocketClient more = SocketClient::local(listen_.unix_path);
  EXPECT_EQ(asked(more), 503u);
  SocketClient probe = SocketClient::local(listen_.unix_path);
  EXPECT_EQ(asked(probe, "/alive"), 200u);
}

}  // namespace
}  // namespace cairn::http::testing
