#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/file_descriptor.hpp"
#include "tests/fakes/temp_dir.hpp"
#include "tests/server/http/http_fixture.hpp"

namespace cairn::http::testing {
namespace {

class ListenerTest : public HttpTest {
 protected:
  Result<std::unique_ptr<HttpServer>> try_start() {
    return HttpServer::start(listen_, limits_, handler_, clock_, log_);
  }
  static std::string answer_of(SocketClient client) {
    client.send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
    return client.receive().body;
  }

  fakes::TempDir dir_;
  const std::string path_ = (dir_.path() / "socket").string();
};

TEST_F(ListenerTest, ServesOnAUnixSocketThatOnlyItsOwnerMayUse) {
  listen_.unix_path = path_;
  start();
  struct stat file {};
  ASSERT_EQ(::stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  EXPECT_EQ(answer_of(SocketClient::local(path_)), "GET /x? ");
  EXPECT_EQ(answer_of(connect()), "GET /x? ");
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(ListenerTest, ReplacesTheSocketOfADeadServer) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
  {
    const FileDescriptor dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path_));
  listen_.unix_path = path_;
  start();
  EXPECT_EQ(answer_of(SocketClient::local(path_)), "GET /x? ");
}

TEST_F(ListenerTest, LeavesTheSocketOfALiveServerAlone) {
  listen_.unix_path = path_;
  start();
  const auto second = try_start();
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().detail.find(path_), std::string::npos);
  EXPECT_EQ(answer_of(SocketClient::local(path_)), "GET /x? ");
}

TEST_F(ListenerTest, LeavesAFileThatIsNoSocketAlone) {
  std::ofstream(path_) << "precious";
  listen_.unix_path = path_;
  ASSERT_FALSE(try_start());
  std::string content;
  std::ifstream(path_) >> content;
  EXPECT_EQ(content, "precious");
}

TEST_F(ListenerTest, RefusesAUnixPathThatIsTooLong) {
  listen_.unix_path = (dir_.path() / std::string(200, 'x')).string();
  EXPECT_FALSE(try_start());
}

TEST_F(ListenerTest, RefusesAPortThatIsTaken) {
  start();
  listen_.port = server_->port();
  const auto second = try_start();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::io_error);
  EXPECT_NE(second.error().detail.find(std::to_string(listen_.port)), std::string::npos);
}

TEST_F(ListenerTest, RefusesAnAddressOfAnotherMachine) {
  listen_.host = "192.0.2.1";  // kept for documentation: nobody has it
  EXPECT_FALSE(try_start());
}

TEST_F(ListenerTest, TakesANameForAnAddress) {
  listen_.host = "localhost";
  start();
  EXPECT_NE(server_->port(), 0);
}

}  // namespace
}  // namespace cairn::http::testing
