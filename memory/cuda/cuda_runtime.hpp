#pragma once

#include <cstdint>
#include <memory>

#include "memory/device_runtime.hpp"

namespace cairn {

struct CudaRuntimeOptions {
  // Pinned memory is registered in pieces of this size, a multiple of 4 KiB: one call for all of a
  // large arena holds the driver's lock for seconds, and its failure would name no place.
  std::uint64_t register_piece_bytes = std::uint64_t{4} << 30;
};

// As make_cuda_runtime(), for those who link with CUDA.
Result<std::unique_ptr<DeviceRuntime>> make_cuda_runtime(CudaRuntimeOptions options);

}  // namespace cairn
