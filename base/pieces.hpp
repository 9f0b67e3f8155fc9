#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/hash.hpp"

// Data to send or receive is a list of pieces, as in writev().
namespace cairn {

inline std::uint64_t total_bytes(std::span<const iovec> pieces) {
  std::uint64_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

// XXH3 of all pieces in order.
inline std::uint64_t checksum_of(std::span<const iovec> pieces) {
  if (pieces.size() == 1) {
    return hash_bytes({static_cast<const std::byte*>(pieces[0].iov_base), pieces[0].iov_len}, 0);
  }
  PiecewiseHash hash;
  for (const iovec& piece : pieces) {
    hash.add({static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
  }
  return hash.value();
}

// The first `size_bytes` of the pieces, or all of them if they have fewer.
inline std::vector<iovec> first_bytes(std::span<const iovec> pieces, std::uint64_t size_bytes) {
  std::vector<iovec> first;
  for (const iovec& piece : pieces) {
    if (size_bytes == 0) break;
    first.push_back({piece.iov_base, std::min<std::uint64_t>(piece.iov_len, size_bytes)});
    size_bytes -= first.back().iov_len;
  }
  return first;
}

// Copies the pieces' first bytes. REQUIRES: they have as many.
inline void copy_first(std::span<const iovec> pieces, std::span<std::byte> to) {
  for (const iovec& piece : first_bytes(pieces, to.size())) {
    std::memcpy(to.data(), piece.iov_base, piece.iov_len);
    to = to.subspan(piece.iov_len);
  }
}

// iovec has no const variant.
inline iovec piece_of(const std::byte* bytes, std::uint64_t size_bytes) {
  return {const_cast<std::byte*>(bytes), size_bytes};
}

}  // namespace cairn
