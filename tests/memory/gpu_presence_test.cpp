#include "memory/gpu_presence.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

class GpuPresenceTest : public testing::Test {
 protected:
  void add(const std::string& address, const char* vendor, const char* pci_class) {
    const auto device = folder_.path() / "pci" / address;
    std::filesystem::create_directories(device);
    std::ofstream(device / "vendor") << vendor << "\n";
    std::ofstream(device / "class") << pci_class << "\n";
  }
  fakes::TempDir folder_;
  const GpuTraces traces_{folder_.path() / "pci", folder_.path() / "dxg"};
};

TEST_F(GpuPresenceTest, FindsNoGpuIfThereIsNone) {
  EXPECT_EQ(find_gpu(traces_), std::nullopt) << "no PCI at all";
  add("0000:00:01.0", "0x8086", "0x030000");  // another maker's display adapter
  add("0000:00:02.0", "0x10de", "0x040300");  // NVIDIA's sound device
  EXPECT_EQ(find_gpu(traces_), std::nullopt);
}

TEST_F(GpuPresenceTest, NamesTheGpuByItsAddress) {
  add("0000:00:01.0", "0x8086", "0x030000");
  add("0000:3b:00.0", "0x10de", "0x030200");
  EXPECT_EQ(find_gpu(traces_), "PCI device 0000:3b:00.0 is a GPU of NVIDIA's");
}

TEST_F(GpuPresenceTest, FindsTheGpuDeviceOfWsl) {
  std::ofstream(traces_.wsl_device) << "";
  EXPECT_NE(find_gpu(traces_).value().find("WSL2"), std::string::npos);
}

}  // namespace
}  // namespace cairn
