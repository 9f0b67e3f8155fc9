#include <gtest/gtest.h>

#include <new>
#include <string>
#include <thread>

#include "tests/server/http/http_fixture.hpp"
#include "tests/server/http/scripted_bodies.hpp"

namespace cairn::http::testing {
namespace {

class HttpUploadTest : public HttpTest {
 protected:
  HttpUploadTest() { start(); }
  ~HttpUploadTest() override { server_.reset(); }

  // A PUT becomes an upload that calls `next`. Other requests are collected.
  void upload(
      ScriptedUpload::Next next, ScriptedUpload::Finish finish = [](Responder respond) {
        respond(text_response(201, "stored"));
      }) {
    handler_.on_begin = [this, next = std::move(next),
                         finish = std::move(finish)](const RequestHead& head) -> BodyPlan {
      if (head.method != Method::put) return CollectBody{0};
      auto alive = std::make_shared<int>();
      alive_ = alive;
      return std::make_unique<ScriptedUpload>(std::move(alive), next, finish);
    };
  }
  static std::string head(std::size_t bytes) {
    return "PUT /p HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(bytes) + "\r\n\r\n";
  }

  std::weak_ptr<int> alive_;  // only the network thread uses it until the request ends
};

TEST_F(HttpUploadTest, WritesTheBodyInPlaceAndNothingBehindIt) {
  const std::vector<std::size_t> pieces = {1, 4095, 70'000, 3, 200'000};
  Scattered* rooms[] = {&memory(pieces, '.'), &memory(pieces, '.')};
  std::size_t asked = 0;
  upload([&](auto ready) { ready(rooms[asked++]->pieces()); });
  const std::size_t room_bytes = rooms[0]->text().size();
  const std::string body = pattern(room_bytes + 100'000);
  SocketClient client = connect();
  client.send(head(body.size()) + body + "GET /next HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive().body, "stored");
  EXPECT_EQ(client.receive().body, "GET /next? ");
  EXPECT_EQ(asked, 2u);
  EXPECT_TRUE(alive_.expired());
  EXPECT_TRUE(rooms[0]->text() + rooms[1]->text() ==
              body + std::string(2 * room_bytes - body.size(), '.'));
}

TEST_F(HttpUploadTest, TakesMorePiecesThanOneSystemCallDoes) {
  Scattered& room = memory(std::vector<std::size_t>(5000, 7));
  upload([&](auto ready) { ready(room.pieces()); });
  const std::string body = pattern(5000 * 7);
  SocketClient client = connect();
  client.send(head(body.size()) + body);
  EXPECT_EQ(client.receive().status, 201u);
  EXPECT_TRUE(room.text() == body);
}

TEST_F(HttpUploadTest, TakesRoomAndAnswerFromAnotherThread) {
  Scattered& room = memory({1000, 1000});
  std::vector<std::thread> others;
  upload(
      [&](auto ready) {
        others.emplace_back([&room, ready = std::move(ready)]() mutable { ready(room.pieces()); });
      },
      [&](Responder respond) {
        others.emplace_back(
            [respond = std::move(respond)]() mutable { respond(text_response(201, "later")); });
      });
  const std::string body = pattern(4000);
  SocketClient client = connect();
  client.send(head(body.size()) + body);
  EXPECT_EQ(client.receive().body, "later");
  for (std::thread& other : others) other.join();
  EXPECT_EQ(others.size(), 3u);
  EXPECT_TRUE(room.text() == body.substr(2000));
}

TEST_F(HttpUploadTest, ReportsAnErrorAndCloses) {
  upload([](auto ready) { ready(Error{ErrorCode::no_capacity, "full"}); });
  SocketClient client = connect();
  client.send(head(8 * 1024 * 1024) + std::string(8 * 1024 * 1024, 'x'));
  const ClientResponse response = client.receive();
  EXPECT_EQ(response.status, 507u);
  EXPECT_EQ(response.body, "failed: full");
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_TRUE(alive_.expired());
}

TEST_F(HttpUploadTest, SendsContinueOnlyOnceThereIsRoom) {
  Scattered& room = memory({4});
  bool full = false;
  upload([&](auto ready) {
    if (full) return ready(Error{ErrorCode::no_capacity, "full"});
    ready(room.pieces());
  });
  const std::string request =
      "PUT /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
  SocketClient client = connect();
  client.send(request);
  EXPECT_EQ(client.receive().status, 100u);
  client.send("body");
  EXPECT_EQ(client.receive().status, 201u);
  full = true;
  client.send(request);
  EXPECT_EQ(client.receive().status, 507u);
}

TEST_F(HttpUploadTest, ReportsAnUploadThatDropsItsCallback) {
  upload([](auto ready) { auto dropped = std::move(ready); });
  SocketClient client = connect();
  client.send(head(10));
  EXPECT_EQ(client.receive().status, 507u);
}

TEST_F(HttpUploadTest, ThrowingUploadLosesOnlyItsConnection) {
  Scattered& room = memory({10});
  const auto none = [](auto) { throw std::bad_alloc(); };
  const auto some = [&](auto ready) { ready(room.pieces()); };
  for (const ScriptedUpload::Next& next :
       {ScriptedUpload::Next(none), ScriptedUpload::Next(some)}) {
    upload(next, [](Responder) { throw std::bad_alloc(); });
    SocketClient client = connect();
    client.send(head(10) + "0123456789");
    EXPECT_EQ(client.receive_bytes(1), "");
    ASSERT_TRUE(none_open());
    EXPECT_TRUE(alive_.expired());
  }
  SocketClient other = connect();
  other.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(other.receive().status, 200u);
}

TEST_F(HttpUploadTest, ReportsAnUploadThatGivesNoRoom) {
  upload([](auto ready) { ready(std::span<const iovec>{}); });
  SocketClient client = connect();
  client.send(head(10));
  EXPECT_EQ(client.receive().status, 507u);
}

TEST_F(HttpUploadTest, NeedsALength) {
  upload([](auto ready) { ready(Error{}); });
  for (const std::string request :
       {"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: x\r\n\r\n"}) {
    SocketClient client = connect();
    client.send(request);
    EXPECT_EQ(client.receive().status, 411u);
  }
}

TEST_F(HttpUploadTest, LostConnectionEndsTheUpload) {
  Scattered& room = memory({1000});
  upload([&](auto ready) { ready(room.pieces()); });
  SocketClient client = connect();
  client.send(head(100'000) + pattern(5'500));
  ASSERT_TRUE(received(5'500));
  client.close();
  ASSERT_TRUE(none_open());
  EXPECT_TRUE(alive_.expired());
  const auto finished = handler_.all_finished();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].status, kStatusLost);
}

TEST_F(HttpUploadTest, StalledBodyTimesOut) {
  Scattered& room = memory({1000});
  upload([&](auto ready) { ready(room.pieces()); });
  SocketClient client = connect();
  const std::string sent = head(100'000) + pattern(500);
  client.send(sent);
  ASSERT_TRUE(received(sent.size()));
  clock_.advance_ms(limits_.body_timeout_ms - 1);
  client.send("more");
  ASSERT_TRUE(received(sent.size() + 4));
  EXPECT_EQ(receive_in_time(client, limits_.body_timeout_ms).status, 408u);
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_TRUE(alive_.expired());
}

TEST_F(HttpUploadTest, RoomAfterTheServersEndIsHarmless) {
  Scattered& room = memory({1000});
  UniqueFunction<void(Upload::Room)> late;
  std::atomic<bool> asked{false};
  upload([&](auto ready) {
    late = std::move(ready);
    asked = true;
  });
  SocketClient client = connect();
  client.send(head(10) + "0123456789");
  ASSERT_TRUE(eventually([&] { return asked.load(); }));
  server_.reset();
  EXPECT_TRUE(alive_.expired());
  late(room.pieces());
  EXPECT_EQ(room.text(), std::string(1000, '\0'));
}

}  // namespace
}  // namespace cairn::http::testing
