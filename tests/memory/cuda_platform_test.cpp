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

TEST_F(CudaPlatformTest, FindsTheNodeOfAnUpperCaseAddress) {
  write("0000:3b:00.0/numa_node", "1\n");
  EXPECT_EQ(numa_node_of_pci_device("0000:3B:00.0", folder_.path()), 1);
}

TEST_F(CudaPlatformTest, ReportsNoNodeIfTheSystemNamesNone) {
  write("0000:3b:00.0/numa_node", "-1\n");
  write("0000:3c:00.0/numa_node", "none");
  EXPECT_EQ(numa_node_of_pci_device("0000:3B:00.0", folder_.path()), -1);
  EXPECT_EQ(numa_node_of_pci_device("0000:3C:00.0", folder_.path()), -1);
  EXPECT_EQ(numa_node_of_pci_device("0000:FF:00.0", folder_.path()), -1);
}

struct Machine {
  const char* name;
  const char* kernel;
  CudaMemoryFacts facts;
  MemoryVisibility sees;
};

// From the chapter on unified memory in NVIDIA's programming guide.
constexpr Machine kMachines[] = {
    {"discrete",
     "6.1.0-18-amd64",
     {.host_pointer_for_registered = true},
     MemoryVisibility::explicit_dma},
    {"discrete with HMM",
     "6.8.0-45-generic",
     {.pageable_memory_access = true, .host_pointer_for_registered = true},
     MemoryVisibility::explicit_dma},
    {"coherent",
     "6.8.0-1015-nvidia-64k",
     {.pageable_memory_access = true,
      .uses_host_page_tables = true,
      .host_pointer_for_registered = true},
     MemoryVisibility::system},
    {"coherent, but registered memory has two addresses",
     "6.8.0-1015-nvidia-64k",
     {.pageable_memory_access = true, .uses_host_page_tables = true},
     MemoryVisibility::explicit_dma},
    {"integrated",
     "5.15.148-tegra",
     {.integrated = true, .host_pointer_for_registered = true},
     MemoryVisibility::system},
    {"integrated, but registered memory has two addresses",
     "5.15.148-tegra",
     {.integrated = true},
     MemoryVisibility::explicit_dma},
    {"WSL2",
     "5.15.167.4-microsoft-standard-WSL2",
     {.host_pointer_for_registered = true},
     MemoryVisibility::device},
    {"WSL2 by its short name",
     "6.6.36-WSL",
     {.host_pointer_for_registered = true},
     MemoryVisibility::device},
    {"WSL2, whatever the GPU says",
     "5.15.167.4-Microsoft-standard",
     {.pageable_memory_access = true,
      .uses_host_page_tables = true,
      .host_pointer_for_registered = true},
     MemoryVisibility::device},
};

TEST_F(CudaPlatformTest, VisibilityFollowsTheMachine) {
  for (const Machine& machine : kMachines) {
    const auto release = write("osrelease", std::string(machine.kernel) + "\n");
    EXPECT_EQ(cuda_visibility({&machine.facts, 1}, release), machine.sees) << machine.name;
  }
}

TEST_F(CudaPlatformTest, VisibilityFollowsTheMostLimitedDevice) {
  const auto release = write("osrelease", "6.8.0-1015-nvidia-64k\n");
  const CudaMemoryFacts both[] = {kMachines[0].facts, kMachines[2].facts};
  EXPECT_EQ(cuda_visibility(both, release), MemoryVisibility::explicit_dma);
}

}  // namespace
}  // namespace cairn
