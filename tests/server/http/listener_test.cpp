#include <grp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

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

TEST_F(ListenerTest, SocketFileModeFollowsItsAccess) {
  listen_.unix_path = path_;
  listen_.unix_access.group = ::getegid();
  struct stat file {};
  {
    // The process's umask must not matter.
    const mode_t before = ::umask(0077);
    start();
    ::umask(before);
  }
  ASSERT_EQ(::stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0660u);
  EXPECT_EQ(file.st_gid, ::getegid());
  server_.reset();
  listen_.unix_access = {.group = std::nullopt, .users = {12345}};
  start();
  ASSERT_EQ(::stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0666u);
  EXPECT_EQ(answer_of(SocketClient::local(path_)), "GET /x? ");
}

TEST_F(ListenerTest, AcceptsOnlyAllowedUsersOnTheUnixSocket) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  // Another user has to reach the folder.
  ::chmod(dir_.path().c_str(), 0755);
  listen_.unix_path = path_;
  listen_.unix_access = {.group = 54321, .users = {12345}};
  start();
  // Runs in a separate process, because a user ID applies to a whole process. Returns 0 if it got a
  // response.
  const auto answered_to = [this](uid_t user, std::vector<gid_t> groups) {
    const pid_t child = ::fork();
    if (child == 0) {
      const bool became = ::setgroups(groups.size(), groups.data()) == 0 &&
                          ::setresgid(65534, 65534, 65534) == 0 &&
                          ::setresuid(user, user, user) == 0;
      const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM, 0));
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
      constexpr std::string_view kRequest = "GET /x HTTP/1.1\r\nHost: x\r\n\r\n";
      char byte = 0;
      const bool answered =
          ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
          ::send(fd.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL) > 0 &&
          ::recv(fd.get(), &byte, 1, 0) == 1;
      ::_exit(!became ? 2 : answered ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(answered_to(12345, {}), 0);
  EXPECT_EQ(answered_to(12346, {1, 54321}), 0) << "any of its groups counts";
  EXPECT_EQ(answered_to(12346, {1}), 1);
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
  EXPECT_EQ(second.error().code, ErrorCode::unavailable);
  EXPECT_NE(second.error().detail.find(std::to_string(listen_.port)), std::string::npos);
}

TEST_F(ListenerTest, RefusesAnAddressOfAnotherMachine) {
  listen_.host = "192.0.2.1";  // reserved for documentation: no machine has it
  EXPECT_FALSE(try_start());
}

TEST_F(ListenerTest, AcceptsAHostName) {
  listen_.host = "localhost";
  start();
  EXPECT_NE(server_->port(), 0);
}

}  // namespace
}  // namespace cairn::http::testing
