#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::http {

// A walk over scattered memory, in the pieces that one readv or writev takes. Borrows the memory,
// copies the list. Keeps its capacity when cleared.
class IovCursor {
 public:
  void clear();
  // `bytes` may be 0.
  void add(const void* data, std::size_t bytes);
  // The pieces' first bytes, up to `limit_bytes` in all.
  void add_pieces(std::span<const iovec> pieces, std::uint64_t limit_bytes);

  bool empty() const { return bytes_ == 0; }
  // What is left, in all.
  std::uint64_t bytes() const { return bytes_; }
  // The next pieces, as many as one system call takes; not empty unless the cursor is.
  std::span<iovec> window();
  // REQUIRES: bytes <= this->bytes()
  void advance(std::uint64_t bytes);
  // Writes `data`'s first bytes into the memory and advances; returns how many fitted.
  std::size_t fill(std::span<const std::byte> data);

 private:
  std::vector<iovec> pieces_;
  std::size_t first_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace cairn::http
