#include "server/http/input_buffer.hpp"

#include <algorithm>
#include <cstring>

namespace cairn::http {
namespace {

constexpr std::size_t kBodyFirstBytes = 64 * 1024;
// With 4096 connections that is 1 GiB at worst, and the bodies of hot routes fit.
constexpr std::size_t kBodyKeptBytes = 256 * 1024;

}  // namespace

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

void BodyBuffer::append(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  reserve(size_ + bytes.size());
  std::memcpy(memory_.get() + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
}

std::span<std::byte> BodyBuffer::room(std::size_t most_bytes) {
  if (size_ == capacity_) reserve(size_ + 1);
  return {memory_.get() + size_, std::min(most_bytes, capacity_ - size_)};
}

void BodyBuffer::clear() {
  size_ = 0;
  if (capacity_ > kBodyKeptBytes) {
    memory_.reset();
    capacity_ = 0;
  }
}

void BodyBuffer::reserve(std::size_t bytes) {
  if (bytes <= capacity_) return;
  const std::size_t capacity = std::max({bytes, capacity_ * 2, kBodyFirstBytes});
  std::unique_ptr<std::byte[]> memory(new std::byte[capacity + kBodyPadding]);
  if (size_ > 0) std::memcpy(memory.get(), memory_.get(), size_);
  memory_ = std::move(memory);
  capacity_ = capacity;
}

}  // namespace cairn::http
