#pragma once

#include "base/error.hpp"

namespace cairn {

// Returns true if a retry may succeed without a change of settings: a disk gets room, a file system
// is mounted, another server stops.
constexpr bool may_pass(ErrorCode code) {
  switch (code) {
    case ErrorCode::unavailable:
    case ErrorCode::peer_lost:
    case ErrorCode::no_capacity:
    case ErrorCode::io_error:
    case ErrorCode::device_error:
    case ErrorCode::cancelled:
    case ErrorCode::deadline_exceeded:
    case ErrorCode::internal:
      return true;
    default:
      return false;
  }
}

}  // namespace cairn
