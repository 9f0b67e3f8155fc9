#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace cairn::routes {

// Room for bytes to drop: a client sends a block that is already stored.
class DiscardRoom {
 public:
  // About as much as a socket delivers at once.
  static constexpr std::size_t kBytes = 64 * 1024;

  // Room for at most the next `left_bytes` bytes. REQUIRES: left_bytes > 0.
  std::span<const iovec> room(std::uint64_t left_bytes) {
    if (!memory_) memory_ = std::make_unique_for_overwrite<std::byte[]>(kBytes);
    piece_ = {memory_.get(), static_cast<std::size_t>(std::min<std::uint64_t>(left_bytes, kBytes))};
    return {&piece_, 1};
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  iovec piece_{};
};

}  // namespace cairn::routes
