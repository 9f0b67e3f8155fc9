#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/temp_dir.hpp"
#include "tests/server/http/http_fixture.hpp"
#include "tests/server/http/scripted_bodies.hpp"

namespace cairn::http::testing {
namespace {

// Requests wait until the test responds to them.
class HttpLifetimeTest : public HttpTest {
 protected:
  HttpLifetimeTest() {
    listen_.unix_path = (folder_.path() / "socket").string();
    handler_.on_handle = [this](const Request&, Responder respond) {
      MutexLock lock(mutex_);
      waiting_.push_back(std::move(respond));
    };
  }
  ~HttpLifetimeTest() override { server_.reset(); }

  // The responder of the next request, in the order of arrival.
  Responder take() {
    EXPECT_TRUE(eventually([this] {
      MutexLock lock(mutex_);
      return !waiting_.empty();
    }));
    MutexLock lock(mutex_);
    Responder respond = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    return respond;
  }

  const fakes::TempDir folder_;
  Mutex mutex_;
  std::vector<Responder> waiting_ CAIRN_GUARDED_BY(mutex_);
};

TEST_F(HttpLifetimeTest, SendsAnAnswerFromAnotherThread) {
  start();
  SocketClient client = connect();
  for (int i = 0; i < 3; ++i) {
    client.send(kGet);
    Responder respond = take();
    respond(text_response(200, std::to_string(i)));
    EXPECT_EQ(client.receive().body, std::to_string(i));
  }
}

TEST_F(HttpLifetimeTest, AnswersManyClientsFromManyThreads) {
  limits_.threads = 3;
  std::vector<std::thread> workers;
  Mutex mutex;
  handler_.on_handle = [&](const Request& request, Responder respond) {
    MutexLock lock(mutex);
    workers.emplace_back(
        [respond = std::move(respond), path = std::string(request.path)]() mutable {
          respond(text_response(200, path));
        });
  };
  start();
  std::vector<std::thread> clients;
  for (int c = 0; c < 6; ++c) {
    clients.emplace_back([this, c] {
      SocketClient client = connect();
      for (int i = 0; i < 50; ++i) {
        const std::string path = "/" + std::to_string(c) + "/" + std::to_string(i);
        client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
        EXPECT_EQ(client.receive().body, path);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (std::thread& worker : workers) worker.join();
  EXPECT_TRUE(finished(300));
}

TEST_F(HttpLifetimeTest, KeepsTheOrderOfPipelinedRequestsThatWait) {
  start();
  SocketClient client = connect();
  client.send(std::string(kGet) + std::string(kGet));
  for (const std::string answer : {"first", "second"}) {
    Responder respond = take();
    respond(text_response(200, answer));
    EXPECT_EQ(client.receive().body, answer);
  }
}

TEST_F(HttpLifetimeTest, Answers500ForADroppedRequest) {
  start();
  SocketClient client = connect();
  client.send(kGet);
  { const Responder dropped = take(); }
  EXPECT_EQ(client.receive().status, 500u);
  handler_.on_handle = [](const Request&, Responder) {};  // on the connection's own thread
  client.send(kGet);
  EXPECT_EQ(client.receive().status, 500u);
  EXPECT_TRUE(finished(2));
}

TEST_F(HttpLifetimeTest, Answers500IfTheHandlerThrowsAtTheHead) {
  handler_.on_begin = [](const RequestHead& head) -> BodyPlan {
    if (head.path == "/bad") throw std::length_error("a bug of the handler's");
    return text_response(200, "");
  };
  start();
  SocketClient client = connect();
  client.send("PUT /bad HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_EQ(client.receive().status, 500u);
  SocketClient other = connect();
  other.send("GET /good HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(other.receive().status, 200u);
}

TEST_F(HttpLifetimeTest, AnswerToADepartedClientIsHarmless) {
  start();
  SocketClient client = connect();
  client.send(kGet);
  Responder respond = take();
  client.close();
  // More than a socket buffers, so that the write notices it.
  respond(text_response(200, std::string(16 << 20, 'x')));
  EXPECT_TRUE(none_open());
  EXPECT_TRUE(finished(1));
}

TEST_F(HttpLifetimeTest, NoticesAClientThatLeavesWhileItsRequestWaits) {
  start();
  for (const bool local : {false, true}) {
    for (const bool pipelined : {false, true}) {
      SocketClient client = local ? SocketClient::local(listen_.unix_path) : connect();
      client.send(std::string(kGet) + (pipelined ? std::string(kGet) : ""));
      const Responder waiting = take();
      client.close();
      EXPECT_TRUE(none_open()) << local << pipelined;
    }
  }
  ASSERT_TRUE(finished(4));
  for (const Finished& request : handler_.all_finished()) EXPECT_EQ(request.status, kStatusLost);
}

TEST_F(HttpLifetimeTest, AnswersAHalfClosedClient) {
  start();
  SocketClient client = connect();
  client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  SocketClient local = SocketClient::local(listen_.unix_path);
  local.send(kGet);
  Responder first = take();
  Responder second = take();
  client.shutdown_send();
  local.shutdown_send();
  ASSERT_TRUE(has_ticked());
  ASSERT_TRUE(has_ticked());
  first(text_response(200, "at last"));
  second(text_response(200, "at last"));
  EXPECT_EQ(client.receive().body, "at last");
  EXPECT_EQ(local.receive().body, "at last");
}

TEST_F(HttpLifetimeTest, HalfCloseEndsAnEndlessResponse) {
  handler_.on_begin = [](const RequestHead&) -> BodyPlan {
    static char text[] = "hello";
    static iovec piece{text, 5};
    Response response = text_response(200, "");
    response.endless = true;
    auto asked = std::make_shared<int>(0);
    auto kept = std::make_shared<UniqueFunction<void(Download::Pieces)>>();
    response.download = std::make_unique<ScriptedDownload>(nullptr, [asked, kept](auto ready) {
      if (++*asked == 1) return ready(std::span<const iovec>(&piece, 1));
      *kept = std::move(ready);
    });
    return response;
  };
  start();
  for (const bool local : {false, true}) {
    SocketClient client = local ? SocketClient::local(listen_.unix_path) : connect();
    client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(client.receive_bytes(12), "HTTP/1.1 200");
    client.shutdown_send();
    EXPECT_TRUE(none_open()) << local;
  }
}

TEST_F(HttpLifetimeTest, AnswerAfterTheServersEndIsHarmless) {
  start();
  SocketClient client = connect();
  client.send(kGet);
  SocketClient second = connect();
  second.send(kGet);
  Responder respond = take();
  {
    const Responder dropped_after = [this] {
      Responder other = take();
      server_.reset();
      return other;
    }();
  }
  respond(text_response(200, "late"));
  EXPECT_TRUE(client.closed_by_server());
  const auto finished = handler_.all_finished();
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(finished[0].status, kStatusLost);
}

TEST_F(HttpLifetimeTest, StoppingCutsADownloadInProgress) {
  Scattered& body = memory({1 << 20}, 'y');
  auto alive = std::make_shared<int>();
  std::weak_ptr<int> watched = alive;
  handler_.on_handle = [&](const Request&, Responder respond) {
    Response response;
    response.download = std::make_unique<ScriptedDownload>(
        std::move(alive), [&](auto ready) { ready(body.pieces()); });
    response.download_bytes = 1ull << 40;
    respond(std::move(response));
  };
  start();
  SocketClient client = connect();
  client.send(kGet);
  EXPECT_EQ(client.receive_bytes(1 << 20).size(), std::size_t{1 << 20});
  server_.reset();
  EXPECT_TRUE(watched.expired());
}

TEST_F(HttpLifetimeTest, DrainingFinishesOpenRequestsAndAcceptsNoNewOnes) {
  limits_.threads = 2;
  start();
  SocketClient idle = connect();
  SocketClient busy = connect();
  busy.send(kGet);
  Responder respond = take();
  const std::uint16_t port = server_->port();

  auto drained = std::async(std::launch::async, [this] { return server_->drain(20'000); });
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_TRUE(eventually([port] { return !SocketClient::tcp(port).connected(); }));
  respond(text_response(200, "finished"));
  const ClientResponse response = busy.receive();
  EXPECT_EQ(response.body, "finished");
  EXPECT_EQ(response.field("Connection"), "close");
  EXPECT_TRUE(busy.closed_by_server());
  EXPECT_TRUE(drained.get());
  EXPECT_EQ(server_->stats().connections_open, 0u);
}

TEST_F(HttpLifetimeTest, DrainingCutsRequestsThatDoNotEnd) {
  start();
  SocketClient busy = connect();
  busy.send(kGet);
  Responder respond = take();
  EXPECT_FALSE(server_->drain(1));
  EXPECT_TRUE(busy.closed_by_server());
  respond(text_response(200, "too late"));
}

TEST_F(HttpLifetimeTest, DrainingAnIdleServerCutsNothing) {
  start();
  EXPECT_TRUE(server_->drain(20'000));
  EXPECT_TRUE(server_->drain(20'000));
}

TEST_F(HttpLifetimeTest, CountsConnectionsAndBytes) {
  start();
  SocketClient client = connect();
  client.send(kGet);
  Responder respond = take();
  respond(text_response(200, "12345"));
  const ClientResponse response = client.receive();
  EXPECT_TRUE(eventually(
      [&] { return server_->stats().bytes_sent == response.head.size() + response.body.size(); }));
  const HttpServerStats stats = server_->stats();
  EXPECT_EQ(stats.bytes_received, kGet.size());
  EXPECT_EQ(stats.connections_accepted, 1u);
  EXPECT_EQ(stats.connections_open, 1u);
  EXPECT_EQ(stats.connections_refused, 0u);
}

}  // namespace
}  // namespace cairn::http::testing
