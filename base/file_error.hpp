#pragma once

#include <cerrno>

#include "base/error.hpp"

namespace cairn {

// What a failed call on a file means for whoever wanted its bytes kept: no_capacity where there is
// no room (a full disk, a quota, a limit on the size of files, no more files to be opened), else
// io_error.
constexpr ErrorCode file_error_code(int error_number) {
  const bool full = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG ||
                    error_number == EMFILE || error_number == ENFILE;
  return full ? ErrorCode::no_capacity : ErrorCode::io_error;
}

}  // namespace cairn
