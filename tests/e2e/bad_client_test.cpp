#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/unharmed_test.hpp"

// Clients that are slow, vanish in the middle of a request, or do not speak HTTP.
namespace cairn::e2e {
namespace {

using testing::StartsWith;

class BadClientTest : public UnharmedTest {
 protected:
  // Short timeouts, so that a test can wait for them. An honest client here is a hundred times
  // faster.
  static void SetUpTestSuite() {
    start({"--header-timeout-ms", "500", "--body-timeout-ms", "500"});
  }

  static std::string upload_head(const std::string& method, const std::string& target,
                                 std::size_t bytes) {
    return head_text(
        method, target,
        {"Content-Type: application/octet-stream", "Content-Length: " + std::to_string(bytes)});
  }
  // Waits until this many slots of a tier are being filled.
  bool filling(const std::string& tier, int count) {
    return eventually([&] { return cache_.count(tier, "allocated") == count; });
  }
  std::string write_of_three() {
    return write_body({{"keys", keys(20, 3)}, {"tier", "pinned"}}, blocks(20, 3));
  }
};

class CutUploadTest : public BadClientTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Tiers, CutUploadTest, testing::ValuesIn(kTierNames),
                         [](const auto& tier) { return std::string(tier.param); });

TEST_P(CutUploadTest, CutKeyUploadLeavesNothingBehind) {
  {
    RawConnection client(server().endpoint());
    client.send(
        upload_head("PUT", cache_.key_path(9, std::string("?tier=") + GetParam()), kBlockBytes));
    client.send(block(9).substr(0, kBlockBytes / 2));
    EXPECT_TRUE(filling(GetParam(), 1));
  }
  expect_unharmed();
  EXPECT_FALSE(cache_.holds(9));
  cache_.store(9, std::string("?tier=") + GetParam());
  cache_.expect_intact(9);
  keep();
}

TEST_P(CutUploadTest, CutSlotUploadLeavesTheSlotToItsLease) {
  const json allocation = cache_.allocate(1, GetParam());
  const json& handle = allocation.at("blocks").at(0);
  keep();
  {
    RawConnection client(server().endpoint());
    client.send(upload_head("PUT", cache_.data_path(handle, allocation.at("lease")), kBlockBytes));
    client.send(block(8).substr(0, kBlockBytes - 1));
  }
  expect_unharmed();
  // The vanished client's write does not block the next one.
  EXPECT_TRUE(eventually([&] {
    return rest_.put_bytes(cache_.data_path(handle, allocation.at("lease")), block(9)).ok();
  }));
  EXPECT_TRUE(rest_
                  .post(cache_.path("/commit"), {{"lease", allocation.at("lease")},
                                                 {"blocks", {TestCache::commit_block(handle, 9)}}})
                  .ok());
  EXPECT_EQ(cache_.expect_intact(9), GetParam());
  EXPECT_TRUE(rest_.del("/v1/leases/" + allocation.at("lease").get<std::string>()).ok());
  keep();
}

// The slot may hold bytes of both uploads.
TEST_P(CutUploadTest, CutSlotRewriteIsNotPublished) {
  const json allocation = cache_.allocate(1, GetParam());
  const json& handle = allocation.at("blocks").at(0);
  const std::string data_path = cache_.data_path(handle, allocation.at("lease"));
  ASSERT_TRUE(rest_.put_bytes(data_path, block(8)).ok());
  {
    RawConnection client(server().endpoint());
    client.send(upload_head("PUT", data_path, kBlockBytes));
    client.send(block(9).substr(0, kBlockBytes / 2));
  }
  const auto commit = [&](int n) {
    return rest_.post(cache_.path("/commit"), {{"lease", allocation.at("lease")},
                                               {"blocks", {TestCache::commit_block(handle, n)}}});
  };
  Reply reply;
  ASSERT_TRUE(eventually([&] {
    reply = commit(8);
    return reply.body.find("is being written") == std::string::npos;
  }));
  int published = 8;  // if none of the cut upload's bytes reached the slot
  if (!reply.ok()) {
    EXPECT_THAT(reply, is_problem(409, "state_conflict"));
    published = 9;
    ASSERT_TRUE(rest_.put_bytes(data_path, block(9)).ok());
    ASSERT_TRUE(commit(9).ok());
  }
  EXPECT_EQ(cache_.expect_intact(published), GetParam());
  EXPECT_TRUE(rest_.del("/v1/leases/" + allocation.at("lease").get<std::string>()).ok());
  keep();
}

TEST_F(BadClientTest, CutBatchWriteLeavesNothingBehind) {
  const std::string body = write_of_three();
  const std::size_t header = body.size() - 3 * kBlockBytes;
  for (const std::size_t sent : {std::size_t{0}, std::size_t{2}, header - 1, header, header + 1,
                                 header + kBlockBytes, body.size() - 1}) {
    {
      RawConnection client(server().endpoint());
      client.send(upload_head("POST", cache_.path("/write"), body.size()));
      client.send(body.substr(0, sent));
      if (sent > header) {
        EXPECT_TRUE(filling("pinned", 3));
      }
    }
    expect_unharmed();
    for (int n = 20; n < 23; ++n) EXPECT_FALSE(cache_.holds(n)) << sent;
  }
}

TEST_F(BadClientTest, LeavingDuringAResponseLeavesNothingPinned) {
  for (int i = 0; i < 20; ++i) {
    RawConnection client(server().endpoint());
    for (int n = 1; n <= 3; ++n) {
      client.send(head_text("GET", cache_.key_path(n), {}));
    }
    const std::string read = json{{"keys", keys(1, 3)}}.dump();
    client.send(head_text("POST", cache_.path("/read"),
                          {"Content-Type: application/json",
                           "Content-Length: " + std::to_string(read.size())}) +
                read);
  }
  expect_unharmed();
}

TEST_F(BadClientTest, LeaseOfAVanishedClientExpires) {
  const std::string body = json{{"keys", keys(1, 3)}, {"lease_ms", 300}}.dump();
  {
    RawConnection client(server().endpoint());
    client.send(head_text("POST", cache_.path("/match"),
                          {"Content-Type: application/json",
                           "Content-Length: " + std::to_string(body.size())}) +
                body);
  }
  EXPECT_TRUE(eventually([&] { return cache_.metric("cairn_lease_expirations_total") == 1; }));
}

TEST_F(BadClientTest, SlowBodyTimesOutAndLeavesNothingBehind) {
  RawConnection client(server().endpoint());
  client.send(upload_head("PUT", cache_.key_path(9), kBlockBytes));
  client.send(block(9).substr(0, 100));
  EXPECT_TRUE(filling("device", 1));
  const std::string answer = client.receive_to_end();
  if (!answer.empty()) {
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 408"));
  }
  EXPECT_FALSE(cache_.holds(9));
}

TEST_F(BadClientTest, SlowHeadTimesOut) {
  RawConnection client(server().endpoint());
  client.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHo");
  const std::string answer = client.receive_to_end();
  if (!answer.empty()) {
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 408"));
  }
}

TEST_F(BadClientTest, SlowSteadyClientIsServed) {
  RawConnection client(server().endpoint());
  client.send(upload_head("PUT", cache_.key_path(9), kBlockBytes));
  for (char byte : block(9)) ASSERT_TRUE(client.send({&byte, 1}));
  EXPECT_THAT(client.receive(), has_status(201));
  cache_.expect_intact(9);
  keep();
}

TEST_F(BadClientTest, NonHttpClientIsRefused) {
  for (const std::string& text :
       {std::string("\x16\x03\x01\x02\x01\x01", 6), std::string("hello\r\n\r\n"),
        std::string("GET\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nHost: localhost\r\nbroken field\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"),
        std::string(
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        std::string(
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n"),
        std::string("GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 36)}) {
    RawConnection client(server().endpoint());
    client.send(text);
    const std::string answer = client.receive_to_end();
    if (!answer.empty()) {
      EXPECT_THAT(answer, testing::AnyOf(StartsWith("HTTP/1.1 4"), StartsWith("HTTP/1.1 505")))
          << text;
    }
    EXPECT_THAT(rest_.get("/healthz"), has_status(200)) << text;
  }
}

TEST_F(BadClientTest, RefusesABodyWithTwoLengths) {
  RawConnection client(server().endpoint());
  client.send(head_text("POST", cache_.path("/clear"),
                        {"Content-Length: 4", "Transfer-Encoding: chunked"}) +
              "0\r\n\r\nDELETE " + cache_.path() + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string answers = client.receive_to_end();
  EXPECT_THAT(answers, StartsWith("HTTP/1.1 400"));
}

TEST_F(BadClientTest, AnswersPipelinedRequestsInOrder) {
  RawConnection client(server().endpoint());
  std::string requests;
  for (int n = 1; n <= 3; ++n) requests += head_text("GET", cache_.key_path(n), {});
  client.send(requests + head_text("GET", "/healthz", {"Connection: close"}));
  const std::string answers = client.receive_to_end();
  std::size_t at = 0;
  for (int n = 1; n <= 3; ++n) {
    at = answers.find(block(n), at);
    ASSERT_NE(at, std::string::npos) << "block " << n;
  }
}

TEST_F(BadClientTest, TakesAChunkedBody) {
  const std::string body = json{{"keys", keys(1, 1)}, {"lease_ms", 0}}.dump();
  std::string chunked;
  for (char byte : body) chunked.append("1\r\n").append(1, byte).append("\r\n");
  RawConnection client(server().endpoint());
  client.send(head_text("POST", cache_.path("/match"),
                        {"Content-Type: application/json", "Transfer-Encoding: chunked"}) +
              chunked + "0\r\n\r\n");
  const Reply reply = client.receive();
  ASSERT_THAT(reply, has_status(200));
  EXPECT_EQ(reply.document().at("matched"), 1);
}

TEST_F(BadClientTest, ChunkedBlockUploadNeedsALength) {
  const json held = cache_.allocate(1, "device");
  const std::pair<const char*, std::string> uploads[] = {
      {"PUT", cache_.key_path(9)},
      {"PUT", cache_.data_path(held.at("blocks").at(0), held.at("lease"))},
      {"POST", cache_.path("/write")}};
  for (const auto& [method, target] : uploads) {
    RawConnection client(server().endpoint());
    client.send(
        head_text(method, target,
                  {"Content-Type: application/octet-stream", "Transfer-Encoding: chunked"}) +
        "1\r\nx\r\n0\r\n\r\n");
    const Reply reply = client.receive();
    EXPECT_THAT(reply, is_problem(411, "wrong_length")) << target;
    EXPECT_THAT(reply.body, testing::HasSubstr("Content-Length")) << target;
  }
  EXPECT_FALSE(cache_.holds(9));
  keep();
}

TEST_F(BadClientTest, ServerSendsContinueBeforeTheBody) {
  RawConnection client(server().endpoint());
  std::string head = upload_head("PUT", cache_.key_path(9), kBlockBytes);
  head.insert(head.size() - 2, "Expect: 100-continue\r\n");
  client.send(head);
  EXPECT_THAT(client.receive_some(), StartsWith("HTTP/1.1 100"));
  client.send(block(9));
  EXPECT_THAT(client.receive(), has_status(201));
  cache_.expect_intact(9);
  keep();
}

}  // namespace
}  // namespace cairn::e2e
