#include "memory/cuda/cuda_runtime.hpp"

namespace cairn {

Result<std::unique_ptr<DeviceRuntime>> make_cuda_runtime() {
  return Error{ErrorCode::unavailable, "built without the CUDA toolkit"};
}

}  // namespace cairn
