#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "server/http/message.hpp"

namespace cairn::http {

// Bytes that have arrived on a connection and are not used yet. The memory never moves, so views
// stay valid until compact() or clear(). kBodyPadding bytes after any part of it are readable.
class InputBuffer {
 public:
  explicit InputBuffer(std::size_t capacity_bytes);

  std::span<const std::byte> data() const { return {memory_.get() + begin_, end_ - begin_}; }
  std::size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  // Room for the next bytes.
  std::span<std::byte> room() { return {memory_.get() + end_, capacity_ - end_}; }
  // How large data() can become without moving.
  std::size_t reach() const { return capacity_ - begin_; }

  // Call after writing `bytes` to room().
  void commit(std::size_t bytes) { end_ += bytes; }
  // Drops the first bytes of data(); they stay readable.
  void consume(std::size_t bytes) { begin_ += bytes; }
  // Moves data() to `to`, a position in this buffer at or before it.
  void compact(const std::byte* to);
  // Moves data() to the start of the buffer.
  void compact() { compact(memory_.get()); }
  void clear() { begin_ = end_ = 0; }

 private:
  std::size_t capacity_;
  std::unique_ptr<std::byte[]> memory_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace cairn::http
