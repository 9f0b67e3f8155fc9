#include "memory/host/available_memory.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "memory/host/host_memory.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

// A machine with 1,000 KiB available, and a process in the group /pod/engine.
class GroupMemory : public ::testing::Test {
 protected:
  GroupMemory() {
    write("meminfo",
          "MemTotal:  2000 kB\nMemFree:  10 kB\nMemAvailable:  1000 kB\nBuffers: 5 kB\n");
    write("own", "1:cpu:/elsewhere\n0::/pod/engine\n");
    group("pod/engine", {.most = "max", .used = "600000"});
    group("pod", {.most = "max", .used = "700000"});
  }

  struct Numbers {
    std::string most, used, inactive_files = "0";
  };
  void group(const std::string& name, const Numbers& numbers) {
    std::filesystem::create_directories(folder_.path() / "groups" / name);
    write("groups/" + name + "/memory.max", numbers.most + "\n");
    write("groups/" + name + "/memory.current", numbers.used + "\n");
    write("groups/" + name + "/memory.stat",
          "anon 5\nfile 7\ninactive_file " + numbers.inactive_files + "\n");
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path() / name) << text;
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  AvailableMemory memory() const {
    return AvailableMemory(
        {.machine = path("meminfo"), .own_group = path("own"), .groups = path("groups")});
  }

 private:
  const fakes::TempDir folder_;
};

TEST_F(GroupMemory, UsesTheMachinesMemoryIfNoGroupHasALimit) {
  EXPECT_EQ(memory().bytes(), 1000u * 1024);
}

TEST_F(GroupMemory, UsesTheRestOfTheGroupsLimit) {
  group("pod/engine", {.most = "900000", .used = "600000"});
  EXPECT_EQ(memory().bytes(), 300'000u);
}

TEST_F(GroupMemory, UsesTheRestOfTheParentGroupsLimit) {
  group("pod/engine", {.most = "900000", .used = "600000"});
  group("pod", {.most = "800000", .used = "700000"});
  EXPECT_EQ(memory().bytes(), 100'000u);
}

// The kernel drops them when a group reaches its limit.
TEST_F(GroupMemory, CountsInactiveFilesAsFree) {
  group("pod", {.most = "800000", .used = "700000", .inactive_files = "50000"});
  EXPECT_EQ(memory().bytes(), 150'000u);
}

TEST_F(GroupMemory, IsZeroIfAGroupExceedsItsLimit) {
  group("pod", {.most = "800000", .used = "900000"});
  EXPECT_EQ(memory().bytes(), 0u);
}

TEST_F(GroupMemory, FollowsChangesOfTheFiles) {
  const AvailableMemory now = memory();
  group("pod", {.most = "800000", .used = "700000"});
  EXPECT_EQ(now.bytes(), 100'000u);
  group("pod", {.most = "800000", .used = "750000"});
  EXPECT_EQ(now.bytes(), 50'000u);
}

// Each reading opened files for a moment. A cache that was being created then ran out of
// descriptors.
TEST_F(GroupMemory, ReadsFilesThatAreAlreadyOpen) {
  group("pod", {.most = "800000", .used = "700000", .inactive_files = "50000"});
  const AvailableMemory now = memory();
  std::filesystem::remove_all(path("groups"));
  std::filesystem::remove(path("meminfo"));
  EXPECT_EQ(now.bytes(), 150'000u);
}

TEST(AvailableMemory, IsUnlimitedIfNoFileCanBeRead) {
  const AvailableMemory none(
      {.machine = "/nowhere", .own_group = "/nowhere", .groups = "/nowhere"});
  EXPECT_EQ(none.bytes(), std::numeric_limits<std::uint64_t>::max());
}

TEST(AvailableMemory, IsAtMostTheMachinesMemory) {
  EXPECT_GT(AvailableMemory().bytes(), 0u);
  EXPECT_LE(AvailableMemory().bytes(), machine_memory_bytes());
}

}  // namespace
}  // namespace cairn
