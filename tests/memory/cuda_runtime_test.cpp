// Tests of what only the CUDA runtime does, on the fake libcudart. tests/conformance tests what
// every runtime does.
#include "memory/cuda/cuda_runtime.hpp"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>

#include "memory/cuda/copy_kernel.hpp"
#include "memory/host/host_runtime.hpp"
#include "tests/base/eventually.hpp"
#include "tests/conformance/stream_gate.hpp"
#include "tests/fakes/cudart/fake_cudart.hpp"

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kPieceBytes = 64 << 10;

class CudaRuntimeTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fake_) << "the fake libcudart is not first in LD_LIBRARY_PATH";
    fake_->reset(1);
    runtime_ = make_cuda_runtime(CudaRuntimeOptions{.register_piece_bytes = kPieceBytes}).value();
  }
  void TearDown() override {
    runtime_.reset();
    EXPECT_EQ(fake_->leaks(), "");
  }
  Region device(std::uint64_t size_bytes) {
    return runtime_->allocate_device(size_bytes, {}).value();
  }
  Region pinned(std::uint64_t size_bytes) {
    return runtime_->allocate_pinned(size_bytes, {}).value();
  }
  std::unique_ptr<Stream> stream(int device_id = 0) {
    return runtime_->create_stream(device_id).value();
  }
  // `count` pieces of 16 bytes, each 32 bytes after the last: none are adjacent.
  static std::vector<MemoryCopy> apart(const Region& to, const Region& from, std::size_t count) {
    std::vector<MemoryCopy> copies;
    for (std::size_t i = 0; i < count; ++i) {
      copies.push_back({to.data() + 32 * i, from.data() + 32 * i, 16});
    }
    return copies;
  }
  // Breaks device 0 during a copy, and waits for the error.
  Error lose_device() {
    const Region here = pinned(8);
    const Region there = device(8);
    const auto issuing = stream();
    const auto gate = conformance::make_cuda_gate();
    const auto event = break_after(*gate, *issuing, {there.data(), here.data(), 8});
    gate->open();
    return event->wait().error();
  }
  // Issues a copy that breaks device 0 once the gate is open, and records an event after it.
  std::unique_ptr<Event> break_after(conformance::StreamGate& gate, Stream& issuing,
                                     MemoryCopy copy) {
    fake_->fail("work", 2, cudaErrorIllegalAddress);
    gate.hold(issuing);
    issuing.copy({&copy, 1}).value();
    return issuing.record().value();
  }

  const std::optional<fakes::FakeCudart> fake_ = fakes::FakeCudart::loaded();
  std::unique_ptr<DeviceRuntime> runtime_;
};

TEST_F(CudaRuntimeTest, ErrorNamesTheCallItsPurposeAndCudasMessage) {
  fake_->fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
  const Error error = runtime_->allocate_device(12345, {}).error();
  EXPECT_EQ(error.code, ErrorCode::no_capacity);
  EXPECT_EQ(error.detail,
            "device 0: cudaMalloc to allocate device memory (12345 bytes): out of memory "
            "(cudaErrorMemoryAllocation)");
}

TEST_F(CudaRuntimeTest, CpuCannotTouchDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Region region = device(8);
  EXPECT_DEATH(std::memset(region.data(), 0, 8), "");
}

TEST_F(CudaRuntimeTest, UndoesAnIncompleteRegistration) {
  fake_->fail("cudaHostRegister", 3, cudaErrorMemoryAllocation);
  EXPECT_EQ(runtime_->allocate_pinned(4 * kPieceBytes, {}).error().code, ErrorCode::no_capacity);
  EXPECT_EQ(fake_->registrations(), 0u);
  EXPECT_EQ(fake_->last_error(), cudaSuccess);
  EXPECT_EQ(fake_->calls("cudaHostUnregister"), 2u);
}

TEST_F(CudaRuntimeTest, RegistersInPiecesAndUnregistersEach) {
  {
    const Region region = pinned(3 * kPieceBytes + 1);
    EXPECT_EQ(fake_->registrations(), 4u);
  }
  EXPECT_EQ(fake_->registrations(), 0u);
}

TEST_F(CudaRuntimeTest, OtherProcessesCanMapPinnedMemory) { EXPECT_GE(pinned(8).shared_fd(), 0); }

