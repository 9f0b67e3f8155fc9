#include "server/http/iov_cursor.hpp"

#include <limits.h>

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"

namespace cairn::http {
namespace {

// readv and writev reject longer lists.
constexpr std::size_t kWindowPieces = IOV_MAX;

}  // namespace

void IovCursor::clear() {
  pieces_.clear();
  first_ = 0;
  bytes_ = 0;
}

void IovCursor::add(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  pieces_.push_back({const_cast<void*>(data), bytes});
  bytes_ += bytes;
}

void IovCursor::add_pieces(std::span<const iovec> pieces, std::uint64_t limit_bytes) {
  for (const iovec& piece : pieces) {
    if (limit_bytes == 0) return;
    const auto bytes = std::min<std::uint64_t>(piece.iov_len, limit_bytes);
    add(piece.iov_base, bytes);
    limit_bytes -= bytes;
  }
}

std::span<iovec> IovCursor::window() {
  return std::span(pieces_).subspan(first_, std::min(pieces_.size() - first_, kWindowPieces));
}

void IovCursor::advance(std::uint64_t bytes) {
  CAIRN_ASSERT(bytes <= bytes_, "memory beyond the pieces would be touched");
  bytes_ -= bytes;
  while (bytes > 0) {
    iovec& piece = pieces_[first_];
    const auto taken = std::min<std::uint64_t>(piece.iov_len, bytes);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + taken;
    piece.iov_len -= taken;
    bytes -= taken;
    if (piece.iov_len == 0) ++first_;
  }
}

std::size_t IovCursor::fill(std::span<const std::byte> data) {
  std::size_t filled = 0;
  while (filled < data.size() && !empty()) {
    const iovec& piece = pieces_[first_];
    const std::size_t bytes = std::min(piece.iov_len, data.size() - filled);
    std::memcpy(piece.iov_base, data.data() + filled, bytes);
    filled += bytes;
    advance(bytes);
  }
  return filled;
}

}  // namespace cairn::http
