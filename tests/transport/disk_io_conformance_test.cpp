// Tests of what every DiskIo must do, with faults below it: pieces that fail, end short or are
// interrupted.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "tests/fakes/temp_dir.hpp"
#include "transport/io/positional_disk_io.hpp"
#include "transport/io/uring_disk_io.hpp"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;
// Gets the number of bytes that a piece of I/O moved, or its negated errno. Returns the result to
// report instead.
using DiskFault = std::function<std::int32_t(std::int32_t)>;

// Prepares all memory before each call, and forgets it afterwards.
class PreparingDiskIo final : public DiskIo {
 public:
  explicit PreparingDiskIo(std::unique_ptr<DiskIo> real) : real_(std::move(real)) {}
  void submit(DiskCall call, Done done) override {
    auto prepared = prepare_all(call.runs);
    real_->submit(std::move(call), [prepared = std::move(prepared),
                                    done = std::move(done)](Result<> result) mutable {
      prepared.reset();
      done(std::move(result));
    });
  }

 private:
  std::optional<PreparedMemory> prepare_all(std::span<const DiskRun> runs) {
    if (runs.empty()) return std::nullopt;
    const DiskRun& last = runs.back();
    auto prepared =
        PreparedMemory::of(*real_, {runs.front().memory, last.memory + last.size_bytes});
    EXPECT_TRUE(prepared) << prepared.error().detail;
    if (!prepared) return std::nullopt;
    return std::move(*prepared);
  }
  const std::unique_ptr<DiskIo> real_;
};

Result<std::unique_ptr<DiskIo>> make_engine(const std::string& name, DiskFault fault) {
  if (name != "threads") {
    auto uring = make_uring_disk_io({.depth = 4,
                                     .piece_bytes = 8192,
                                     .register_buffers = name == "io_uring_registered",
                                     .ended = std::move(fault)});
    if (!uring || name == "io_uring") return uring;
    Bytes page(4096);
    CAIRN_TRY((*uring)->prepare(page));
    (*uring)->forget(page);
    return std::unique_ptr<DiskIo>(std::make_unique<PreparingDiskIo>(std::move(*uring)));
  }
  const auto faulty = [&fault](FileCalls::Call real) -> FileCalls::Call {
    if (!fault) return real;
    return [real = std::move(real), fault](FileCalls::Target at, std::span<const iovec> vectors) {
      return std::int64_t{fault(static_cast<std::int32_t>(real(at, vectors)))};
    };
  };
  FileCalls calls = FileCalls::of_the_system();
  return make_positional_disk_io({faulty(calls.read), faulty(calls.write)});
}

class DiskIoConformance : public testing::TestWithParam<std::string> {
 protected:
  DiskIoConformance() : fd_(::open((folder_.path() / "file").c_str(), O_RDWR | O_CREAT, 0600)) {}
  ~DiskIoConformance() override { ::close(fd_); }
  void SetUp() override {
    if (!make_engine(GetParam(), {})) GTEST_SKIP() << make_engine(GetParam(), {}).error().detail;
  }

  std::unique_ptr<DiskIo> scheduler(DiskFault fault = {}) {
    return std::move(make_engine(GetParam(), std::move(fault)).value());
  }
  Bytes random_bytes(std::size_t size) {
    Bytes bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }
  // Runs of uneven lengths; some follow each other in the file and some leave a gap.
  static std::vector<DiskRun> runs_over(Bytes& memory) {
    std::vector<DiskRun> runs;
    std::uint64_t in_file = 0;
    std::uint64_t size = 1;
    for (std::uint64_t at = 0; at < memory.size(); at += runs.back().size_bytes) {
      size = size * 7 % 9973;
      runs.push_back(
          {memory.data() + at, in_file, std::min<std::uint64_t>(size, memory.size() - at)});
      in_file += runs.back().size_bytes + (size % 3 == 0 ? 100 : 0);
    }
    return runs;
  }