TEST_F(CudaRuntimeTest, MergesAdjacentPiecesIntoOneCopy) {
  const Region from = pinned(4096);
  const Region to = device(4096);
  std::vector<MemoryCopy> copies;
  for (std::size_t i = 0; i < 4096; i += 16) {
    copies.push_back({to.data() + i, from.data() + i, 16});
  }
  stream()->copy(copies).value();
  EXPECT_EQ(fake_->calls("cudaMemcpyAsync"), 1u);
  EXPECT_EQ(fake_->calls("cudaMemcpyBatchAsync"), 0u);
}

TEST_F(CudaRuntimeTest, CopiesFewPiecesSinglyAndManyInABatch) {
  const Region from = device(kPieceBytes);
  const Region to = device(kPieceBytes);
  const auto issuing = stream();
  issuing->copy(apart(to, from, 3)).value();
  EXPECT_EQ(fake_->calls("cudaMemcpyAsync"), 3u);
  issuing->copy(apart(to, from, 100)).value();
  EXPECT_EQ(fake_->calls("cudaMemcpyAsync"), 3u);
  EXPECT_EQ(fake_->calls("cudaMemcpyBatchAsync"), 1u);
}

TEST_F(CudaRuntimeTest, SplitsABatchThatIsTooLong) {
  constexpr std::size_t kMany = 10'000;
  const Region from = device(32 * kMany);
  const Region to = device(32 * kMany);
  stream()->copy(apart(to, from, kMany)).value();
  EXPECT_EQ(fake_->calls("cudaMemcpyBatchAsync"), 3u);
}

TEST_F(CudaRuntimeTest, CopiesSinglyIfTheFormIsLoop) {
  const Region from = device(kPieceBytes);
  const Region to = device(kPieceBytes);
  stream()->copy(apart(to, from, 100), CopyForm::loop).value();
  EXPECT_EQ(fake_->calls("cudaMemcpyAsync"), 100u);
}

TEST_F(CudaRuntimeTest, CopiesPiecesAtEvenDistancesAsRows) {
  const Region from = pinned(kPieceBytes);
  const Region to = device(kPieceBytes);
  std::vector<MemoryCopy> copies = apart(to, from, 100);
  copies.push_back({to.data() + 5000, from.data() + 4000, 7});
  stream()->copy(copies, CopyForm::rows).value();
  EXPECT_EQ(fake_->calls("cudaMemcpy2DAsync"), 1u);
  EXPECT_EQ(fake_->calls("cudaMemcpyAsync"), 1u);
}

TEST_F(CudaRuntimeTest, CopiesRowsAcrossRegistrationsAsPieces) {
  const Region from = pinned(2 * kPieceBytes);
  const Region to = device(2 * kPieceBytes);
  stream()->copy(apart(to, from, 2 * kPieceBytes / 32), CopyForm::rows).value();
  EXPECT_EQ(fake_->calls("cudaMemcpy2DAsync"), 0u);
  EXPECT_EQ(fake_->calls("cudaMemcpyBatchAsync"), 1u);
}

TEST_F(CudaRuntimeTest, CopiesInterleavedRowsAsPieces) {
  const Region here = device(kPieceBytes);
  std::vector<MemoryCopy> copies;
  for (std::size_t i = 0; i < 64; ++i) {
    copies.push_back({here.data() + 32 * i, here.data() + 32 * i + 16, 16});
  }
  stream()->copy(copies, CopyForm::rows).value();
  EXPECT_EQ(fake_->calls("cudaMemcpy2DAsync"), 0u);
  EXPECT_EQ(fake_->calls("cudaMemcpyBatchAsync"), 1u);
}

TEST_F(CudaRuntimeTest, CopiesManyPiecesWithFewKernels) {
  if (!has_copy_kernel()) GTEST_SKIP() << "built without nvcc";
  constexpr std::size_t kMany = kLargeCopyTable + 1;
  const Region from = pinned(32 * kMany);
  const Region to = device(32 * kMany);
  stream()->copy(apart(to, from, kMany), CopyForm::kernel).value();
  EXPECT_EQ(fake_->calls("cudaLaunchKernel"), 2u);
  EXPECT_EQ(fake_->calls("cudaMemcpyBatchAsync"), 0u);
}

