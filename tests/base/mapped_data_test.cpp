#include "base/mapped_data.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>

#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// The resident bytes of this range, as the kernel counts them. ThreadSanitizer's shadow memory is
// not in it.
std::uint64_t resident_bytes(std::span<const std::byte> bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
  std::ifstream file("/proc/self/smaps");
  std::uint64_t resident_kib = 0;
  bool is_of_them = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    unsigned long kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      is_of_them = begin < first + bytes.size() && first < end;
    } else if (is_of_them && std::sscanf(line.c_str(), "Rss: %lu kB", &kib) == 1) {
      resident_kib += kib;
    }
  }
  return resident_kib * 1024;
}

class MappedDataTest : public testing::TestWithParam<bool> {
 protected:
  std::filesystem::path file_of(std::uint64_t size_bytes) {
    const auto path = folder_.path() / "data";
    std::ofstream out(path, std::ios::binary);
    std::string piece(kMiB, '\0');
    for (std::uint64_t at = 0; at < size_bytes; at += piece.size()) {
      piece.resize(std::min<std::uint64_t>(piece.size(), size_bytes - at));
      for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = byte_at(at + i);
      out << piece;
    }
    return path;
  }
  static char byte_at(std::uint64_t at) { return static_cast<char>(at * 31 + at / 4096); }
  MappedData open(const std::filesystem::path& path) {
    return MappedData::open(path, {.is_mapped = GetParam(), .counts = &counts_}).value();
  }

  fakes::TempDir folder_;
  MappedCounts counts_;
};

TEST_P(MappedDataTest, HasTheBytesOfTheFile) {
  const MappedData data = open(file_of(100'000));
  EXPECT_EQ(data.is_mapped(), GetParam());
  ASSERT_EQ(data.bytes().size(), 100'000u);
  std::uint64_t wrong = 0;
  for (std::uint64_t at = 0; at < 100'000; ++at) {
    if (data.bytes()[at] != static_cast<std::byte>(byte_at(at))) ++wrong;
  }
  EXPECT_EQ(wrong, 0u);
  std::array<std::byte, 10> room{};
  EXPECT_TRUE(data.copy(99'990, room));
  EXPECT_EQ(room[9], static_cast<std::byte>(byte_at(99'999)));
  EXPECT_EQ(counts_.mapped_files, GetParam() ? 1u : 0u);
  EXPECT_EQ(counts_.files_on_heap, GetParam() ? 0u : 1u);
}

TEST_P(MappedDataTest, EmptyFileHasNoBytes) {
  const MappedData data = open(file_of(0));
  EXPECT_TRUE(data.bytes().empty());
  EXPECT_TRUE(data.copy(0, {}));
}

TEST_P(MappedDataTest, ReadsReleasedBytesAgain) {
  MappedData data = open(file_of(3 * MappedData::kReleaseBytes));
  const auto sum = [&] {
    std::uint64_t all = 0;
    for (const std::byte one : data.bytes()) all += std::to_integer<std::uint64_t>(one);
    return all;
  };
  const std::uint64_t expected = sum();
  data.done_before(data.size_bytes());
  EXPECT_EQ(sum(), expected);
  EXPECT_EQ(counts_.released_bytes, GetParam() ? data.size_bytes() : 0u);
}

INSTANTIATE_TEST_SUITE_P(, MappedDataTest, testing::Bool(),
                         [](const auto& of) { return of.param ? "Mapped" : "OnTheHeap"; });

class MappedFileTest : public MappedDataTest {};
INSTANTIATE_TEST_SUITE_P(, MappedFileTest, testing::Values(true));

// The test reads the file's 96 MiB through a window of 8 MiB. The kernel also maps some pages
// around each page read.
TEST_P(MappedFileTest, KeepsLittleOfALargeFileInMemory) {
  constexpr std::uint64_t kFileBytes = 96 * kMiB;
  constexpr std::uint64_t kBoundBytes = 3 * MappedData::kReleaseBytes;
  MappedData data = open(file_of(kFileBytes));
  std::uint64_t most = 0;
  std::uint64_t wrong = 0;
  for (std::uint64_t at = 0; at < kFileBytes; ++at) {
    if (data.bytes()[at] != static_cast<std::byte>(byte_at(at))) ++wrong;
    if (at % kMiB != 0) continue;
    most = std::max(most, resident_bytes(data.bytes()));
    data.done_before(at);
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(most, 0u);
  EXPECT_LE(most, kBoundBytes);
  EXPECT_GE(counts_.released_bytes, kFileBytes - kBoundBytes);
  EXPECT_EQ(counts_.refused_advice, 0u);
}

TEST_P(MappedFileTest, ReportsATruncatedFile) {
  const auto path = file_of(100'000);
  const MappedData data = open(path);
  ASSERT_EQ(::truncate(path.c_str(), 4096), 0);
  std::array<std::byte, 100> room{};
  EXPECT_TRUE(data.copy(0, room));
  EXPECT_FALSE(data.copy(50'000, room));
}

TEST(MappedData, ReportsFilesThatItCannotOpen) {
  const fakes::TempDir folder;
  const auto path = folder.path() / "none";
  EXPECT_EQ(MappedData::open(path, {}).error().code, ErrorCode::not_found);
  EXPECT_EQ(MappedData::open(folder.path(), {}).error().code, ErrorCode::io_error);
  std::ofstream(path) << "12345";
  const auto refused = MappedData::open(path, {.max_heap_bytes = 4, .is_mapped = false});
  EXPECT_EQ(refused.error().code, ErrorCode::io_error);
}

TEST(MappedData, CountsRefusedAdvice) {
  const fakes::TempDir folder;
  const auto path = folder.path() / "locked";
  {
    std::ofstream out(path);
    out << std::string(2 * MappedData::kReleaseBytes, 'x');
  }
  MappedCounts counts;
  MappedData data = MappedData::open(path, {.counts = &counts}).value();
  // Locked pages are not released. The test uses the system call, because mlock() does nothing
  // under AddressSanitizer.
  if (::syscall(SYS_mlock, data.bytes().data(), 4096) != 0) {
    GTEST_SKIP() << "this machine allows no locked memory";
  }
  data.done_before(data.size_bytes());
  EXPECT_EQ(counts.refused_advice, 1u);
  EXPECT_EQ(data.bytes().back(), std::byte{'x'});
}

}  // namespace
}  // namespace cairn
