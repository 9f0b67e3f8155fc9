#include "memory/region.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/file_descriptor.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint64_t kMost = ~std::uint64_t{0};

TEST(RegionView, CutsAPartOfMemory) {
  const Region region = Region::system(4096).value();
  const RegionView part = region.view({.offset_bytes = 100, .size_bytes = 50}).value();
  EXPECT_EQ(part.data(), region.data() + 100);
  EXPECT_EQ(part.size_bytes(), 50u);
  EXPECT_EQ(part.kind(), StorageKind::system);
}

TEST(RegionView, CutsAPartOfAPart) {
  const Region region = Region::system(4096).value();
  const RegionView part = region.view({100, 50}).value().view({10, 40}).value();
  EXPECT_EQ(part.data(), region.data() + 110);
  EXPECT_TRUE(region.view({100, 50}).value().view({10, 41}).has_error());
}

TEST(RegionView, CutsAnEmptyPartAtTheEnd) {
  const Region region = Region::system(4096).value();
  EXPECT_EQ(region.view({4096, 0}).value().size_bytes(), 0u);
}

TEST(RegionView, RefusesAPartThatIsNotInside) {
  const Region region = Region::system(4096).value();
  for (const RegionView::Part part : {RegionView::Part{0, 4097},
                                      {4097, 0},
                                      {4096, 1},
                                      {1, kMost},
                                      {kMost, 1},
                                      {kMost, kMost},
                                      {2, kMost - 1}}) {
    const auto cut = region.view(part);
    ASSERT_TRUE(cut.has_error()) << part.offset_bytes << " + " << part.size_bytes;
    EXPECT_EQ(cut.error().code, ErrorCode::impossible);
    EXPECT_THAT(cut.error().detail,
                AllOf(HasSubstr(std::to_string(part.offset_bytes)),
                      HasSubstr(std::to_string(part.size_bytes)), HasSubstr("4096")));
  }
}

TEST(Region, IsZeroedPageAlignedSystemMemory) {
  const Region region = Region::system(10'000).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.data()) % 4096, 0u);
  EXPECT_EQ(region.size_bytes(), 10'000u);
  EXPECT_EQ(region.device_id(), -1);
  EXPECT_EQ(region.view().fd(), -1);
  EXPECT_TRUE(std::all_of(region.data(), region.data() + 10'000,
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Region, RefusesZeroBytesAndMoreThanAnOffsetHolds) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1} << 63, kMost}) {
    EXPECT_EQ(Region::system(size).error().code, ErrorCode::out_of_range);
    EXPECT_EQ(Region::disk_file("/nowhere", size).error().code, ErrorCode::out_of_range);
  }
}

TEST(Region, ErrorNamesTheSizeOfRefusedSystemMemory) {
  const auto made = Region::system(std::uint64_t{1} << 62);
  ASSERT_TRUE(made.has_error());
  EXPECT_EQ(made.error().code, ErrorCode::no_capacity);
  EXPECT_THAT(made.error().detail, HasSubstr("4611686018427387904"));
}

// Counts destructions.
struct Noted final : RegionBacking {
  explicit Noted(int& count) : gone(count) {}
  ~Noted() override { ++gone; }
  int& gone;
};

TEST(Region, ReturnsMemoryOnce) {
  int gone = 0;
  {
    Region first = Region::adopt({.size_bytes = 1}, std::make_unique<Noted>(gone));
    Region second = std::move(first);
    Region third;
    third = std::move(second);
    EXPECT_EQ(gone, 0);
  }
  EXPECT_EQ(gone, 1);
}

TEST(Region, ReturnsReplacedMemory) {
  int gone = 0;
  Region region = Region::adopt({.size_bytes = 1}, std::make_unique<Noted>(gone));
  region = Region::system(1).value();
  EXPECT_EQ(gone, 1);
}

TEST(Region, IsEmptyAfterAMove) {
  Region first = Region::system(4096).value();
  const Region second = std::move(first);
  // NOLINTNEXTLINE(bugprone-use-after-move): the test reads the moved-from object
  EXPECT_TRUE(first.empty());
  EXPECT_EQ(first.size_bytes(), 0u);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_FALSE(second.empty());
}

class DiskFile : public testing::Test {
 protected:
  fakes::TempDir folder_;
  const std::filesystem::path path_ = folder_.path() / "slots";
};