  fakes::TempDir folder_;
  const int fd_;
  std::mt19937 random_{7};
};

INSTANTIATE_TEST_SUITE_P(Engines, DiskIoConformance,
                         testing::Values("threads", "io_uring", "io_uring_registered"),
                         [](const auto& scheduler) { return scheduler.param; });

TEST_P(DiskIoConformance, ReadsBackWrittenBytes) {
  const auto disk = scheduler();
  Bytes out = random_bytes(200'000);
  ASSERT_TRUE(disk->write(fd_, runs_over(out)));
  Bytes in(out.size());
  ASSERT_TRUE(disk->read(fd_, runs_over(in)));
  EXPECT_TRUE(in == out);
  EXPECT_TRUE(disk->read(fd_, {}));
}

TEST_P(DiskIoConformance, AHoleReadsAsZerosAndTakesNoRoom) {
  const auto disk = scheduler();
  Bytes out = random_bytes(64 * 4096);
  const DiskRun run{out.data(), 0, out.size()};
  ASSERT_TRUE(disk->write(fd_, {&run, 1}));
  ASSERT_TRUE(disk->flush(fd_));
  const auto room = [&] {
    struct ::stat status {};
    EXPECT_EQ(::fstat(fd_, &status), 0);
    EXPECT_EQ(status.st_size, 64 * 4096);
    return status.st_blocks * 512;
  };
  const auto before = room();
  ASSERT_TRUE(disk->punch(fd_, {.offset_bytes = 4096, .size_bytes = 32 * 4096}));
  EXPECT_EQ(before - room(), 32 * 4096);
  ASSERT_TRUE(disk->punch(fd_, {.offset_bytes = 64 * 4096, .size_bytes = 4096}));
  EXPECT_EQ(before - room(), 32 * 4096) << "past the end";
  Bytes in(out.size());
  const DiskRun back{in.data(), 0, in.size()};
  ASSERT_TRUE(disk->read(fd_, {&back, 1}));
  std::fill(out.begin() + 4096, out.begin() + 33 * 4096, std::byte{});
  EXPECT_TRUE(in == out);
}

TEST_P(DiskIoConformance, ContinuesAfterShortAndInterruptedPieces) {
  std::mt19937 dice(11);
  const auto disk = scheduler([&dice](std::int32_t moved) {
    if (moved <= 1) return moved;
    switch (dice() % 3) {
      case 0:
        return -EINTR;
      case 1:
        return std::int32_t{1} + static_cast<std::int32_t>(dice() % static_cast<unsigned>(moved));
      default:
        return moved;
    }
  });
  Bytes out = random_bytes(60'000);
  ASSERT_TRUE(disk->write(fd_, runs_over(out)));
  Bytes in(out.size());
  ASSERT_TRUE(disk->read(fd_, runs_over(in)));
  EXPECT_TRUE(in == out);
}

TEST_P(DiskIoConformance, AnyFailedPieceFailsTheCall) {
  Bytes bytes = random_bytes(60'000);
  std::int64_t pieces = 0;
  ASSERT_TRUE(
      scheduler([&](std::int32_t moved) { return ++pieces, moved; })->write(fd_, runs_over(bytes)));
  ASSERT_GE(pieces, 3);
  for (const bool reading : {false, true}) {
    for (std::int64_t failing = 1; failing <= pieces; ++failing) {
      std::int64_t count = 0;
      const auto disk = scheduler(
          [&](std::int32_t moved) { return ++count == failing ? std::int32_t{-EIO} : moved; });
      const auto moved =
          reading ? disk->read(fd_, runs_over(bytes)) : disk->write(fd_, runs_over(bytes));
      ASSERT_FALSE(moved) << failing;
      EXPECT_EQ(moved.error().code, ErrorCode::io_error);
      EXPECT_TRUE(disk->read(fd_, runs_over(bytes))) << "a failure must not affect the next call";
    }
  }
}

TEST_P(DiskIoConformance, AFullDiskIsNoCapacity) {
  Bytes bytes = random_bytes(10'000);
  for (const int error : {ENOSPC, EDQUOT}) {
    const auto disk = scheduler([error](std::int32_t) { return std::int32_t{-error}; });
    EXPECT_EQ(disk->write(fd_, runs_over(bytes)).error().code, ErrorCode::no_capacity);
  }
}

TEST_P(DiskIoConformance, AFileThatEndsTooEarlyIsAnError) {
  const auto disk = scheduler();
  Bytes bytes = random_bytes(10'000);
  ASSERT_TRUE(disk->write(fd_, std::vector<DiskRun>{{bytes.data(), 0, 10'000}}));
  const auto read = disk->read(fd_, std::vector<DiskRun>{{bytes.data(), 5'000, 10'000}});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::io_error);
}

TEST_P(DiskIoConformance, CallsOfManyThreadsDoNotMix) {
  const auto disk = scheduler();
  constexpr std::size_t kEach = 50'000;
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (std::uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Bytes out(kEach, static_cast<std::byte>(t + 1));
      Bytes in(kEach);
      const bool moved = disk->write(fd_, std::vector<DiskRun>{{out.data(), t * kEach, kEach}}) &&
                         disk->read(fd_, std::vector<DiskRun>{{in.data(), t * kEach, kEach}});
      if (moved && in == out) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 6);
}

// The kernel remembers pages, not addresses. It must not use the old pages for memory that is
// mapped later at the same address.
TEST(UringBuffers, DoesNotUseForgottenMemory) {
  auto disk = make_uring_disk_io({.depth = 2, .ended = {}});
  if (!disk) GTEST_SKIP() << disk.error().detail;
  constexpr std::size_t kSize = 1 << 16;
  fakes::TempDir folder;
  const int fd = ::open((folder.path() / "file").c_str(), O_RDWR | O_CREAT, 0600);
  const auto map = [](void* where, int flags) {
    return static_cast<std::byte*>(
        ::mmap(where, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0));
  };
  std::byte* const memory = map(nullptr, 0);
  std::memset(memory, 1, kSize);
  {
    auto prepared = PreparedMemory::of(**disk, {memory, kSize});
    if (!prepared) GTEST_SKIP() << prepared.error().detail;
    ASSERT_TRUE((*disk)->write(fd, std::vector<DiskRun>{{memory, 0, kSize}}));
  }
  ASSERT_EQ(map(memory, MAP_FIXED), memory);
  std::memset(memory, 2, kSize);
  ASSERT_TRUE((*disk)->write(fd, std::vector<DiskRun>{{memory, 0, kSize}}));
  std::byte read{};
  EXPECT_EQ(::pread(fd, &read, 1, kSize / 2), 1);
  EXPECT_EQ(read, std::byte{2});
  ::munmap(memory, kSize);
  ::close(fd);
}

// Without its own limit, the process's limit of locked memory decides.
TEST(UringBuffers, RefusedMemoryHasNoEffect) {
  auto disk = make_uring_disk_io({.depth = 2, .ended = {}});
  if (!disk) GTEST_SKIP() << disk.error().detail;
  auto* const nothing = reinterpret_cast<std::byte*>(std::uintptr_t{4096});  // never mapped
  EXPECT_FALSE((*disk)->prepare({nothing, 8192}));
  fakes::TempDir folder;
  const int fd = ::open((folder.path() / "file").c_str(), O_RDWR | O_CREAT, 0600);
  Bytes out(10'000, std::byte{7});
  Bytes in(10'000);
  ASSERT_TRUE((*disk)->write(fd, std::vector<DiskRun>{{out.data(), 0, out.size()}}));
  ASSERT_TRUE((*disk)->read(fd, std::vector<DiskRun>{{in.data(), 0, in.size()}}));
  EXPECT_TRUE(in == out);
  ::close(fd);
}

}  // namespace
}  // namespace cairn
