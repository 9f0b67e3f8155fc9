#pragma once

#include <cstdint>
#include <memory>

#include "memory/cuda/cuda_context.hpp"
#include "memory/region.hpp"

namespace cairn {

// Regions of a CUDA runtime, zeroed. REQUIRES: `device_id` is one of the context's. no_capacity,
// with CUDA's words, if memory runs out; otherwise device_error.
struct CudaMemoryRequest {
  int device_id = 0;
  std::uint64_t size_bytes = 0;
};
Result<Region> allocate_cuda_device(std::shared_ptr<CudaContext> context,
                                    CudaMemoryRequest request);
Result<Region> allocate_cuda_unified(std::shared_ptr<CudaContext> context,
                                     CudaMemoryRequest request);
// Shared memory that devices access directly; on the device's NUMA node if requested.
struct CudaPinnedRequest {
  CudaMemoryRequest memory;
  bool numa_aware = false;
  SharedFilePlace place = {};
};
Result<Region> allocate_cuda_pinned(std::shared_ptr<CudaContext> context,
                                    CudaPinnedRequest request);
// Makes mapped host memory directly accessible to devices.
Result<Region> pin_cuda_memory(std::shared_ptr<CudaContext> context, Region memory, int device_id);

}  // namespace cairn
