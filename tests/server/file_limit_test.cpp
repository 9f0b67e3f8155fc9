#include "server/file_limit.hpp"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(FileLimit, ConnectionsLeaveTheReserveAlone) {
  EXPECT_EQ(connections_within(4096 + kReservedFiles, 4096), 4096u);
  EXPECT_EQ(connections_within(1024, 4096), 1024 - kReservedFiles);
  EXPECT_EQ(connections_within(1024, 100), 100u);
  EXPECT_EQ(connections_within(UINT64_MAX, 1'000'000), 1'000'000u);
}

TEST(FileLimit, WithFewFilesConnectionsTakeHalf) {
  EXPECT_EQ(connections_within(2 * kReservedFiles, 4096), kReservedFiles);
  EXPECT_EQ(connections_within(80, 4096), 40u);
  EXPECT_EQ(connections_within(0, 4096), 1u);
}

}  // namespace
}  // namespace cairn