TEST_F(CudaRuntimeTest, NamesAKernelThatFailsToLaunch) {
  if (!has_copy_kernel()) GTEST_SKIP() << "built without nvcc";
  const Region from = pinned(4096);
  const Region to = device(4096);
  fake_->fail("cudaLaunchKernel", 1, cudaErrorInvalidValue);
  EXPECT_THAT(stream()->copy(apart(to, from, 64), CopyForm::kernel).error().detail,
              HasSubstr("cudaLaunchKernel to copy pieces by a kernel: invalid argument"));
  EXPECT_EQ(fake_->last_error(), cudaSuccess);
}

TEST_F(CudaRuntimeTest, CopiesBetweenDevicesWithAPeerCopy) {
  const Region from = device(4096);
  const Region to = runtime_->allocate_device(4096, {.device_id = 1}).value();
  const MemoryCopy copy{to.data(), from.data(), 4096};
  const auto issuing = stream(1);
  issuing->copy({&copy, 1}).value();
  issuing->record().value()->wait().value();
  EXPECT_EQ(fake_->calls("cudaMemcpyPeerAsync"), 1u);
}

TEST_F(CudaRuntimeTest, RefusesACopyPastTheEndOfItsMemory) {
  const Region from = pinned(8);
  const Region to = device(7);
  const MemoryCopy copy{to.data(), from.data(), 8};
  EXPECT_THAT(stream()->copy({&copy, 1}).error().detail, HasSubstr("past the end"));
  EXPECT_THAT(stream()->zero(to.data(), 8).error().detail, HasSubstr("past the end"));
}

TEST_F(CudaRuntimeTest, ZeroesEveryKindOfMemoryInStreamOrder) {
  const Region source = pinned(2 * kPieceBytes);
  std::memset(source.data(), 7, source.size_bytes());
  const Region pageable = Region::system(2 * kPieceBytes).value();
  const Region target = pinned(2 * kPieceBytes);
  const auto issuing = stream();
  for (const Region* region : {&pageable, &target}) {
    const MemoryCopy copy{region->data(), source.data(), 2 * kPieceBytes};
    issuing->copy({&copy, 1}).value();
    issuing->zero(region->data() + 1, 2 * kPieceBytes - 2).value();
    issuing->record().value()->wait().value();
    EXPECT_EQ(region->data()[0], std::byte{7});
    EXPECT_EQ(std::count(region->data() + 1, region->data() + 2 * kPieceBytes - 1, std::byte{0}),
              2 * static_cast<std::ptrdiff_t>(kPieceBytes) - 2);
    EXPECT_EQ(region->data()[2 * kPieceBytes - 1], std::byte{7});
  }
}

TEST_F(CudaRuntimeTest, RefusesAnotherRuntimesEvent) {
  const auto host = make_host_runtime({}).value();
  const auto event = host->create_stream(0).value()->record().value();
  EXPECT_EQ(stream()->wait_for(*event).error().code, ErrorCode::device_error);
}

TEST_F(CudaRuntimeTest, RemembersWhyADeviceIsLost) {
  const Error error = lose_device();
  EXPECT_EQ(error.code, ErrorCode::device_error);
  EXPECT_EQ(error.detail,
            "device 0 is lost: cudaEventQuery to see whether work has ended: an illegal memory "
            "access was encountered (cudaErrorIllegalAddress)");
  EXPECT_EQ(runtime_->lost(), error.detail);
}

TEST_F(CudaRuntimeTest, FailsAtOnceOnALostDevice) {
  const Region memory = device(8);
  const Region unified = runtime_->allocate_unified(0, 8).value();
  const auto issuing = stream();
  const auto pending = issuing->record().value();
  const std::string why = lose_device().detail;
  const std::uint64_t calls = fake_->calls("cudaSetDevice");
  const auto expect_lost = [&](const auto& result) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::device_error);
    EXPECT_EQ(result.error().detail, why);
  };
  const MemoryCopy copy{memory.data(), unified.data(), 8};
  expect_lost(issuing->copy({&copy, 1}));
  expect_lost(issuing->zero(memory.data(), 8));
  expect_lost(issuing->prefetch(unified.view(), 0));
  expect_lost(issuing->record());
  expect_lost(pending->ready());
  expect_lost(pending->wait());
  expect_lost(runtime_->allocate_device(8, {}));
  expect_lost(runtime_->allocate_pinned(8, {}));
  expect_lost(runtime_->allocate_unified(0, 8));
  expect_lost(runtime_->create_stream(0));
  EXPECT_EQ(fake_->calls("cudaSetDevice"), calls) << "a call reached CUDA";
}

