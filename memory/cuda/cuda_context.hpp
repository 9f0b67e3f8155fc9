#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory/cuda/cuda_address_map.hpp"
#include "memory/cuda/cuda_device.hpp"
#include "memory/cuda/cuda_poller.hpp"
#include "memory/host/host_memory.hpp"

namespace cairn {

// The shared state of a CUDA runtime's parts. Its regions, streams and events hold it, and may
// outlive the runtime.
struct CudaContext {
  explicit CudaContext(std::uint64_t piece_bytes) : register_piece_bytes(piece_bytes) {}

  const std::uint64_t register_piece_bytes;
  // By id, null for one that is left out; constant after construction.
  std::vector<std::unique_ptr<CudaDevice>> devices;
  // Those that are not null.
  std::vector<CudaDevice*> open_devices;
  CudaAddressMap addresses;
  const std::shared_ptr<MemoryBudget> host_budget =
      std::make_shared<MemoryBudget>("the machine's memory", machine_memory_bytes());
  CudaPoller poller;  // last, so that it ends first
};

}  // namespace cairn
