#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "memory/device_runtime.hpp"

namespace cairn {

// The GPUs that CUDA shows (CUDA_VISIBLE_DEVICES selects them); one that does not open is left out.
// unavailable, with the reason, if the program was built without the CUDA toolkit, or CUDA finds no
// driver or no GPU; device_error if there are GPUs and none opens.
Result<std::unique_ptr<DeviceRuntime>> make_cuda_runtime();

struct CudaRuntimeOptions {
  // Pinned memory is registered in pieces of this size, a multiple of 4 KiB: one call for a whole
  // large arena holds the driver's lock for seconds, and its failure would name no place.
  std::uint64_t register_piece_bytes = std::uint64_t{4} << 30;
  // A device that has not ended a piece of work within this time hangs: it is lost. A job moves 64
  // MiB at a time, and clearing all of a device's memory takes less than a second.
  std::chrono::milliseconds device_hang_timeout{60'000};
};

// As make_cuda_runtime(), for callers that link with CUDA.
Result<std::unique_ptr<DeviceRuntime>> make_cuda_runtime(CudaRuntimeOptions options);

}  // namespace cairn