TEST_F(CudaRuntimeTest, ReachedEventStaysReached) {
  const auto reached = stream()->record().value();
  reached->wait().value();
  lose_device();
  EXPECT_TRUE(reached->ready().value());
}

TEST_F(CudaRuntimeTest, OtherDevicesGoOn) {
  lose_device();
  const Region memory = runtime_->allocate_device(8, {.device_id = 1}).value();
  const auto issuing = stream(1);
  issuing->zero(memory.data(), 8).value();
  issuing->record().value()->wait().value();
}

TEST_F(CudaRuntimeTest, DependentStreamsGetTheErrorOfALostDevice) {
  const Region here = pinned(8);
  const Region there = device(8);
  const auto first = stream(0);
  const auto second = stream(1);
  const auto third = stream(1);
  const auto gate = conformance::make_cuda_gate();
  const auto broken = break_after(*gate, *first, {there.data(), here.data(), 8});
  second->wait_for(*broken).value();
  const auto after = second->record().value();
  third->wait_for(*after).value();
  const auto last = third->record().value();
  gate->open();
  EXPECT_THAT(last->wait().error().detail, HasSubstr("device 0 is lost"));
  EXPECT_THAT(after->wait().error().detail, HasSubstr("device 0 is lost"));
}

TEST_F(CudaRuntimeTest, RegionsStreamsAndEventsOutliveTheRuntime) {
  const Region from = pinned(8);
  const Region to = device(8);
  const auto issuing = stream();
  runtime_.reset();
  const MemoryCopy copy{to.data(), from.data(), 8};
  issuing->copy({&copy, 1}).value();
  issuing->record().value()->wait().value();
}

