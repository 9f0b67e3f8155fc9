#pragma once

#include <cstdint>
#include <memory>

#include "memory/cuda/cuda_context.hpp"
#include "memory/device_runtime.hpp"
#include "memory/exported_memory.hpp"

namespace cairn {

// Bytes that cudaMalloc allocated.
struct CudaBytes {
  int device_id = 0;
  std::byte* begin = nullptr;
  std::uint64_t size_bytes = 0;
};

// How another process opens them. CUDA shares whole blocks of its own, and an allocation can be a
// part of one: offset_bytes says where in it the bytes begin.
Result<ExportedMemory> export_cuda_memory(CudaDevice& device, const CudaBytes& bytes);

// Device memory that another process exported, on the device where the handle is opened. impossible
// if it is this process's own (CUDA opens no handle twice in one process), or smaller than
// described.
Result<Region> import_cuda_memory(std::shared_ptr<CudaContext> context,
                                  const ExportedMemory& memory, int device_id);

}  // namespace cairn
