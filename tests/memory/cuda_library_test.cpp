// NVIDIA's own libcudart, on a machine without a driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "memory/cuda/cuda_runtime.hpp"
#include "memory/device_runtime.hpp"

namespace cairn {
namespace {

TEST(CudaLibrary, NamesTheCallThatFoundNoDriver) {
  const auto made = make_cuda_runtime();
  if (made) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(made.error().code, ErrorCode::unavailable);
  // cudaErrorInsufficientDriver without a driver, cudaErrorNoDevice with one and no GPU.
  EXPECT_THAT(made.error().detail,
              testing::AllOf(testing::HasSubstr("cudaGetDeviceCount to find CUDA devices: "),
                             testing::AnyOf(testing::HasSubstr("(cudaErrorInsufficientDriver)"),
                                            testing::HasSubstr("(cudaErrorNoDevice)"))));
}

}  // namespace
}  // namespace cairn
