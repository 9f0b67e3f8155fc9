#include "memory/gpu_presence.hpp"

#include <fstream>
#include <system_error>

namespace cairn {
namespace {

constexpr std::string_view kNvidia = "0x10de";
// The PCI class of displays: 0x0300 with a screen, 0x0302 without.
constexpr std::string_view kDisplayClass = "0x03";

std::string first_word(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string word;
  stream >> word;
  return word;
}

}  // namespace

std::optional<std::string> find_gpu(const GpuTraces& traces) {
  std::error_code none;
  for (const auto& device : std::filesystem::directory_iterator(traces.pci_devices, none)) {
    if (first_word(device.path() / "vendor") != kNvidia) continue;
    if (!first_word(device.path() / "class").starts_with(kDisplayClass)) continue;
    return "PCI device " + device.path().filename().string() + " is a GPU of NVIDIA's";
  }
  if (std::filesystem::exists(traces.wsl_device, none)) {
    return traces.wsl_device.string() + " is there, by which WSL2 reaches a GPU";
  }
  return std::nullopt;
}

}  // namespace cairn
