#include "transport/io/uring_disk_io.hpp"

namespace cairn {

Result<std::unique_ptr<DiskIo>> make_uring_disk_io(UringOptions) {
  return Error{ErrorCode::unavailable, "built without liburing"};
}

}  // namespace cairn
