#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::http {

// Iterates over scattered memory, in batches for readv and writev. Borrows the memory, copies the
// list. clear() keeps the capacity.
class IovCursor {
 public:
  void clear();
  // `bytes` may be 0.
  void add(const void* data, std::size_t bytes);
  // Adds the first `limit_bytes` of the pieces.
  void add_pieces(std::span<const iovec> pieces, std::uint64_t limit_bytes);

  bool empty() const { return bytes_ == 0; }
  // Total bytes left.
  std::uint64_t bytes() const { return bytes_; }
  // The next pieces, as many as one system call takes; empty only if the cursor is.
  std::span<iovec> window();
  // REQUIRES: bytes <= this->bytes()
  void advance(std::uint64_t bytes);
  // Copies the start of `data` into the memory and advances. Returns the number of bytes copied.
  std::size_t fill(std::span<const std::byte> data);

 private:
  std::vector<iovec> pieces_;
  std::size_t first_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace cairn::http
