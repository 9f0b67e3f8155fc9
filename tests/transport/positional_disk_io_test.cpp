#include "transport/io/positional_disk_io.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;

class PositionalDiskIoTest : public testing::Test {
 protected:
  PositionalDiskIoTest() : fd_(::open((folder_.path() / "file").c_str(), O_RDWR | O_CREAT, 0600)) {
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random_());
  }
  ~PositionalDiskIoTest() override { ::close(fd_); }

  Bytes file() const {
    Bytes bytes(bytes_.size());
    EXPECT_EQ(::pread(fd_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return bytes;
  }
  void fill_file() const {
    ASSERT_EQ(::pwrite(fd_, bytes_.data(), bytes_.size(), 0), static_cast<ssize_t>(bytes_.size()));
  }
  // Cuts `memory` into runs of uneven lengths, at the same offsets in the file as in memory.
  // Shuffles them by the seed if asked to.
  std::vector<DiskRun> cut(Bytes& memory, bool shuffled) {
    std::vector<DiskRun> runs;
    for (std::uint64_t at = 0; at < memory.size();) {
      const std::uint64_t size = std::min<std::uint64_t>(random_() % 50, memory.size() - at);
      runs.push_back({memory.data() + at, at, size});
      at += size;
    }
    if (shuffled) std::shuffle(runs.begin(), runs.end(), random_);
    return runs;
  }
  // The system's calls, often interrupted or cut short.
  FileCalls hesitant() {
    const auto hesitate = [this](FileCalls::Call real) {
      return [this, real = std::move(real)](FileCalls::Target at,
                                            std::span<const iovec> vectors) -> std::int64_t {
        if (random_() % 4 == 0) return -EINTR;
        // Some of the vectors, the last one shortened.
        std::vector<iovec> few(
            vectors.begin(),
            vectors.begin() + static_cast<std::ptrdiff_t>(1 + random_() % vectors.size()));
        few.back().iov_len = 1 + random_() % few.back().iov_len;
        return real(at, few);
      };
    };
    FileCalls system = FileCalls::of_the_system();
    return {hesitate(system.read), hesitate(system.write)};
  }

  fakes::TempDir folder_;
  const int fd_;
  const unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
  Bytes bytes_ = Bytes(100'000);
};

TEST_F(PositionalDiskIoTest, WritesEveryRunAtItsPlace) {
  const auto disk = make_positional_disk_io();
  ASSERT_TRUE(disk->write(fd_, cut(bytes_, true)));
  EXPECT_EQ(file(), bytes_);
}

TEST_F(PositionalDiskIoTest, ReadsEveryRunFromItsPlace) {
  fill_file();
  const auto disk = make_positional_disk_io();
  Bytes memory(bytes_.size());
  ASSERT_TRUE(disk->read(fd_, cut(memory, true)));
  EXPECT_EQ(memory, bytes_);
}

TEST_F(PositionalDiskIoTest, ContinuesAfterShortAndInterruptedWrites) {
  const auto disk = make_positional_disk_io(hesitant());
  ASSERT_TRUE(disk->write(fd_, cut(bytes_, false)));
  EXPECT_EQ(file(), bytes_);
}

TEST_F(PositionalDiskIoTest, ContinuesAfterShortAndInterruptedReads) {
  fill_file();
  const auto disk = make_positional_disk_io(hesitant());
  Bytes memory(bytes_.size());
  ASSERT_TRUE(disk->read(fd_, cut(memory, false)));
  EXPECT_EQ(memory, bytes_);
}

TEST_F(PositionalDiskIoTest, JoinsAdjacentRunsIntoOneCall) {
  fill_file();
  int calls = 0;
  FileCalls counting = FileCalls::of_the_system();
  counting.read = [&calls, real = std::move(counting.read)](FileCalls::Target at,
                                                            std::span<const iovec> vectors) {
    ++calls;
    return real(at, vectors);
  };
  const auto disk = make_positional_disk_io(std::move(counting));
  Bytes memory(300);
  const std::vector<DiskRun> runs = {{memory.data() + 200, 1000, 100},
                                     {memory.data(), 1100, 100},
                                     {memory.data() + 100, 5000, 100}};
  ASSERT_TRUE(disk->read(fd_, runs));
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(std::equal(memory.begin(), memory.begin() + 100, bytes_.begin() + 1100));
  EXPECT_TRUE(std::equal(memory.begin() + 100, memory.begin() + 200, bytes_.begin() + 5000));
  EXPECT_TRUE(std::equal(memory.begin() + 200, memory.end(), bytes_.begin() + 1000));
}

TEST_F(PositionalDiskIoTest, MovesMoreAdjacentRunsThanOneCallTakes) {
  const auto disk = make_positional_disk_io();
  std::vector<DiskRun> runs;
  for (std::uint64_t at = 0; at < bytes_.size(); at += 10) {
    runs.push_back({bytes_.data() + at, at, 10});
  }
  ASSERT_GT(runs.size(), 2048u);
  ASSERT_TRUE(disk->write(fd_, runs));
  EXPECT_EQ(file(), bytes_);
}

TEST_F(PositionalDiskIoTest, ReportsAFileThatEndsTooEarly) {
  fill_file();
  const auto disk = make_positional_disk_io();
  Bytes memory(100);
  const DiskRun beyond{memory.data(), bytes_.size() - 60, 100};
  const auto result = disk->read(fd_, {&beyond, 1});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::io_error);
  EXPECT_NE(result.error().detail.find("end of file"), std::string::npos) << result.error().detail;
  EXPECT_NE(result.error().detail.find("40 bytes missing"), std::string::npos)
      << result.error().detail;
}

TEST_F(PositionalDiskIoTest, ReportsAFullDisk) {
  const int full = ::open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  const auto disk = make_positional_disk_io();
  const DiskRun run{bytes_.data(), 0, 100};
  const auto result = disk->write(full, {&run, 1});
  ::close(full);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::no_capacity);
}

TEST_F(PositionalDiskIoTest, ErrorNamesTheCallItsOffsetAndTheReason) {
  FileCalls broken;
  broken.write = [](FileCalls::Target, std::span<const iovec>) { return -std::int64_t{EIO}; };
  const auto disk = make_positional_disk_io(std::move(broken));
  const DiskRun run{bytes_.data(), 4321, 100};
  const auto result = disk->write(fd_, {&run, 1});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::io_error);
  EXPECT_EQ(result.error().detail, "write at offset 4321 failed: Input/output error");
}

TEST_F(PositionalDiskIoTest, ADiskThatFillsUpHalfwayFailsTheWrite) {
  FileCalls filling = FileCalls::of_the_system();
  filling.write = [real = std::move(filling.write)](FileCalls::Target at,
                                                    std::span<const iovec> vectors) {
    if (at.offset_bytes > 0) return -std::int64_t{ENOSPC};
    const iovec half{vectors[0].iov_base, vectors[0].iov_len / 2};
    return real(at, {&half, 1});
  };
  const auto disk = make_positional_disk_io(std::move(filling));
  const DiskRun run{bytes_.data(), 0, 100};
  const auto result = disk->write(fd_, {&run, 1});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::no_capacity);
}

TEST_F(PositionalDiskIoTest, EmptyRunsAndEmptyCallsSucceed) {
  const auto disk = make_positional_disk_io();
  const DiskRun nothing{nullptr, 10, 0};
  EXPECT_TRUE(disk->read(fd_, {&nothing, 1}));
  EXPECT_TRUE(disk->write(fd_, {}));
}

}  // namespace
}  // namespace cairn
