// Every call of libcudart fails once, in turn, under a small workload: no wrong byte, no leak, no
// hang, and an error that names the call.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>

#include "memory/cuda/cuda_runtime.hpp"
#include "memory/exported_memory.hpp"
#include "tests/fakes/cudart/fake_cudart.hpp"

namespace cairn {
namespace {

constexpr std::uint64_t kPieceBytes = 64 << 10;
constexpr std::uint64_t kBytes = 4 * kPieceBytes;
constexpr std::byte kUntouched{0xEE};

using Bytes = std::vector<std::byte>;

// The outcome of one run of the workload.
struct Outcome {
  std::optional<Error> error;
  std::optional<std::string> lost;
  Bytes arrived;  // after all work has ended
};

Bytes random_bytes() {
  std::mt19937 random(7);
  Bytes bytes(kBytes);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random() | 1); });
  return bytes;
}

// Pieces of an odd size, adjacent on neither side, that cross registrations.
std::vector<MemoryCopy> shuffled(std::byte* destination, const std::byte* source) {
  constexpr std::uint64_t kOdd = 20'011;
  std::vector<MemoryCopy> pieces;
  for (std::uint64_t at = 0; at < kBytes; at += kOdd) {
    pieces.push_back({destination + at, source + at, std::min(kOdd, kBytes - at)});
  }
  std::ranges::shuffle(pieces, std::mt19937(3));
  return pieces;
}

struct Machine {
  std::unique_ptr<DeviceRuntime> runtime;
  Region pinned, first, second, unified, back;
};

Result<> take(Result<Region> made, Region& into) {
  if (!made) return std::move(made).error();
  into = std::move(*made);
  return {};
}

Result<> prepare(Machine& machine) {
  auto made = make_cuda_runtime(CudaRuntimeOptions{.register_piece_bytes = kPieceBytes});
  if (!made) return std::move(made).error();
  machine.runtime = std::move(*made);
  DeviceRuntime& runtime = *machine.runtime;
  CAIRN_TRY(take(runtime.allocate_pinned(kBytes, {.numa_aware = true}), machine.pinned));
  CAIRN_TRY(take(runtime.allocate_device(kBytes, {}), machine.first));
  CAIRN_TRY(take(runtime.allocate_device(kBytes, {.device_id = 1}), machine.second));
  CAIRN_TRY(take(runtime.allocate_unified(0, kBytes), machine.unified));
  return take(runtime.allocate_pinned(kBytes, {}), machine.back);
}

// pinned -> first device -> second device -> unified -> back, over two streams.
Result<> move_through(Machine& machine) {
  auto out = machine.runtime->create_stream(0);
  if (!out) return std::move(out).error();
  auto in = machine.runtime->create_stream(1);
  if (!in) return std::move(in).error();
  CAIRN_TRY((*out)->zero(machine.first.data(), kBytes));
  CAIRN_TRY((*out)->copy(shuffled(machine.first.data(), machine.pinned.data())));
  const MemoryCopy across{machine.second.data(), machine.first.data(), kBytes};
  CAIRN_TRY((*out)->copy({&across, 1}));
  auto arrived = (*out)->record();
  if (!arrived) return std::move(arrived).error();
  CAIRN_TRY((*in)->wait_for(**arrived));
  CAIRN_TRY((*in)->prefetch(machine.unified.view(), 1));
  const MemoryCopy home{machine.unified.data(), machine.second.data(), kBytes};
  CAIRN_TRY((*in)->copy({&home, 1}));
  // One half goes through unified memory, the other directly.
  const MemoryCopy through{machine.back.data(), machine.unified.data(), kBytes / 2};
  CAIRN_TRY((*in)->copy({&through, 1}));
  const MemoryCopy straight{machine.back.data() + kBytes / 2, machine.second.data() + kBytes / 2,
                            kBytes / 2};
  CAIRN_TRY((*in)->copy({&straight, 1}));
  auto done = (*in)->record();
  if (!done) return std::move(done).error();
  return (*done)->wait();
}

// Device memory that a descriptor opens: pinned -> the allocated memory -> the imported memory ->
// back. Also takes the handle of memory that has one.
struct Shared {
  std::unique_ptr<DeviceRuntime> runtime;
  Region pinned, device, own, imported, back;
};

