#pragma once

#include <memory>

#include "memory/cuda/cuda_context.hpp"
#include "memory/cuda/cuda_memory.hpp"
#include "memory/exported_memory.hpp"

namespace cairn {

// Device memory that other processes open by a descriptor (CUDA's virtual memory management);
// otherwise as allocate_cuda_device(). It takes whole units of the device (2 MiB on today's
// devices), and share() returns that whole size. impossible if the device does not support it.
Result<Region> allocate_cuda_vmm(std::shared_ptr<CudaContext> context, CudaMemoryRequest request);

// Device memory that another process, or this one, exported by descriptor, from its beginning.
// impossible for a descriptor that CUDA does not accept, for memory of another device, and for a
// size that is no multiple of the device's unit or too large; not_found without a descriptor.
Result<Region> import_cuda_vmm(std::shared_ptr<CudaContext> context, const ExportedMemory& memory,
                               int device_id);

}  // namespace cairn
