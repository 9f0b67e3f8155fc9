#include <gmock/gmock.h>

#include <filesystem>
#include <thread>

#include "server/http/server_tls.hpp"
#include "tests/fakes/temp_dir.hpp"
#include "tests/fakes/tls/tls_client.hpp"
#include "tests/server/http/http_fixture.hpp"

namespace cairn::http::testing {
namespace {

using fakes::CertificateFiles;
using fakes::make_certificate;
using fakes::TlsClient;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class TlsTest : public HttpTest {
 protected:
  ~TlsTest() override { server_.reset(); }  // before the members that it borrows

  void start_tls(const std::string& client_ca = "") {
    auto identity = TlsIdentity::load({served_.certificate, served_.key, client_ca});
    ASSERT_TRUE(identity) << identity.error().detail;
    identity_ = std::move(*identity);
    listen_.tls = identity_.get();
    start();
  }
  TlsClient::Setup setup() {
    return {.port = server_->port(), .authority = authority_.certificate};
  }

  fakes::TempDir folder_;
  const CertificateFiles authority_ = make_certificate(folder_.path(), {.name = "authority"});
  const CertificateFiles served_ =
      make_certificate(folder_.path(), {.name = "server", .authority = authority_});
  std::unique_ptr<TlsIdentity> identity_;
};

TEST_F(TlsTest, AnswersRequestsInOrder) {
  start_tls();
  TlsClient client(setup());
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.version(), "TLSv1.3");
  EXPECT_EQ(client.peer(), "server");
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.receive_response(), EndsWith("GET /1? "));
  EXPECT_THAT(client.receive_response(), EndsWith("GET /2? "));
}

TEST_F(TlsTest, TakesARequestByteByByte) {
  start_tls();
  TlsClient client(setup());
  const std::string request =
      "PUT /path?query HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody";
  for (char byte : request) ASSERT_TRUE(client.send({&byte, 1}));
  EXPECT_THAT(client.receive_response(), EndsWith("PUT /path?query body"));
}

