#pragma once

#include <memory>

#include "memory/cuda/cuda_context.hpp"
#include "memory/cuda/cuda_memory.hpp"
#include "memory/exported_memory.hpp"

namespace cairn {

// Device memory that other processes open by a descriptor (CUDA's virtual memory management), as
// allocate_cuda_device() gives it else. It takes whole units of the device's own (2 MiB on
// today's), and share() tells that whole size. impossible where the device has no such memory.
Result<Region> allocate_cuda_vmm(std::shared_ptr<CudaContext> context, CudaMemoryRequest request);

// Device memory that another process, or this one, has exported so, from its beginning. impossible
// for a descriptor that CUDA does not take, for memory of another device, and for a size that is no
// multiple of the device's unit or more than there is; not_found without a descriptor.
Result<Region> import_cuda_vmm(std::shared_ptr<CudaContext> context, const ExportedMemory& memory,
                               int device_id);

}  // namespace cairn
