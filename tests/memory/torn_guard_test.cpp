#include "memory/torn_guard.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "base/file_descriptor.hpp"

namespace cairn {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kBytes = 4 * kPageBytes;

// A mapped file that can be truncated.
struct Mapped {
  Mapped() : file(::memfd_create("torn", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(file.get(), kBytes), 0);
    data = static_cast<std::byte*>(
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  }
  ~Mapped() { ::munmap(data, kBytes); }
  std::span<std::byte> bytes() const { return {data, kBytes}; }
  void cut_off() const { ASSERT_EQ(::ftruncate(file.get(), kPageBytes), 0); }

  const FileDescriptor file;
  std::byte* data = nullptr;
};

TEST(TornGuard, IsNotTornWhileTheMemoryStays) {
  const Mapped mapped;
  const TornGuard guard = TornGuard::make(mapped.bytes()).value();
  mapped.data[kBytes - 1] = std::byte{7};
  EXPECT_FALSE(guard.is_torn());
}

TEST(TornGuard, ReportsTornMemoryInsteadOfEndingTheProcess) {
  const Mapped other;
  const TornGuard others = TornGuard::make(other.bytes()).value();
  const Mapped mapped;
  const TornGuard guard = TornGuard::make(mapped.bytes()).value();
  mapped.data[kBytes - 1] = std::byte{7};
  mapped.cut_off();
  EXPECT_FALSE(guard.is_torn()) << "no access so far";
  const std::byte last = *const_cast<volatile std::byte*>(mapped.data + kBytes - 1);
  EXPECT_EQ(last, std::byte{0});
  EXPECT_TRUE(guard.is_torn());
  *const_cast<volatile std::byte*>(mapped.data + 2 * kPageBytes) = std::byte{1};  // private
  EXPECT_FALSE(others.is_torn());
}

TEST(TornGuard, LimitsTheNumberOfGuards) {
  const Mapped mapped;
  std::vector<TornGuard> guards;
  for (std::size_t i = 0; i < TornGuard::kMax; ++i) {
    guards.push_back(TornGuard::make(mapped.bytes()).value());
  }
  const auto beyond = TornGuard::make(mapped.bytes());
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::too_many);
  guards.pop_back();
  EXPECT_TRUE(TornGuard::make(mapped.bytes()));
}

using TornGuardDeathTest = ::testing::Test;

TEST(TornGuardDeathTest, UnguardedMemoryStillEndsTheProcess) {
  const auto touch_missing_page = [] {
    std::signal(SIGBUS, SIG_DFL);  // sanitizers install their own handler
    const Mapped guarded;
    const TornGuard guard = TornGuard::make(guarded.bytes()).value();
    const Mapped mapped;
    mapped.cut_off();
    *const_cast<volatile std::byte*>(mapped.data + 2 * kPageBytes) = std::byte{1};
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(touch_missing_page(), ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace cairn
