#include "memory/cuda/copy_kernel.hpp"

namespace cairn {

bool has_copy_kernel() { return false; }

cudaError_t launch_copy_kernel(std::span<const MemoryCopy> /*pieces*/, CopyLaunch /*launch*/,
                               cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

}  // namespace cairn
