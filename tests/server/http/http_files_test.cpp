#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fakes/temp_dir.hpp"
#include "tests/server/http/http_fixture.hpp"

// Open files that are passed along with the bytes of a Unix socket.
namespace cairn::http::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class HttpFilesTest : public HttpTest {
 protected:
  HttpFilesTest() {
    listen_.unix_path = (folder_.path() / "socket").string();
    // Responds with the contents of the received files, and passes them back.
    handler_.on_handle = [](const Request& request, Responder respond) {
      std::string text;
      for (const auto& file : request.files) text += content(*file) + " ";
      Response response = text_response(200, text);
      if (request.passes_files) response.files = request.files;
      respond(std::move(response));
    };
  }

  PassedFiles files(const std::vector<std::string>& contents) {
    PassedFiles all;
    for (const std::string& text : contents) {
      const std::string path = (folder_.path() / text).string();
      FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
      EXPECT_EQ(::write(file.get(), text.data(), text.size()), ssize_t(text.size()));
      all.push_back(std::make_shared<const FileDescriptor>(std::move(file)));
    }
    return all;
  }
  static std::string content(const FileDescriptor& file) {
    char text[64];
    const ssize_t bytes = ::pread(file.get(), text, sizeof text, 0);
    return bytes < 0 ? "none" : std::string(text, static_cast<std::size_t>(bytes));
  }
  static std::vector<std::string> contents(const PassedFiles& files) {
    std::vector<std::string> all;
    for (const auto& file : files) all.push_back(content(*file));
    return all;
  }
  static std::string get(const std::string& path) {
    return "GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n";
  }
  static std::string post(const std::string& body) {
    return "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  SocketClient local() { return SocketClient::local(listen_.unix_path); }

  const fakes::TempDir folder_;
};

TEST_F(HttpFilesTest, PassInOrderInBothDirections) {
  start();
  SocketClient client = local();
  for (const auto& names : {std::vector<std::string>{"a"}, {"b", "c", "d"}, {}}) {
    ASSERT_TRUE(client.send(post("body"), files(names)));
    const ClientResponse response = client.receive();
    EXPECT_THAT(contents(response.files), ::testing::ElementsAreArray(names));
    EXPECT_TRUE(response.complete);
  }
}

TEST_F(HttpFilesTest, ArriveWithCloseOnExec) {
  int flags = 0;
  handler_.on_handle = [&flags](const Request& request, Responder respond) {
    flags = ::fcntl(request.files.at(0)->get(), F_GETFD);
    respond(text_response(200, ""));
  };
  start();
  SocketClient client = local();
  ASSERT_TRUE(client.send(get("/x"), files({"a"})));
  EXPECT_EQ(client.receive().status, 200u);
  EXPECT_EQ(flags, FD_CLOEXEC);
}

TEST_F(HttpFilesTest, MayArriveWithAnyPartOfARequest) {
  start();
  SocketClient client = local();
  const std::string request = post("the body");
  ASSERT_TRUE(client.send(request.substr(0, 10)));
  ASSERT_TRUE(received(10));
  ASSERT_TRUE(client.send(request.substr(10, 40), files({"head"})));
  ASSERT_TRUE(received(50));
  ASSERT_TRUE(client.send(request.substr(50), files({"tail"})));
  EXPECT_THAT(contents(client.receive().files), ElementsAre("head", "tail"));
}

TEST_F(HttpFilesTest, ArriveWithALongBody) {
  start();
  SocketClient client = local();
  const std::string request = post(std::string(300'000, 'x'));
  ASSERT_TRUE(client.send(request.substr(0, 200'000)));
  ASSERT_TRUE(client.send(request.substr(200'000), files({"late"})));
  EXPECT_EQ(client.receive().body, "late ");
}

// Otherwise the next request would get memory that was meant for another one.
TEST_F(HttpFilesTest, FilesOfARefusedRequestDoNotReachTheNext) {
  handler_.on_begin = [](const RequestHead& head) -> BodyPlan {
    if (head.path == "/refused") return text_response(404, "");
    return CollectBody{.limit_bytes = 1024, .takes_files = true};
  };
  start();
  SocketClient client = local();
  ASSERT_TRUE(client.send(get("/refused"), files({"stray"})));
  const ClientResponse refused = client.receive();
  EXPECT_EQ(refused.status, 404u);
  EXPECT_THAT(refused.files, IsEmpty());
  ASSERT_TRUE(client.send(get("/next"), files({"own"})));
  EXPECT_EQ(client.receive().body, "own ");
  ASSERT_TRUE(client.send(get("/none")));
  EXPECT_EQ(client.receive().body, "");
}

TEST_F(HttpFilesTest, FilesOverTheLimitAreClosed) {
  start();
  SocketClient client = local();
  const std::string request = post("body");
  ASSERT_TRUE(client.send(request.substr(0, 5), files({"1", "2", "3", "4", "5"})));
  ASSERT_TRUE(received(5));
  ASSERT_TRUE(client.send(request.substr(5), files({"6", "7", "8", "9", "10"})));
  EXPECT_EQ(client.receive().body, "1 2 3 4 5 6 7 8 ");
}

TEST_F(HttpFilesTest, LostConnectionClosesItsFiles) {
  start();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const FileDescriptor read_end(ends[0]);
  PassedFiles write_end = {std::make_shared<const FileDescriptor>(ends[1])};
  {
    SocketClient client = local();
    ASSERT_TRUE(client.send("GET /half", std::exchange(write_end, {})));
    ASSERT_TRUE(received(9));
  }
  char byte;
  EXPECT_TRUE(eventually([&] { return ::read(read_end.get(), &byte, 1) == 0; }))
      << "the other end is still open";
}

TEST_F(HttpFilesTest, UnusedFilesAreClosedAtOnce) {
  handler_.on_begin = [](const RequestHead&) -> BodyPlan { return CollectBody{1024}; };
  std::optional<Responder> waiting;
  std::atomic<bool> asked{false};
  handler_.on_handle = [&](const Request& request, Responder respond) {
    EXPECT_THAT(request.files, IsEmpty());
    waiting.emplace(std::move(respond));
    asked = true;
  };
  start();
  for (const std::size_t before : {std::size_t{10}, std::size_t{40}}) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    const FileDescriptor read_end(ends[0]);
    SocketClient client = local();
    const std::string request = post("the body");
    const std::uint64_t sent = server_->stats().bytes_received;
    ASSERT_TRUE(client.send(request.substr(0, before)));
    ASSERT_TRUE(received(sent + before));
    ASSERT_TRUE(
        client.send(request.substr(before), {std::make_shared<const FileDescriptor>(ends[1])}));
    ASSERT_TRUE(eventually([&] { return asked.load(); }));
    char byte;
    EXPECT_TRUE(eventually([&] { return ::read(read_end.get(), &byte, 1) == 0; }))
        << "the waiting request still holds the other end";
    (*waiting)(text_response(200, "done"));
    EXPECT_EQ(client.receive().body, "done");
    asked = false;
  }
}

// The limit applies before a token is checked. Otherwise anyone who can connect could take the
// server's last descriptor.
TEST_F(HttpFilesTest, AllConnectionsShareOneLimit) {
  limits_.max_passed_files = 2 * kMaxPassedFiles;
  std::atomic<bool> refused{false};
  std::vector<PassedFiles> held;
  handler_.on_handle = [&](const Request& request, Responder respond) {
    refused = request.files_refused;
    if (request.path == "/hold") held.push_back(request.files);
    respond(text_response(200, std::to_string(request.files.size())));
  };
  start();
  const std::vector<std::string> eight = {"1", "2", "3", "4", "5", "6", "7", "8"};
  SocketClient stranger = local();
  ASSERT_TRUE(stranger.send("GET /half", files(eight)));
  ASSERT_TRUE(received(9));
  SocketClient engine = local();
  ASSERT_TRUE(engine.send(get("/hold"), files(eight)));
  EXPECT_EQ(engine.receive().body, "8");
  EXPECT_FALSE(refused);
  ASSERT_TRUE(engine.send(get("/x"), files({"one"})));
  EXPECT_EQ(engine.receive().body, "0");
  EXPECT_TRUE(refused);
  ASSERT_TRUE(engine.send(get("/x")));
  EXPECT_EQ(engine.receive().body, "0");
  EXPECT_FALSE(refused) << "no file came with it";
  stranger.close();
  ASSERT_TRUE(eventually([&] { return server_->stats().connections_open == 1; }));
  ASSERT_TRUE(engine.send(get("/x"), files({"one"})));
  EXPECT_EQ(engine.receive().body, "1");
  ASSERT_TRUE(engine.send(get("/hold"), files(eight)));
  EXPECT_EQ(engine.receive().body, "8");
  ASSERT_TRUE(engine.send(get("/x"), files({"one"})));
  EXPECT_EQ(engine.receive().body, "0") << "files that a handler holds count too";
}

TEST_F(HttpFilesTest, TcpPassesNoFiles) {
  start();
  SocketClient client = connect();
  bool passes = true;
  handler_.on_handle = [&passes](const Request& request, Responder respond) {
    passes = request.passes_files;
    respond(text_response(200, std::to_string(request.files.size())));
  };
  ASSERT_TRUE(client.send(get("/x")));
  EXPECT_EQ(client.receive().body, "0");
  EXPECT_FALSE(passes);
}

}  // namespace
}  // namespace cairn::http::testing
