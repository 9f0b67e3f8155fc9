#include "memory/cuda/cuda_platform.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

class CudaPlatformTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }
  fakes::TempDir folder_;
};

TEST_F(CudaPlatformTest, FindsTheNodeOfADeviceThatCudaNamesInUpperCase) {
  write("0000:3b:00.0/numa_node", "1\n");
  EXPECT_EQ(numa_node_of_pci_device("0000:3B:00.0", folder_.path()), 1);
}

TEST_F(CudaPlatformTest, KnowsNoNodeWhereTheSystemSaysNone) {
  write("0000:3b:00.0/numa_node", "-1\n");
  write("0000:3c:00.0/numa_node", "none");
  EXPECT_EQ(numa_node_of_pci_device("0000:3B:00.0", folder_.path()), -1);
  EXPECT_EQ(numa_node_of_pci_device("0000:3C:00.0", folder_.path()), -1);
  EXPECT_EQ(numa_node_of_pci_device("0000:FF:00.0", folder_.path()), -1);
}

TEST_F(CudaPlatformTest, SeesDeviceScopeUnderWsl2WhateverTheGpuSays) {
  const auto release = write("osrelease", "5.15.167.4-microsoft-standard-WSL2\n");
  EXPECT_EQ(cuda_visibility(true, release), MemoryVisibility::device);
  EXPECT_EQ(cuda_visibility(false, release), MemoryVisibility::device);
}

TEST_F(CudaPlatformTest, GoesByTheGpuElsewhere) {
  const auto release = write("osrelease", "6.1.0-18-amd64\n");
  EXPECT_EQ(cuda_visibility(true, release), MemoryVisibility::system);
  EXPECT_EQ(cuda_visibility(false, release), MemoryVisibility::explicit_dma);
}

}  // namespace
}  // namespace cairn
