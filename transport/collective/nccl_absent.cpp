#include "transport/collective/communicator.hpp"

namespace cairn {

Result<std::unique_ptr<Collectives>> make_nccl_collectives() {
  return Error{ErrorCode::unavailable, "built without NCCL"};
}

}  // namespace cairn
