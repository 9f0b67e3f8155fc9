#pragma once

#include <cerrno>

#include "base/error.hpp"

namespace cairn {

// Maps errno of a failed file call: no_capacity if there is no room (full disk, quota, file size
// limit, too many open files), else io_error.
constexpr ErrorCode file_error_code(int error_number) {
  const bool full = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG ||
                    error_number == EMFILE || error_number == ENFILE;
  return full ? ErrorCode::no_capacity : ErrorCode::io_error;
}

}  // namespace cairn
