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

MemoryVisibility cuda_visibility(bool all_concurrent_managed,
                                 const std::filesystem::path& kernel_release) {
  std::ifstream file(kernel_release);
  const std::string release{std::istreambuf_iterator<char>(file), {}};
  if (lower(release).find("microsoft") != std::string::npos) return MemoryVisibility::device;
  return all_concurrent_managed ? MemoryVisibility::system : MemoryVisibility::explicit_dma;
}

}  // namespace cairn
