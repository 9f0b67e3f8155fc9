// Tests of what only the host runtime does; tests/conformance tests what every runtime does.
#include "memory/host/host_runtime.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "memory/cuda/cuda_runtime.hpp"
#include "memory/device_runtime.hpp"
#include "memory/host/host_memory.hpp"
#include "tests/conformance/stream_gate.hpp"
#include "tests/fakes/faulty_runtime.hpp"

namespace cairn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(HostRuntime, HasAsManyDevicesAsConfigured) {
  for (const std::uint32_t devices : {1u, 3u, 64u}) {
    const auto runtime = make_host_runtime({.devices = devices, .device_bytes = 5000}).value();
    ASSERT_EQ(runtime->devices().size(), devices);
    EXPECT_EQ(runtime->devices().back().total_bytes, 5000u);
    EXPECT_EQ(runtime->name(), "host");
    EXPECT_EQ(runtime->visibility(), MemoryVisibility::system);
  }
}

TEST(HostRuntime, RefusesNoDevicesAndTooMany) {
  for (const std::uint32_t devices : {0u, 65u}) {
    const auto made = make_host_runtime({.devices = devices});
    ASSERT_TRUE(made.has_error());
    EXPECT_EQ(made.error().code, ErrorCode::out_of_range);
    EXPECT_THAT(made.error().detail, AllOf(HasSubstr(std::to_string(devices)), HasSubstr("64")));
  }
}

TEST(HostRuntime, RefusesAListThatIsTooShort) {
  const auto runtime = make_host_runtime({}).value();
  const auto stream = runtime->create_stream(0).value();
  const std::vector<std::byte> source(100);
  std::vector<std::byte> destination(100);
  std::vector<MemoryCopy> copies;
  for (std::size_t i = 0; i < 100; ++i) copies.push_back({&destination[i], &source[i], 1});
  const std::uint64_t list_bytes = stream->list_bytes(copies.size());
  ASSERT_GT(list_bytes, 0u);
  const Region list = runtime->allocate_device(list_bytes, {}).value();
  const RegionView part = list.view({.offset_bytes = 0, .size_bytes = list_bytes - 1}).value();
  EXPECT_EQ(stream->copy(copies, CopyForm::batch, part).error().code, ErrorCode::device_error);
  EXPECT_TRUE(stream->copy(copies, CopyForm::batch, list.view()).has_value());
  EXPECT_TRUE(stream->synchronize().has_value());
}

TEST(HostRuntime, CountsEachDevicesMemory) {
  const auto runtime = make_host_runtime({.devices = 2, .device_bytes = 10'000}).value();
  const Region most = runtime->allocate_device(9'000, {}).value();
  const auto beyond = runtime->allocate_device(1'001, {});
  ASSERT_TRUE(beyond.has_error());
  EXPECT_EQ(beyond.error().code, ErrorCode::no_capacity);
  EXPECT_THAT(beyond.error().detail, AllOf(HasSubstr("1001 bytes"), HasSubstr("host device 0"),
                                           HasSubstr("1000 of 10000")));
  EXPECT_TRUE(runtime->allocate_device(1'000, {}).has_value());
  EXPECT_TRUE(runtime->allocate_device(10'000, {.device_id = 1}).has_value());
}

TEST(HostRuntime, CountsReturnedMemoryAsFree) {
  const auto runtime = make_host_runtime({.device_bytes = 10'000}).value();
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(runtime->allocate_device(10'000, {}).has_value());
  }
}

TEST(HostRuntime, RefusesMorePinnedMemoryThanTheMachineHas) {
  const auto runtime = make_host_runtime({}).value();
  EXPECT_EQ(runtime->allocate_pinned(machine_memory_bytes() + 1, {}).error().code,
            ErrorCode::no_capacity);
}

TEST(HostRuntime, MemoryOutlivesTheRuntime) {
  auto runtime = make_host_runtime({.device_bytes = 4096}).value();
  const Region region = runtime->allocate_device(4096, {}).value();
  runtime.reset();
  std::memset(region.data(), 1, 4096);
  EXPECT_EQ(region.data()[4095], std::byte{1});
}

TEST(HostRuntime, SharesMemoryThroughAFileThatAnotherProcessCanMap) {
  const auto runtime = make_host_runtime({}).value();
  const Region region = runtime->allocate_device(8192, {}).value();
  ASSERT_GE(region.shared_fd(), 0);
  EXPECT_EQ(region.view().fd(), -1);
  void* const other = ::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, region.shared_fd(), 0);
  ASSERT_NE(other, MAP_FAILED);
  std::memset(region.data(), 0x5A, 8192);
  EXPECT_EQ(std::memcmp(other, region.data(), 8192), 0);
  ::munmap(other, 8192);
}

TEST(HostRuntime, ClosesTheFileBehindItsMemory) {
  const auto runtime = make_host_runtime({}).value();
  int fd = -1;
  {
    const Region region = runtime->allocate_pinned(4096, {}).value();
    fd = region.shared_fd();
  }
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

TEST(MemoryBudget, NeverReservesMoreThanItHas) {
  MemoryBudget budget("test memory", 1000);
  std::atomic<int> given{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) given += budget.reserve(3).has_value() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(given, 333);
}

TEST(HostStream, BlocksTheCallerAtAThousandOperations) {
  const auto runtime = make_host_runtime({}).value();
  const auto stream = runtime->create_stream(0).value();
  const auto gate = conformance::make_page_gate();
  const Region region = Region::system(8).value();
  gate->hold(*stream);
  std::atomic<int> issued{0};
  std::thread issuer([&] {
    for (; issued < 2000; ++issued) stream->zero(region.data(), 8).value();
  });
  while (issued < 1023) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_EQ(issued, 1023);  // plus the one that holds the stream
  gate->open();
  issuer.join();
  stream->record().value()->wait().value();
}

TEST(HostStream, RefusesACopyOntoItself) {
  const auto runtime = make_host_runtime({}).value();
  const Region region = Region::system(100).value();
  const auto stream = runtime->create_stream(0).value();
  const MemoryCopy forward{region.data() + 10, region.data(), 11};
  const MemoryCopy backward{region.data(), region.data() + 10, 11};
  const MemoryCopy beside{region.data() + 10, region.data(), 10};
  EXPECT_EQ(stream->copy({&forward, 1}).error().code, ErrorCode::device_error);
  EXPECT_EQ(stream->copy({&backward, 1}).error().code, ErrorCode::device_error);
  EXPECT_TRUE(stream->copy({&beside, 1}).has_value());
}

TEST(HostStream, RefusesAnotherRuntimesEvent) {
  fakes::FaultyRuntime other(make_host_runtime({}).value());
  const auto event = other.create_stream(0).value()->record().value();
  const auto runtime = make_host_runtime({}).value();
  EXPECT_EQ(runtime->create_stream(0).value()->wait_for(*event).error().code,
            ErrorCode::device_error);
}

TEST(CudaRuntime, SaysWhyItIsUnavailable) {
  const auto made = make_cuda_runtime();
  if (made) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(made.error().code, ErrorCode::unavailable);
  EXPECT_FALSE(made.error().detail.empty());
}

}  // namespace
}  // namespace cairn
