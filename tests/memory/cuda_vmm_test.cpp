// Tests of memory that a descriptor opens, on the fake libcudart: what only the CUDA runtime does,
// and what the fake driver refuses because callers must not rely on it.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>

#include "memory/cuda/cuda_driver.hpp"
#include "memory/cuda/cuda_runtime.hpp"
#include "memory/exported_memory.hpp"
#include "tests/fakes/cudart/fake_cudart.hpp"

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr std::size_t kUnit = std::size_t{2} << 20;
constexpr DeviceRuntime::DeviceOptions kByDescriptor{.by_descriptor = true};

class CudaVmmTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fake_) << "the fake libcudart is not first in LD_LIBRARY_PATH";
    fake_->reset(1);
    runtime_ = make_cuda_runtime(CudaRuntimeOptions{}).value();
  }
  void TearDown() override {
    ::unsetenv("CAIRN_FAKE_CUDA_LACKS");
    runtime_.reset();
    EXPECT_EQ(fake_->leaks(), "");
  }

  const std::optional<fakes::FakeCudart> fake_ = fakes::FakeCudart::loaded();
  std::unique_ptr<DeviceRuntime> runtime_;
};

TEST_F(CudaVmmTest, NamesADeviceWithoutSuchMemory) {
  for (const CUdevice_attribute lacking :
       {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    ::setenv("CAIRN_FAKE_CUDA_LACKS", std::to_string(lacking).c_str(), 1);
    const Error error = runtime_->allocate_device(8, kByDescriptor).error();
    EXPECT_EQ(error.code, ErrorCode::impossible);
    EXPECT_THAT(error.detail, HasSubstr("device 0 (fake GPU 0) has no memory that a descriptor"));
    EXPECT_TRUE(runtime_->allocate_device(8, {}).has_value());
  }
}

TEST_F(CudaVmmTest, DoesNotNeedGpuDirectRdma) {
  const auto lacking = std::to_string(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  ::setenv("CAIRN_FAKE_CUDA_LACKS", lacking.c_str(), 1);
  EXPECT_TRUE(runtime_->allocate_device(8, kByDescriptor).has_value());
}

TEST_F(CudaVmmTest, RefusesZeroBytesAndMoreThanTheDeviceHas) {
  EXPECT_EQ(runtime_->allocate_device(0, kByDescriptor).error().code, ErrorCode::out_of_range);
  EXPECT_EQ(runtime_->allocate_device(8, {.device_id = 2, .by_descriptor = true}).error().code,
            ErrorCode::out_of_range);
  const Error full = runtime_->allocate_device(std::uint64_t{1} << 40, kByDescriptor).error();
  EXPECT_EQ(full.code, ErrorCode::no_capacity);
  EXPECT_THAT(full.detail, HasSubstr("cuMemCreate"));
  EXPECT_EQ(runtime_->allocate_device((std::uint64_t{1} << 63) - 1, kByDescriptor).error().code,
            ErrorCode::no_capacity);
}

TEST_F(CudaVmmTest, HasNoCudaIpcHandle) {
  const Region region = runtime_->allocate_device(8, kByDescriptor).value();
  cudaIpcMemHandle_t handle{};
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, region.data()), cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
  EXPECT_EQ(runtime_->allocate_device(8, {}).value().share().value().kind,
            ExportedMemory::Kind::cuda_ipc);
}

// Tests of the fake driver.
class FakeDriverTest : public CudaVmmTest {
 protected:
  void SetUp() override {
    CudaVmmTest::SetUp();
    device_ = CudaDevice::open(0, std::chrono::minutes(1)).value();
    driver_ = CudaDriver::load(*device_).value();
    what_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    what_.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  }
  void TearDown() override {
    device_.reset();
    CudaVmmTest::TearDown();
  }
  cudaError_t zero(CUdeviceptr address, std::size_t size_bytes) {
    auto stream = cudaStream_t{};
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    const cudaError_t outcome =
        cudaMemsetAsync(reinterpret_cast<void*>(address), 0, size_bytes, stream);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    static_cast<void>(cudaGetLastError());
    return outcome;
  }

  std::unique_ptr<CudaDevice> device_;
  CudaDriver driver_;
  CUmemAllocationProp what_{};
};

TEST_F(FakeDriverTest, RefusesSizesThatAreNotWholeUnits) {
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(driver_.create(&handle, kUnit + 1, &what_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.create(&handle, 0, &what_, 0), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr address = 0;
  EXPECT_EQ(driver_.address_reserve(&address, kUnit - 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeDriverTest, RefusesUndefinedUses) {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  ASSERT_EQ(driver_.create(&handle, kUnit, &what_, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver_.address_reserve(&address, 2 * kUnit, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.map(address, 2 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(driver_.map(address, kUnit, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_.map(address, kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(fake_->leaks(), HasSubstr("1 handles 1 reservations 1 mappings"));
  EXPECT_EQ(zero(address, 8), cudaErrorInvalidValue);  // no device has access
  const CUmemAccessDesc mine{what_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_EQ(driver_.set_access(address, kUnit, &mine, 1), CUDA_SUCCESS);
  EXPECT_EQ(zero(address, 8), cudaSuccess);
  EXPECT_EQ(driver_.address_free(address, 2 * kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.unmap(address, kUnit / 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.release(handle), CUDA_SUCCESS);  // the mapping keeps the memory
  EXPECT_EQ(zero(address, kUnit), cudaSuccess);
  EXPECT_EQ(driver_.release(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.unmap(address, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(driver_.unmap(address, kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.address_free(address, 2 * kUnit), CUDA_SUCCESS);
  EXPECT_EQ(driver_.address_free(address, 2 * kUnit), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeDriverTest, ExportsOnlyMemoryCreatedForExport) {
  what_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(driver_.create(&handle, kUnit, &what_, 0), CUDA_SUCCESS);
  int descriptor = -1;
  EXPECT_EQ(driver_.export_handle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_.release(handle), CUDA_SUCCESS);
}

TEST_F(FakeDriverTest, ImportingAWrongDescriptorReturnsUnknownError) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  CUmemGenericAllocationHandle handle = 0;
  void* const shareable = reinterpret_cast<void*>(static_cast<std::uintptr_t>(ends[0]));
  EXPECT_EQ(driver_.import_handle(&handle, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_UNKNOWN);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace cairn
