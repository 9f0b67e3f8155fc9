#include "tests/e2e/support/server_process.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>

namespace cairn::e2e {
namespace {

// A script that a test runs in place of a server.
class ServerProcessTest : public testing::Test {
 protected:
  ServerSetup script(const std::string& body) {
    const std::string path = (folder_.path() / "program").string();
    std::ofstream(path) << "#!/bin/bash\n" << body << "\n";
    ::chmod(path.c_str(), 0700);
    return {.flags = {"--more"}, .data_dir = {}, .program = path};
  }
  fakes::TempDir folder_;
};

// Sleeps only briefly, because bash handles a signal between two commands. The flags come before
// the address, on the same stream: a reader of the address has read them.
constexpr const char* kServe =
    "echo \"$@\"\n"
    "trap 'exit 7' TERM\n"
    "echo 'msg=\"listening on http://127.0.0.1:4711\" and more'\n"
    "while true; do sleep 0.01; done";

TEST_F(ServerProcessTest, ReadsTheAddressOfTheServer) {
  const ServerProcess server(script(kServe));
  EXPECT_EQ(server.url(), "http://127.0.0.1:4711");
  EXPECT_TRUE(server.running());
}

TEST_F(ServerProcessTest, GivesTheServerAFreePortAFolderAndTheFlags) {
  const ServerProcess server(script(kServe));
  EXPECT_TRUE(std::filesystem::is_directory(server.data_dir()));
  EXPECT_THAT(server.output(), testing::HasSubstr("--listen 127.0.0.1:0 --data-dir " +
                                                  server.data_dir().string() + " --more"));
}

TEST_F(ServerProcessTest, ReturnsTheExitCodeOfAStoppedServer) {
  ServerProcess server(script(kServe));
  EXPECT_EQ(server.stop(), 7);
  EXPECT_FALSE(server.running());
}

TEST_F(ServerProcessTest, KillsAServer) {
  ServerProcess server(script(kServe));
  server.kill();
  EXPECT_FALSE(server.running());
  EXPECT_EQ(server.stop(), 128 + SIGKILL);
}

TEST_F(ServerProcessTest, LeavesNoProcessAndNoFolderBehind) {
  std::filesystem::path data_dir;
  pid_t pid = -1;
  {
    const ServerProcess server(script(kServe));
    data_dir = server.data_dir();
    pid = server.pid();
  }
  EXPECT_FALSE(std::filesystem::exists(data_dir));
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST_F(ServerProcessTest, ReportsTheOutputOfAServerThatFailsToStart) {
  try {
    const ServerProcess server(script("echo 'the port is taken' >&2; exit 2"));
    FAIL() << "it started";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the port is taken"));
  }
}

TEST(ChildProcessTest, SeparatesTheTwoStreams) {
  ChildProcess child({"/bin/sh", "-c", "echo one; echo two >&2; exit 3"});
  EXPECT_EQ(child.wait(), 3);
  EXPECT_EQ(child.standard_output(), "one\n");
  EXPECT_EQ(child.standard_error(), "two\n");
}

TEST(ChildProcessTest, MissingProgramExitsWith127) {
  ChildProcess child({"/nonexistent/program"});
  EXPECT_EQ(child.wait(), 127);
}

}  // namespace
}  // namespace cairn::e2e
