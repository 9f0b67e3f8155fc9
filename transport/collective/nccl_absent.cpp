#include "transport/collective/communicator.hpp"

namespace cairn {

Result<std::unique_ptr<Collectives>> make_nccl_collectives(DeviceRuntime& /*runtime*/,
                                                           DeviceMemory& /*memory*/) {
  return Error{ErrorCode::unavailable, "built without NCCL"};
}

}  // namespace cairn
