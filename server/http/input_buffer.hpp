#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "server/http/message.hpp"

namespace cairn::http {

// What has arrived on a connection and is not yet used up: a fixed piece of memory that never
// moves, so that views into it hold until `compact` or `clear`. kBodyPadding bytes after every part
// of it are readable.
class InputBuffer {
 public:
  explicit InputBuffer(std::size_t capacity_bytes);

  std::span<const std::byte> data() const { return {memory_.get() + begin_, end_ - begin_}; }
  std::size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  // Where the next bytes go.
  std::span<std::byte> room() { return {memory_.get() + end_, capacity_ - end_}; }
  // The bytes that data() could grow to without anything moving.
  std::size_t reach() const { return capacity_ - begin_; }

  // `bytes` were written to room().
  void commit(std::size_t bytes) { end_ += bytes; }
  // data()'s first bytes are used up; they stay readable.
  void consume(std::size_t bytes) { begin_ += bytes; }
  // Moves data() down to `to`, which points at or before it, into this buffer.
  void compact(const std::byte* to);
  // Moves data() down to the start.
  void compact() { compact(memory_.get()); }
  void clear() { begin_ = end_ = 0; }

 private:
  std::size_t capacity_;
  std::unique_ptr<std::byte[]> memory_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace cairn::http
