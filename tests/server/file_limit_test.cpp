#include "server/file_limit.hpp"

#include <gtest/gtest.h>

#include "base/passed_files.hpp"

namespace cairn {
namespace {

constexpr HttpFiles kWanted{.connections = 4096, .unix_connections = 1024, .passed_files = 1024};

TEST(FileLimit, EnoughFilesGrantEveryLimit) {
  const HttpFiles files = http_files_within(kReservedFiles + 8 * 1024, kWanted);
  EXPECT_EQ(files.connections, 4096u);
  EXPECT_EQ(files.unix_connections, 1024u);
  EXPECT_EQ(files.passed_files, 1024u);
  EXPECT_EQ(http_files_within(UINT64_MAX, {.connections = 1'000'000}).connections, 1'000'000u);
  EXPECT_EQ(http_files_within(2048, {.connections = 100}).connections, 100u);
  EXPECT_EQ(http_files_within(2048, {.connections = 4096}).connections, 2048 - kReservedFiles)
      << "all of it if there is no Unix socket";
}

TEST(FileLimit, FewerFilesKeepTheReserve) {
  for (const std::uint64_t max_files :
       {2 * kReservedFiles, std::uint64_t{2048}, std::uint64_t{4096}}) {
    const HttpFiles files = http_files_within(max_files, kWanted);
    EXPECT_LE(files.connections + files.unix_connections + files.passed_files,
              max_files - kReservedFiles);
    EXPECT_GE(files.connections, (max_files - kReservedFiles) / 2);
    EXPECT_GE(files.unix_connections, (max_files - kReservedFiles) / 16);
  }
}

TEST(FileLimit, VeryFewFilesGrantHalfOfThem) {
  const HttpFiles files = http_files_within(80, kWanted);
  EXPECT_EQ(files.connections, 40u - 5 - kMaxPassedFiles);
  EXPECT_EQ(files.unix_connections, 5u);
  EXPECT_EQ(files.passed_files, kMaxPassedFiles) << "the files of one request";
  EXPECT_EQ(http_files_within(0, kWanted).connections, 1u);
}

}  // namespace
}  // namespace cairn