TEST_F(CudaRuntimeTest, WakesEachWaiterAtItsOwnEvent) {
  const Region memory = device(kPieceBytes);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const auto issuing = stream();
      for (int round = 0; round < 50; ++round) {
        issuing->zero(memory.data() + 64 * t, 64).value();
        const auto event = issuing->record().value();
        event->wait().value();
        EXPECT_TRUE(event->ready().value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CudaRuntimeTest, WhenReachedRunsForAnEventOnALostDevice) {
  const Region here = pinned(8);
  const Region there = device(8);
  const auto issuing = stream();
  const auto gate = conformance::make_cuda_gate();
  const auto event = break_after(*gate, *issuing, {there.data(), here.data(), 8});
  std::promise<Result<bool>> reported;
  event->when_reached([&] { reported.set_value(event->ready()); });
  gate->open();
  EXPECT_THAT(reported.get_future().get().error().detail, HasSubstr("device 0 is lost"));
}

TEST_F(CudaRuntimeTest, ReusesEvents) {
  const auto issuing = stream();
  issuing->record().value()->wait().value();
  const std::uint64_t made = fake_->calls("cudaEventCreateWithFlags");
  for (int i = 0; i < 20; ++i) issuing->record().value()->wait().value();
  EXPECT_EQ(fake_->calls("cudaEventCreateWithFlags"), made);
  issuing->record().value().reset();  // not known to be reached, so not reused
  issuing->record().value()->wait().value();
  EXPECT_EQ(fake_->calls("cudaEventCreateWithFlags"), made + 1);
}

// CTest runs these tests with two devices.
TEST(CudaDevices, LeavesOutADeviceThatDoesNotOpen) {
  const auto fake = fakes::FakeCudart::loaded();
  ASSERT_TRUE(fake);
  for (const int broken : {0, 1}) {
    const int whole = 1 - broken;
    fake->reset(1);
    fake->fail("cudaSetDevice", static_cast<std::uint64_t>(broken) + 1,
               cudaErrorDevicesUnavailable);
    {
      const auto runtime = make_cuda_runtime().value();
      ASSERT_EQ(runtime->left_out().size(), 1u);
      EXPECT_EQ(runtime->left_out()[0].id, broken);
      EXPECT_THAT(runtime->left_out()[0].why,
                  HasSubstr("CUDA device " + std::to_string(broken) + " does not answer"));
      ASSERT_EQ(runtime->devices().size(), 1u);
      EXPECT_EQ(runtime->devices()[0].id, whole);
      EXPECT_EQ(runtime->lost(), std::nullopt);
      // The other device keeps its number. A call that names the broken device returns the reason.
      const auto stream = runtime->create_stream(whole).value();
      const Region to = runtime->allocate_device(4096, {.device_id = whole}).value();
      const Region unified = runtime->allocate_unified(whole, 4096).value();
      const Region from = runtime->allocate_pinned(4096, {.device_id = broken}).value();
      const MemoryCopy copies[] = {{to.data(), from.data(), 4096},
                                   {unified.data(), from.data(), 4096}};
      ASSERT_TRUE(stream->copy(copies));
      EXPECT_TRUE(stream->synchronize());
      EXPECT_EQ(stream->prefetch(unified.view(), broken).error().code, ErrorCode::out_of_range);
      const Error refused = runtime->allocate_device(1, {.device_id = broken}).error();
      EXPECT_EQ(refused.code, ErrorCode::out_of_range);
      EXPECT_EQ(refused.detail, runtime->left_out()[0].why);
      EXPECT_EQ(runtime->create_stream(broken).error().code, ErrorCode::out_of_range);
      EXPECT_EQ(runtime->allocate_pinned(1, {.device_id = 2}).error().code,
                ErrorCode::out_of_range);
    }
    EXPECT_EQ(fake->leaks(), "");
  }
}

TEST(CudaDevices, FailsIfNoDeviceOpens) {
  const auto fake = fakes::FakeCudart::loaded();
  ASSERT_TRUE(fake);
  fake->reset(1);
  fake->fail_all("cudaSetDevice", cudaErrorDevicesUnavailable);
  const Error error = make_cuda_runtime().error();
  EXPECT_EQ(error.code, ErrorCode::device_error);
  EXPECT_THAT(error.detail, HasSubstr("CUDA device 0 does not answer"));
  fake->reset(1);
  EXPECT_EQ(fake->leaks(), "");
}

TEST(CudaUnifiedMemory, IsRefusedIfTheDeviceHasNone) {
  const auto fake = fakes::FakeCudart::loaded();
  ASSERT_TRUE(fake);
  fake->reset(1);
  fake->set_unified(false);
  const auto runtime = make_cuda_runtime().value();
  fake->set_unified(true);
  const Error refused = runtime->allocate_unified(0, 4096).error();
  EXPECT_EQ(refused.code, ErrorCode::impossible);
  EXPECT_THAT(refused.detail, HasSubstr("device 0 (fake GPU 0) has no unified memory"));
}

TEST_F(CudaRuntimeTest, UnifiedMemoryMayExceedTheDevicesMemory) {
  const std::uint64_t device_bytes = runtime_->devices()[0].total_bytes;
  EXPECT_EQ(runtime_->allocate_device(device_bytes + 4096, {}).error().code,
            ErrorCode::no_capacity);
  EXPECT_EQ(runtime_->allocate_unified(0, std::uint64_t{1} << 60).error().code,
            ErrorCode::no_capacity);
  EXPECT_TRUE(runtime_->allocate_unified(0, device_bytes + 4096));
}

// Memory that a hanging device may still write stays allocated until the process ends. So each of
// these tests runs in its own process.
class CudaHangTest : public CudaRuntimeTest {
 protected:
  CudaHangTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  // A runtime whose timeout of 0 makes the first check of unfinished work find a hang.
  std::unique_ptr<DeviceRuntime> impatient() {
    runtime_.reset();
    return make_cuda_runtime(
               CudaRuntimeOptions{.register_piece_bytes = kPieceBytes, .device_hang_timeout = {}})
        .value();
  }
  [[noreturn]] static void end() {
    std::fflush(stdout);
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  }
  static void expect_lost(DeviceRuntime& runtime) {
    ASSERT_TRUE(runtime.lost());
    EXPECT_THAT(*runtime.lost(), HasSubstr("device 0 is lost: it has not ended its work within"));
  }

  void new_memory() {
    auto runtime = impatient();
    fake_->hold(true);
    const auto refused = runtime->allocate_device(12345, {});
    EXPECT_EQ(refused.error().code, ErrorCode::device_error);
    EXPECT_THAT(refused.error().detail, HasSubstr("is lost"));
    expect_lost(*runtime);
    EXPECT_THAT(runtime->allocate_device(8, {}).error().detail, HasSubstr("is lost"));
    runtime.reset();
    EXPECT_EQ(fake_->leaks(), "1 device 1 streams ") << "the device may still write there";
    // The device resumes: the memory that it writes still exists.
    fake_->hold(false);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    end();
  }
  void memory_of_a_descriptor() {
    auto runtime = impatient();
    fake_->hold(true);
    EXPECT_FALSE(runtime->allocate_device(8, {.by_descriptor = true}));
    expect_lost(*runtime);
    runtime.reset();
    fake_->hold(false);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(fake_->calls("cuMemUnmap"), 0u);
    end();
  }
  // The event and the stream wait for the work, and the work ends correctly.
  void stream_work() {
    auto runtime = impatient();
    const Region memory = runtime->allocate_pinned(8, {}).value();
    std::memset(memory.data(), 7, 8);
    auto issuing = runtime->create_stream(0).value();
    const auto other = runtime->create_stream(0).value();
    fake_->hold(true);
    issuing->zero(memory.data(), 8).value();
    const auto event = issuing->record().value();
    std::promise<void> reached;
    event->when_reached([&] { reached.set_value(); });
    EXPECT_TRUE(eventually([&] { return runtime->lost().has_value(); }));
    expect_lost(*runtime);
    const auto ready = event->ready();
    ASSERT_TRUE(ready) << "the event has not failed: it may still be reached";
    EXPECT_FALSE(*ready);
    EXPECT_FALSE(other->zero(memory.data(), 8)) << "a lost device takes no new work";
    std::future<void> ended = std::async(std::launch::async, [&] { issuing.reset(); });
    EXPECT_EQ(ended.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
    fake_->hold(false);
    reached.get_future().wait();
    EXPECT_TRUE(event->ready().value());
    ended.wait();
    EXPECT_EQ(memory.data()[7], std::byte{0});
    EXPECT_TRUE(runtime->lost()) << "a device stays lost";
    end();
  }
};

TEST_F(CudaHangTest, KeepsNewMemoryWhenClearingItHangs) {
  EXPECT_EXIT(new_memory(), testing::ExitedWithCode(0), "");
}

TEST_F(CudaHangTest, KeepsMemoryByDescriptorWhenClearingItHangs) {
  EXPECT_EXIT(memory_of_a_descriptor(), testing::ExitedWithCode(0), "");
}

TEST_F(CudaHangTest, HangingStreamWorkLosesTheDeviceAndIsAwaited) {
  EXPECT_EXIT(stream_work(), testing::ExitedWithCode(0), "");
}

TEST_F(CudaRuntimeTest, SynchronizeEndsTheWorkAndReturnsItsError) {
  const Region from = pinned(4096);
  const Region to = device(4096);
  const Region back = pinned(4096);
  std::memset(from.data(), 7, 4096);
  const auto issuing = stream();
  const MemoryCopy there{to.data(), from.data(), 4096};
  const MemoryCopy home{back.data(), to.data(), 4096};
  ASSERT_TRUE(issuing->copy({&there, 1}));
  ASSERT_TRUE(issuing->copy({&home, 1}));
  ASSERT_TRUE(issuing->synchronize());
  EXPECT_EQ(std::memcmp(back.data(), from.data(), 4096), 0);
  EXPECT_EQ(fake_->calls("cudaEventRecord"), 0u);
  fake_->fail("work", 1, cudaErrorIllegalAddress);
  ASSERT_TRUE(issuing->copy({&there, 1}));
  EXPECT_EQ(issuing->synchronize().error().code, ErrorCode::device_error);
}

}  // namespace
}  // namespace cairn
