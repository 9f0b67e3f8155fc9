#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "memory/device_runtime.hpp"

namespace cairn {

// The NUMA node of a PCI device, by CUDA's name of its address ("0000:3B:00.0"); -1 if the system
// does not say.
int numa_node_of_pci_device(std::string pci_address,
                            const std::filesystem::path& pci_devices = "/sys/bus/pci/devices");

// A GPU's properties about its memory and the host's, as CUDA names its attributes.
struct CudaMemoryFacts {
  bool integrated = false;              // it has no separate memory
  bool pageable_memory_access = false;  // it can access all host memory
  // By the CPU's own page tables, so coherently. Otherwise it accesses pageable memory by moving
  // pages over the bus when they are touched (HMM).
  bool uses_host_page_tables = false;
  bool host_pointer_for_registered = false;  // registered memory has one address for both
};

// How far a CPU write is visible on this machine. `device` under WSL2, where the GPU is
// paravirtualised and sees host memory only within its own scope. `system` if every GPU shares one
// coherent memory with the CPU. `explicit_dma` otherwise, as behind a bus, where both sides may
// touch managed memory at once and pages move for it all the same. `kernel_release` is a file such
// as /proc/sys/kernel/osrelease.
MemoryVisibility cuda_visibility(
    std::span<const CudaMemoryFacts> devices,
    const std::filesystem::path& kernel_release = "/proc/sys/kernel/osrelease");

}  // namespace cairn
