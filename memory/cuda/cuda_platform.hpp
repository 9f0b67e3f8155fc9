#pragma once

#include <filesystem>
#include <string>

#include "memory/device_runtime.hpp"

namespace cairn {

// The NUMA node a PCI device is attached to, by the address that CUDA names it with
// ("0000:3B:00.0"); -1 where the system does not say.
int numa_node_of_pci_device(std::string pci_address,
                            const std::filesystem::path& pci_devices = "/sys/bus/pci/devices");

// How far a CPU write reaches on this machine: `device` under WSL2, where the GPU is
// paravirtualised and sees host memory only within its own scope; `system` where every GPU shares
// managed memory coherently with the CPU; `explicit_dma` else. `kernel_release` is a file such as
// /proc/sys/kernel/osrelease.
MemoryVisibility cuda_visibility(
    bool all_concurrent_managed,
    const std::filesystem::path& kernel_release = "/proc/sys/kernel/osrelease");

}  // namespace cairn
