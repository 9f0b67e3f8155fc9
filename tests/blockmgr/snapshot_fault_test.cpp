// Snapshots with failing file calls, and damaged files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>

#include "blockmgr/snapshot/snapshot_reader.hpp"
#include "tests/blockmgr/snapshot_rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/faulty_disk_io.hpp"

namespace cairn::testing {
namespace {

using ::testing::IsEmpty;

// Makes the n-th call from now on fail.
struct Faults {
  std::atomic<int> left{0};  // 0: no call fails
  std::atomic<int> error{EIO};
  std::atomic<bool> fired{false};
  void fail(int n, int with) {
    fired = false;
    error = with;
    left = n;
  }
  BlockManagerOptions options() {
    BlockManagerOptions made;
    made.snapshot_file_fault = [this](std::string_view) {
      if (left == 0 || --left > 0) return 0;
      fired = true;
      return error.load();
    };
    return made;
  }
};

class SnapshotFaults : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Compressed, SnapshotFaults, ::testing::Bool());

TEST_P(SnapshotFaults, FailedCallLeavesNoSnapshot) {
  Faults faults;
  SnapshotRig rig({.options = faults.options()});
  const auto cache = rig.cache(small_cache({.pinned = 8, .disk = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  int n = 1;
  for (;; ++n) {
    const std::string name = "s" + std::to_string(n);
    faults.fail(n, n % 2 == 0 ? EIO : ENOSPC);
    const auto made = rig.make(cache, name, GetParam());
    faults.fail(0, 0);
    if (!faults.fired && made) break;
    ASSERT_FALSE(made) << "call " << n << " failed without an error";
    EXPECT_EQ(made.error().code, n % 2 == 0 ? ErrorCode::io_error : ErrorCode::no_capacity)
        << "call " << n << ": " << made.error().detail;
    EXPECT_THAT(files_of(rig), IsEmpty()) << "call " << n;
    EXPECT_EQ(count(*cache, Tier::pinned, SlotState::evictable), 4u) << "call " << n;
  }
  EXPECT_GT(n, 6) << "too few calls failed";
}

TEST_P(SnapshotFaults, FailedRestoreChangesNothing) {
  Faults faults;
  SnapshotRig rig({.options = faults.options()});
  const auto cache = rig.cache(small_cache({.pinned = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  ASSERT_TRUE(rig.make(cache, "s", GetParam()));
  int failed = 0;
  for (int n = 1;; ++n) {
    ASSERT_TRUE(cache->clear({}));
    faults.fail(n, EIO);
    const auto back = rig.restore(cache, "s");
    const bool fired = faults.fired;
    faults.fail(0, 0);
    if (back) {
      // If the mapping fails, the restore reads the file.
      for (const BlockKey& name : keys(1, 4)) {
        EXPECT_EQ(rig.read(*cache, name).value(), bytes_of(name)) << "call " << n;
      }
      if (!fired) break;
      continue;
    }
    ++failed;
    EXPECT_EQ(back.error().code, ErrorCode::io_error) << "call " << n;
    EXPECT_EQ(count(*cache, Tier::pinned, SlotState::free), 8u) << "call " << n;
    EXPECT_EQ(cache->stats().leases, 0u) << "call " << n;
  }
  EXPECT_GE(failed, 5);
}

TEST_P(SnapshotFaults, RefusesAnyFlippedBit) {
  SnapshotRig rig;
  const auto cache = rig.cache(small_cache({.pinned = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3)}));
  ASSERT_TRUE(cache->set_metadata(key(2), "{}"));
  ASSERT_TRUE(rig.make(cache, "s", GetParam()));
  ASSERT_TRUE(cache->clear({}));
  const std::string whole = contents(rig.file("s"));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    overwrite(rig.file("s"), bad);
    const auto back = rig.restore(cache, "s");
    ASSERT_FALSE(back) << "byte " << at;
    EXPECT_EQ(back.error().code, ErrorCode::broken_snapshot) << "byte " << at;
    EXPECT_EQ(count(*cache, Tier::pinned, SlotState::free), 8u) << "byte " << at;
  }
  overwrite(rig.file("s"), whole);
  EXPECT_EQ(rig.restore(cache, "s")->blocks_done, 3u);
}

TEST_P(SnapshotFaults, RefusesAnyOtherLength) {
  SnapshotRig rig;
  const auto cache = rig.cache(small_cache({.pinned = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3)}));
  ASSERT_TRUE(rig.make(cache, "s", GetParam()));
  ASSERT_TRUE(cache->clear({}));
  const std::string whole = contents(rig.file("s"));
  for (std::size_t size = 0; size <= whole.size() + 1; ++size) {
    if (size == whole.size()) continue;
    overwrite(rig.file("s"), (whole + '\0').substr(0, size));
    const auto back = rig.restore(cache, "s");
    ASSERT_FALSE(back) << size << " bytes";
    EXPECT_EQ(back.error().code, ErrorCode::broken_snapshot) << size << " bytes";
  }
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::free), 8u);
  const auto list = rig.snapshots().list("test", true).value();
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].broken->code, ErrorCode::broken_snapshot);
  EXPECT_TRUE(rig.snapshots().remove("test", "s"));
}