Result<> prepare(Shared& machine) {
  auto made = make_cuda_runtime(CudaRuntimeOptions{.register_piece_bytes = kPieceBytes});
  if (!made) return std::move(made).error();
  machine.runtime = std::move(*made);
  DeviceRuntime& runtime = *machine.runtime;
  CAIRN_TRY(take(runtime.allocate_pinned(kBytes, {}), machine.pinned));
  CAIRN_TRY(take(runtime.allocate_pinned(kBytes, {}), machine.back));
  CAIRN_TRY(take(runtime.allocate_device(kBytes, {}), machine.device));
  CAIRN_TRY(take(runtime.allocate_device(kBytes, {.by_descriptor = true}), machine.own));
  const auto handle = machine.device.share();
  if (!handle) return handle.error();
  const auto memory = machine.own.share();
  if (!memory) return memory.error();
  return take(runtime.import_memory(*memory, {.kind = StorageKind::device}), machine.imported);
}

Result<> move_through(Shared& machine) {
  auto stream = machine.runtime->create_stream(0);
  if (!stream) return std::move(stream).error();
  CAIRN_TRY((*stream)->copy(shuffled(machine.own.data(), machine.pinned.data())));
  CAIRN_TRY((*stream)->copy(shuffled(machine.back.data(), machine.imported.data())));
  auto done = (*stream)->record();
  if (!done) return std::move(done).error();
  return (*done)->wait();
}

template <class Setup>
Outcome run_workload(const Bytes& bytes) {
  Setup machine;
  Result<> outcome = prepare(machine);
  if (outcome) {
    std::memcpy(machine.pinned.data(), bytes.data(), kBytes);
    std::memset(machine.back.data(), static_cast<int>(kUntouched), kBytes);
    outcome = move_through(machine);
  }
  Outcome result;
  if (!outcome) result.error = outcome.error();
  if (machine.runtime) result.lost = machine.runtime->lost();
  if (!machine.back.empty()) {
    result.arrived.assign(machine.back.data(), machine.back.data() + kBytes);
  }
  return result;
}

using Workload = Outcome (*)(const Bytes& bytes);

// Calls whose failure the workload need not see: they free, only make work faster, or are repeated
// at a stream's end.
bool may_be_silent(const std::string& call) {
  return std::ranges::count(
             std::vector<std::string>{
                 "cudaFree", "cudaHostUnregister", "cudaStreamDestroy", "cudaEventDestroy",
                 "cudaDeviceCanAccessPeer", "cudaDeviceEnablePeerAccess", "cudaStreamQuery",
                 "cudaSetDevice", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease"},
             call) > 0;
}

std::ptrdiff_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

class CudaFaults : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fake_) << "the fake libcudart is not first in LD_LIBRARY_PATH";
    fake_->reset(1);
  }

  // Fails the n-th call for every n that the workload makes. Returns the number of calls.
  std::uint64_t fail_each(const std::string& call, cudaError_t error, bool sticky,
                          Workload workload = &run_workload<Machine>) {
    const bool names_a_device = call != "cudaGetDeviceCount";
    const Bytes bytes = random_bytes();
    const std::ptrdiff_t files = open_files();
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE(call + " number " + std::to_string(n) + " fails; the seed is the number");
      fake_->reset(n);
      fake_->fail(call, n, error);
      const Outcome outcome = workload(bytes);
      EXPECT_EQ(fake_->leaks(), "");
      EXPECT_EQ(fake_->last_error(), cudaSuccess);
      EXPECT_EQ(open_files(), files);
      if (fake_->injected() == 0) {
        EXPECT_FALSE(outcome.error) << outcome.error->detail;
        EXPECT_TRUE(outcome.arrived == bytes);
        return n - 1;
      }
      if (!outcome.error) {
        EXPECT_TRUE(may_be_silent(call)) << "the failure was not reported";
        EXPECT_TRUE(outcome.arrived == bytes);
      } else {
        EXPECT_THAT(outcome.error->detail,
                    testing::HasSubstr(names_a_device && sticky ? "lost" : call));
      }
      if (sticky && outcome.error && outcome.error->code == ErrorCode::device_error) {
        EXPECT_TRUE(outcome.lost.has_value());
      }
      if (!sticky) {
        EXPECT_EQ(outcome.lost, std::nullopt);
      }
      if (testing::Test::HasFailure()) return n;
    }
  }

  const std::optional<fakes::FakeCudart> fake_ = fakes::FakeCudart::loaded();
};

