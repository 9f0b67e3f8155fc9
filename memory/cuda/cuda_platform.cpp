#include "memory/cuda/cuda_platform.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>

namespace cairn {
namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  return text;
}

}  // namespace

int numa_node_of_pci_device(std::string pci_address, const std::filesystem::path& pci_devices) {
  // sysfs writes the address in lower case, CUDA in upper case.
  std::ifstream file(pci_devices / lower(std::move(pci_address)) / "numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

MemoryVisibility cuda_visibility(std::span<const CudaMemoryFacts> devices,
                                 const std::filesystem::path& kernel_release) {
  std::ifstream file(kernel_release);
  const std::string release = lower({std::istreambuf_iterator<char>(file), {}});
  if (release.find("microsoft") != std::string::npos || release.find("wsl") != std::string::npos) {
    return MemoryVisibility::device;
  }
  const bool one_memory = std::ranges::all_of(devices, [](const CudaMemoryFacts& device) {
    return device.host_pointer_for_registered &&
           (device.integrated || (device.pageable_memory_access && device.uses_host_page_tables));
  });
  return one_memory ? MemoryVisibility::system : MemoryVisibility::explicit_dma;
}

}  // namespace cairn