TEST_F(DiskFile, ReservesItsBlocksAndIsPrivateToItsUser) {
  const Region region = Region::disk_file(path_, 1 << 20).value();
  struct ::stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_size, 1 << 20);
  EXPECT_GE(status.st_blocks * 512, 1 << 20);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(DiskFile, ViewHasADescriptorAndAnOffset) {
  const Region region = Region::disk_file(path_, 8192).value();
  EXPECT_EQ(region.kind(), StorageKind::disk);
  EXPECT_EQ(region.data(), nullptr);
  const RegionView part = region.view({4096, 100}).value().view({10, 20}).value();
  EXPECT_EQ(part.file_offset_bytes(), 4106u);
  EXPECT_EQ(part.data(), nullptr);
  ASSERT_EQ(::pwrite(part.fd(), "cairn", 5, static_cast<::off_t>(part.file_offset_bytes())), 5);
  char back[5];
  std::ifstream file(path_, std::ios::binary);
  file.seekg(4106);
  file.read(back, 5);
  EXPECT_EQ(std::string(back, 5), "cairn");
}

// It was reported as an I/O error.
TEST_F(DiskFile, RunningOutOfDescriptorsIsNoCapacity) {
  struct ::rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const FileDescriptor next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(next);
  // All numbers below the limit are in use, so that no file can be opened.
  const struct ::rlimit none { static_cast<::rlim_t>(next.get()) + 1, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto made = Region::disk_file(path_, 4096);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(made.has_error());
  EXPECT_EQ(made.error().code, ErrorCode::no_capacity);
}

TEST_F(DiskFile, KeepsExistingBytes) {
  std::ofstream(path_) << "kept";
  const Region region = Region::disk_file(path_, 4096).value();
  char back[4];
  ASSERT_EQ(::pread(region.view().fd(), back, 4, 0), 4);
  EXPECT_EQ(std::string(back, 4), "kept");
}

TEST_F(DiskFile, TruncatesALongerFile) {
  std::ofstream(path_) << std::string(10'000, 'x');
  const Region region = Region::disk_file(path_, 4096).value();
  EXPECT_EQ(std::filesystem::file_size(path_), 4096u);
}

TEST_F(DiskFile, ClosesTheFileAndDoesNotDeleteIt) {
  int fd = -1;
  {
    const Region region = Region::disk_file(path_, 4096).value();
    fd = region.view().fd();
    EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  }
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
  EXPECT_EQ(std::filesystem::file_size(path_), 4096u);
}

TEST_F(DiskFile, BelongsToOneRegionAtATime) {
  {
    const Region region = Region::disk_file(path_, 8192).value();
    const auto second = Region::disk_file(path_, 4096);
    ASSERT_TRUE(second.has_error());
    EXPECT_EQ(second.error().code, ErrorCode::state_conflict);
    EXPECT_EQ(std::filesystem::file_size(path_), 8192u) << "the first region's file was truncated";
  }
  EXPECT_TRUE(Region::disk_file(path_, 4096).has_value());
}

TEST_F(DiskFile, ReportsNoCapacityAtStartIfTheDiskIsTooSmall) {
  // One byte more than the disk has, and far more than any file may have.
  const std::uint64_t disk = std::filesystem::space(folder_.path()).capacity;
  for (const std::uint64_t size : {disk + 1, std::uint64_t{1} << 60}) {
    const auto made = Region::disk_file(path_, size);
    ASSERT_TRUE(made.has_error());
    EXPECT_EQ(made.error().code, ErrorCode::no_capacity);
    EXPECT_THAT(made.error().detail,
                AllOf(HasSubstr(path_.string()), HasSubstr(std::to_string(size))));
    EXPECT_LT(std::filesystem::file_size(path_), size)
        << "the file was extended although the call failed";
  }
}

TEST_F(DiskFile, KeepsAnExistingFileThatCannotGrow) {
  std::ofstream(path_) << "kept";
  ASSERT_TRUE(Region::disk_file(path_, std::uint64_t{1} << 60).has_error());
  EXPECT_EQ(std::filesystem::file_size(path_), 4u);
}

TEST_F(DiskFile, NamesAFileThatCannotBeOpened) {
  for (const auto& path : {folder_.path(), folder_.path() / "none" / "slots"}) {
    const auto made = Region::disk_file(path, 4096);
    ASSERT_TRUE(made.has_error());
    EXPECT_EQ(made.error().code, ErrorCode::io_error);
    EXPECT_THAT(made.error().detail, HasSubstr(path.string()));
  }
}

TEST_F(DiskFile, RefusesAFileThatIsNotRegular) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(Region::disk_file(path_, 4096).error().code, ErrorCode::io_error);
}

}  // namespace
}  // namespace cairn