// The body is larger than a TLS record, a turn and the sockets' buffers. Its pieces end anywhere in
// a record.
TEST_F(TlsTest, MovesLargeBodiesIntoScatteredMemoryAndBack) {
  const std::string body = pattern(5'000'011);
  Scattered& upload = memory({1, 16 * 1024 - 1, 100'000, 2'000'000, 2'883'627});
  Scattered& download = memory({3, 700'000, 16 * 1024, 4'283'624});
  ASSERT_EQ(upload.text().size(), body.size());
  ASSERT_EQ(download.text().size(), body.size());
  handler_.on_begin = [&](const RequestHead& head) -> BodyPlan {
    if (head.method == Method::put) {
      return std::make_unique<ScriptedUpload>(
          nullptr, [&](auto ready) { ready(upload.pieces()); },
          [&](Responder respond) {
            // The received bytes go out again from other pieces.
            std::size_t at = 0;
            const std::string all = upload.text();
            for (const iovec& piece : download.pieces()) {
              all.copy(static_cast<char*>(piece.iov_base), piece.iov_len, at);
              at += piece.iov_len;
            }
            respond(text_response(201, ""));
          });
    }
    Response response;
    response.download_bytes = body.size();
    response.download =
        std::make_unique<ScriptedDownload>(nullptr, [&](auto ready) { ready(download.pieces()); });
    return response;
  };
  start_tls();
  TlsClient client(setup());
  client.send("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n");
  ASSERT_TRUE(client.send(body));
  EXPECT_THAT(client.receive_response(), StartsWith("HTTP/1.1 201"));
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string response = client.receive_response();
  EXPECT_TRUE(response.ends_with(body));
}

TEST_F(TlsTest, MissingHandshakeTimesOut) {
  start_tls();
  SocketClient silent = connect();
  SocketClient stalling = connect();
  stalling.send("\x16\x03\x01");  // the start of a hello
  ASSERT_TRUE(eventually([&] { return server_->stats().connections_open == 2; }));
  EXPECT_TRUE(eventually([&] {
    clock_.advance_ms(limits_.header_timeout_ms);
    return server_->stats().connections_open == 0;
  }));
}

TEST_F(TlsTest, ClosesAPlainRequest) {
  start_tls();
  SocketClient client = connect();
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive().status, 0u);
  EXPECT_TRUE(none_open());
  EXPECT_TRUE(handler_.all_finished().empty());
}

TEST_F(TlsTest, ServesTheUnixSocketPlain) {
  listen_.unix_path = (folder_.path() / "socket").string();
  start_tls();
  SocketClient client = SocketClient::local(listen_.unix_path);
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive().body, "GET /1? ");
}

TEST_F(TlsTest, RequiresAClientCertificateIfConfigured) {
  start_tls(authority_.certificate);
  const CertificateFiles known =
      make_certificate(folder_.path(), {.name = "known", .authority = authority_});
  const CertificateFiles stranger = make_certificate(folder_.path(), {.name = "stranger"});
  const auto answered = [&](const CertificateFiles& certificate) {
    TlsClient::Setup with = setup();
    with.certificate = certificate;
    TlsClient client(with);
    // Under TLS 1.3 the client's handshake ends before the server has checked its certificate.
    client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
    return !client.receive_response().empty();
  };
  EXPECT_FALSE(answered({}));
  EXPECT_FALSE(answered(stranger));
  EXPECT_TRUE(answered(known));
  EXPECT_TRUE(finished(1));
}

TEST_F(TlsTest, ChoosesHttp11FromTheOffer) {
  start_tls();
  TlsClient::Setup with = setup();
  with.protocols = "\x02h2\x08http/1.1";
  EXPECT_EQ(TlsClient(with).protocol(), "http/1.1");
}

TEST_F(TlsTest, Tls12AllowsOnlyStrongCipherSuites) {
  start_tls();
  TlsClient::Setup with = setup();
  for (const char* weak : {"AES256-GCM-SHA384:AES128-SHA256", "ECDHE+SHA1:@SECLEVEL=1",
                           "ECDHE+SHA256:ECDHE+SHA384", "DHE+SHA256", "kRSA"}) {
    with.suites_1_2 = weak;
    EXPECT_FALSE(TlsClient(with).connected()) << weak;
  }
  with.suites_1_2 = "ALL";
  TlsClient client(with);
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.version(), "TLSv1.2");
  EXPECT_THAT(client.suite(), StartsWith("ECDHE-"));
  EXPECT_THAT(client.suite(), ::testing::AnyOf(HasSubstr("-GCM-"), HasSubstr("-CHACHA20-")));
  with.suites_1_2 = "ECDHE+CHACHA20";
  EXPECT_TRUE(TlsClient(with).connected());
}

TEST_F(TlsTest, ReloadKeepsTheOldCertificateIfTheNewIsBroken) {
  start_tls();
  TlsClient before(setup());
  const CertificateFiles next =
      make_certificate(folder_.path(), {.name = "next", .authority = authority_});
  std::filesystem::rename(next.certificate, served_.certificate);
  EXPECT_FALSE(identity_->reload()) << "the key belongs to another certificate";
  EXPECT_EQ(TlsClient(setup()).peer(), "server");
  std::filesystem::rename(next.key, served_.key);
  ASSERT_TRUE(identity_->reload());
  EXPECT_EQ(TlsClient(setup()).peer(), "next");
  before.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(before.receive_response(), EndsWith("GET /1? "));
}

TEST_F(TlsTest, NamesTheFileThatCannotBeUsed) {
  const auto refusal = [](TlsFiles files) { return TlsIdentity::load(std::move(files)).error(); };
  const Error missing = refusal({"/nowhere/cert.pem", served_.key, ""});
  EXPECT_EQ(missing.code, ErrorCode::not_found);
  EXPECT_THAT(missing.detail, HasSubstr("/nowhere/cert.pem"));
  EXPECT_THAT(refusal({served_.certificate, authority_.key, ""}).detail,
              HasSubstr("authority.key"));
  EXPECT_THAT(refusal({served_.certificate, served_.key, served_.key}).detail,
              HasSubstr("client CA"));
}

}  // namespace
}  // namespace cairn::http::testing
