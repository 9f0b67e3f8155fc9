#include "server/http/input_buffer.hpp"

#include <cstring>

namespace cairn::http {
InputBuffer::InputBuffer(std::size_t capacity_bytes)
    : capacity_(capacity_bytes), memory_(new std::byte[capacity_bytes + kBodyPadding]) {}

void InputBuffer::compact(const std::byte* to) {
  const auto start = static_cast<std::size_t>(to - memory_.get());
  const std::size_t bytes = size();
  if (bytes > 0 && start != begin_) {
    std::memmove(memory_.get() + start, memory_.get() + begin_, bytes);
  }
  begin_ = start;
  end_ = start + bytes;
}

}  // namespace cairn::http
