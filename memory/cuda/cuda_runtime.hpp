#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "memory/device_runtime.hpp"

namespace cairn {

struct CudaRuntimeOptions {
  // Pinned memory is registered in pieces of this size, a multiple of 4 KiB: one call for a whole
  // large arena holds the driver's lock for seconds, and its failure would name no place.
  std::uint64_t register_piece_bytes = std::uint64_t{4} << 30;
  // A device that has not ended a piece of work within this time hangs: it is lost. A job moves 64
  // MiB at a time, and clearing all of a device's memory takes less than a second.
  std::chrono::milliseconds device_patience{60'000};
};

// As make_cuda_runtime(), for callers that link with CUDA.
Result<std::unique_ptr<DeviceRuntime>> make_cuda_runtime(CudaRuntimeOptions options);

}  // namespace cairn
