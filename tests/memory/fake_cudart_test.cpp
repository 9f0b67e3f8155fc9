// The fake libcudart refuses, delays and traps everything that the CUDA runtime must not rely on.
// Otherwise the runtime's tests would prove nothing.
#include "tests/fakes/cudart/fake_cudart.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "memory/cuda/copy_kernel.hpp"

namespace cairn {
namespace {

constexpr std::size_t kPage = 4096;

class FakeCudartTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fake_) << "the fake libcudart is not first in LD_LIBRARY_PATH";
    fake_->reset(1);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&device_, kPage), cudaSuccess);
    host_ = static_cast<std::byte*>(
        ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (std::byte* piece : {host_, host_ + kPage}) {
      ASSERT_EQ(cudaHostRegister(piece, kPage, cudaHostRegisterPortable | cudaHostRegisterMapped),
                cudaSuccess);
    }
  }
  void TearDown() override {
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    cudaFree(device_);
    cudaHostUnregister(host_);
    cudaHostUnregister(host_ + kPage);
    ::munmap(host_, 2 * kPage);
    EXPECT_EQ(fake_->leaks(), "");
    fake_->reset(1);
  }
  cudaError_t copy(void* to, const void* from, std::size_t size_bytes) {
    return cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, stream_);
  }
  cudaError_t batch(std::vector<void*> to, std::vector<const void*> from, std::size_t size_bytes,
                    cudaStream_t stream) {
    std::vector<std::size_t> sizes(to.size(), size_bytes);
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    return cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), to.size(), &attributes,
                                &first, 1, stream);
  }
  std::byte* device(std::size_t offset) const { return static_cast<std::byte*>(device_) + offset; }

  const std::optional<fakes::FakeCudart> fake_ = fakes::FakeCudart::loaded();
  cudaStream_t stream_ = nullptr;
  void* device_ = nullptr;
  std::byte* host_ = nullptr;
};

