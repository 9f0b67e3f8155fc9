#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

// What is sent and received lies in lists of pieces, as writev() takes them.
namespace cairn {

inline std::uint64_t total_bytes(std::span<const iovec> pieces) {
  std::uint64_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

// An iovec is not const even where it is only read from.
inline iovec piece_of(const std::byte* bytes, std::uint64_t size_bytes) {
  return {const_cast<std::byte*>(bytes), size_bytes};
}

}  // namespace cairn