TEST_P(CudaFaults, ErrorNamesTheCallAndNothingLeaks) {
  EXPECT_GT(fail_each(GetParam(), cudaErrorInvalidValue, false), 0u);
}

TEST_P(CudaFaults, AStickyErrorLosesTheDevice) {
  EXPECT_GT(fail_each(GetParam(), cudaErrorECCUncorrectable, true), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, CudaFaults,
    testing::Values("cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaDeviceGetAttribute",
                    "cudaDeviceGetPCIBusId", "cudaSetDevice", "cudaSetDeviceFlags",
                    "cudaDeviceCanAccessPeer", "cudaDeviceEnablePeerAccess", "cudaMalloc",
                    "cudaMallocManaged", "cudaFree", "cudaHostRegister", "cudaHostUnregister",
                    "cudaStreamCreateWithFlags", "cudaStreamDestroy", "cudaStreamQuery",
                    "cudaStreamWaitEvent", "cudaEventCreateWithFlags", "cudaEventRecord",
                    "cudaEventQuery", "cudaEventDestroy", "cudaMemcpyAsync", "cudaMemcpyPeerAsync",
                    "cudaMemcpyBatchAsync", "cudaMemsetAsync", "cudaMemPrefetchAsync"),
    [](const auto& tested) { return std::string(tested.param); });

class CudaSharingFaults : public CudaFaults {};

TEST_P(CudaSharingFaults, ErrorNamesTheCallAndNothingLeaks) {
  EXPECT_GT(fail_each(GetParam(), cudaErrorInvalidValue, false, &run_workload<Shared>), 0u);
}

TEST_P(CudaSharingFaults, AStickyErrorLosesTheDevice) {
  EXPECT_GT(fail_each(GetParam(), cudaErrorECCUncorrectable, true, &run_workload<Shared>), 0u);
}

// For a descriptor, codes that otherwise mean a lost device are ordinary errors.
TEST_F(CudaSharingFaults, AnErrorAboutADescriptorDoesNotLoseTheDevice) {
  for (const char* const call :
       {"cuMemImportFromShareableHandle", "cuMemGetAllocationPropertiesFromHandle"}) {
    fake_->reset(1);
    fake_->fail(call, 1, cudaErrorUnknown);
    const Outcome outcome = run_workload<Shared>(random_bytes());
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code, ErrorCode::impossible);
    EXPECT_THAT(outcome.error->detail, testing::HasSubstr("CUDA_ERROR_UNKNOWN"));
    EXPECT_EQ(outcome.lost, std::nullopt);
    EXPECT_EQ(fake_->leaks(), "");
  }
}

TEST_F(CudaSharingFaults, ReportsThatMemoryRanOut) {
  fake_->fail("cuMemCreate", 1, cudaErrorMemoryAllocation);
  const Outcome outcome = run_workload<Shared>(random_bytes());
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code, ErrorCode::no_capacity);
  EXPECT_EQ(outcome.error->detail,
            "device 0: cuMemCreate to allocate device memory (2097152 bytes): "
            "CUDA_ERROR_OUT_OF_MEMORY");
}

INSTANTIATE_TEST_SUITE_P(Calls, CudaSharingFaults,
                         testing::Values("cudaGetDriverEntryPointByVersion", "cudaIpcGetMemHandle",
                                         "cudaDeviceCanAccessPeer", "cudaSetDevice",
                                         "cudaMemsetAsync", "cudaMemcpyBatchAsync", "cuDeviceGet",
                                         "cuDeviceGetAttribute", "cuMemGetAddressRange",
                                         "cuMemGetAllocationGranularity", "cuMemCreate",
                                         "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
                                         "cuMemExportToShareableHandle",
                                         "cuMemImportFromShareableHandle",
                                         "cuMemGetAllocationPropertiesFromHandle", "cuMemUnmap",
                                         "cuMemAddressFree", "cuMemRelease"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_F(CudaFaults, FailingWorkLosesTheDevice) {
  EXPECT_GT(fail_each("work", cudaErrorIllegalAddress, true), 0u);
}

}  // namespace
}  // namespace cairn