TEST_F(FakeCudartTest, RefusesTheNullStream) {
  EXPECT_EQ(cudaMemcpyAsync(device_, host_, 8, cudaMemcpyDefault, nullptr),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(batch({device_}, {host_}, 8, nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(batch({device_}, {host_}, 8, cudaStreamLegacy), cudaErrorInvalidResourceHandle);
}

TEST_F(FakeCudartTest, RefusesACopyAcrossRegistrationsOrPastTheEnd) {
  EXPECT_EQ(copy(device_, host_ + kPage - 4, 8), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device(kPage - 4), host_, 8), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device_, host_ + 2 * kPage - 4, 8), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(device(kPage - 4), 0, 8, stream_), cudaErrorInvalidValue);
}

TEST_F(FakeCudartTest, RefusesABatchThatCudaMightAccept) {
  std::array<std::byte, 8> pageable{};
  EXPECT_EQ(batch({device_}, {pageable.data()}, 8, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(batch({device_, device(4)}, {host_, host_ + 8}, 8, stream_), cudaErrorInvalidValue);
  std::vector<void*> to;
  std::vector<const void*> from;
  for (std::size_t i = 0; i < 4097; ++i) {
    to.push_back(device(i % kPage));
    from.push_back(host_);
  }
  EXPECT_EQ(batch(to, from, 1, stream_), cudaErrorInvalidValue);
}

TEST_F(FakeCudartTest, FreeingMemoryDuringACopyBreaksTheDevice) {
  void* gone = nullptr;
  ASSERT_EQ(cudaMalloc(&gone, kPage), cudaSuccess);
  // A host function holds the stream until the memory is freed.
  struct Gone {
    std::atomic<bool> is{false};
  } state;
  cudaLaunchHostFunc(
      stream_, [](void* argument) { static_cast<Gone*>(argument)->is.wait(false); }, &state);
  EXPECT_EQ(copy(gone, host_, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(gone), cudaSuccess);
  state.is = true;
  state.is.notify_all();
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(copy(device_, host_, 8), cudaErrorIllegalAddress);
  fake_->reset(1);
}

TEST_F(FakeCudartTest, RunsABatchInItsOwnOrder) {
  // Sources that overlap destinations show the order. That is why no caller may write such a batch.
  constexpr std::size_t kCells = 64;
  std::memset(host_, 0, kPage);
  host_[0] = std::byte{1};
  std::vector<void*> to;
  std::vector<const void*> from;
  for (std::size_t i = 0; i + 1 < kCells; ++i) {
    to.push_back(host_ + i + 1);
    from.push_back(host_ + i);
  }
  ASSERT_EQ(batch(to, from, 1, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(host_[kCells - 1], std::byte{0}) << "the given order would bring the first byte here";
}

TEST_F(FakeCudartTest, RefusesRowsAcrossRegistrationsAndABadPitch) {
  const auto rows = [&](const void* from, std::size_t pitch, std::size_t count) {
    return cudaMemcpy2DAsync(device_, 64, from, pitch, 32, count, cudaMemcpyDefault, stream_);
  };
  EXPECT_EQ(rows(host_, 512, 9), cudaErrorInvalidValue);
  EXPECT_EQ(rows(host_, 31, 2), cudaErrorInvalidValue);
  EXPECT_EQ(rows(host_, std::size_t{1} << 31, 1), cudaErrorInvalidValue);
  EXPECT_EQ(rows(host_, 512, 8), cudaSuccess);
}

// A wrong address breaks the device, as for a real kernel.
TEST_F(FakeCudartTest, RunsAKernelOnlyOnMemoryTheDeviceReaches) {
  if (!has_copy_kernel()) GTEST_SKIP() << "built without nvcc";
  const auto by_kernel = [&](std::byte* to, const std::byte* from) {
    const MemoryCopy piece{to, from, 33};
    const cudaError_t launched = launch_copy_kernel({&piece, 1}, {}, stream_);
    return launched != cudaSuccess ? launched : cudaStreamSynchronize(stream_);
  };
  std::memset(host_, 7, 64);
  EXPECT_EQ(by_kernel(device(1), host_ + 5), cudaSuccess);
  EXPECT_EQ(by_kernel(host_ + 100, device(1)), cudaSuccess);
  EXPECT_EQ(std::memcmp(host_ + 100, host_ + 5, 33), 0);
  std::array<std::byte, 64> pageable{};
  EXPECT_EQ(by_kernel(device(1), pageable.data()), cudaErrorIllegalAddress);
  fake_->reset(1);
  EXPECT_EQ(by_kernel(device(kPage - 32), host_), cudaErrorIllegalAddress);
  fake_->reset(1);
  const MemoryCopy piece{device(0), host_, 8};
  EXPECT_EQ(launch_copy_kernel({&piece, 1}, {}, nullptr), cudaErrorInvalidResourceHandle);
}

TEST_F(FakeCudartTest, NewMemoryIsNotZero) {
  std::memset(host_, 0, 8);
  ASSERT_EQ(copy(host_, device_, 8), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_NE(host_[0], std::byte{0});
}

TEST_F(FakeCudartTest, CountsLiveResources) {
  EXPECT_EQ(fake_->leaks(), "1 device 2 registered 1 streams ");
}

TEST_F(FakeCudartTest, KeepsAStickyErrorAndForgetsAnyOther) {
  fake_->fail("cudaMemcpyAsync", 1, cudaErrorInvalidValue);
  EXPECT_EQ(copy(device_, host_, 8), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device_, host_, 8), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  fake_->fail("cudaMemcpyAsync", 2, cudaErrorECCUncorrectable);
  EXPECT_EQ(copy(device_, host_, 8), cudaSuccess);
  EXPECT_EQ(copy(device_, host_, 8), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);  // another device
  EXPECT_EQ(cudaSetDevice(0), cudaErrorECCUncorrectable);
  fake_->reset(1);
}

}  // namespace
}  // namespace cairn