TEST_P(SnapshotFaults, DetectsTruncationWhileReading) {
  SnapshotRig rig;
  CacheConfig config = small_cache({.pinned = 8});
  config.shape.inner_dim = 4096;  // several pages per block
  const auto cache = rig.cache(config);
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 4)}));
  ASSERT_TRUE(rig.make(cache, "s", GetParam()));
  const SnapshotIo io;
  auto reader = SnapshotReader::open(io, rig.file("s")).value();
  ASSERT_TRUE(reader->load_index());
  const auto first = reader->next();
  ASSERT_TRUE(reader->check(*first));
  ASSERT_EQ(::truncate(rig.file("s").c_str(), 100), 0);
  const auto second = reader->next();
  EXPECT_EQ(reader->check(*second).error().code, ErrorCode::broken_snapshot);
}

TEST(SnapshotFault, UnreadableBlockFailsTheSnapshot) {
  fakes::FakedDisk<fakes::FaultyDiskIo> faulty;
  SnapshotRig rig({.disk = faulty.wrap()});
  const auto cache = rig.cache(small_cache({.pinned = 4, .disk = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2), .tier = Tier::disk}));
  faulty->fail_call(1);
  const TransferStatus status = rig.wait(rig.snapshots().make(cache, {.name = "s"}).value());
  EXPECT_EQ(status.state, TransferState::failed);
  ASSERT_EQ(status.failures.size(), 1u);
  EXPECT_EQ(status.error->code, ErrorCode::io_error);
  EXPECT_THAT(files_of(rig), IsEmpty());
  // The cache dropped that copy, so its next snapshot lacks the block.
  EXPECT_EQ(rig.make(cache, "s")->blocks_done, 1u);
  rig.manager.reset();
  rig.scheduler.reset();
}

// A plain load of these bytes would kill this process.
TEST(SnapshotFault, RefusesToCopyFromATruncatedMapping) {
  const fakes::TempDir dir;
  const auto path = dir.path() / "file";
  overwrite(path, std::string(40'000, 'x'));
  const SnapshotIo io;
  const auto file = io.open(path).value();
  const auto mapping = io.map(*file, 40'000);
  ASSERT_TRUE(mapping);
  std::vector<std::byte> room(1000);
  if (!io.copy_mapped(*mapping, {.offset_bytes = 0, .room = room})) {
    GTEST_SKIP() << "refused by the system";
  }
  EXPECT_EQ(room.back(), std::byte{'x'});
  ASSERT_EQ(::truncate(path.c_str(), 100), 0);
  EXPECT_FALSE(io.copy_mapped(*mapping, {.offset_bytes = 30'000, .room = room}));
}

TEST(SnapshotFault, RefusesAFolder) {
  SnapshotRig rig;
  EXPECT_EQ(rig.snapshots().configuration(rig.dir.path()).error().code, ErrorCode::broken_snapshot);
}

}  // namespace
}  // namespace cairn::testing
