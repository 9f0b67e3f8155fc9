#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace cairn {

// Where an NVIDIA GPU is visible without its driver.
struct GpuTraces {
  std::filesystem::path pci_devices = "/sys/bus/pci/devices";
  std::filesystem::path wsl_device = "/dev/dxg";  // WSL2's device for its host's GPU
};

// A GPU that the machine has, in words, whatever CUDA says; nullopt if none is visible.
std::optional<std::string> find_gpu(const GpuTraces& traces = {});

}  // namespace cairn
