#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace cairn {

// Where a GPU of NVIDIA's shows without its driver.
struct GpuTraces {
  std::filesystem::path pci_devices = "/sys/bus/pci/devices";
  std::filesystem::path wsl_device = "/dev/dxg";  // what WSL2 reaches its host's GPU by
};

// In words, a GPU that the machine has, whatever CUDA says of it; nothing where none shows.
std::optional<std::string> find_gpu(const GpuTraces& traces = {});

}  // namespace cairn
