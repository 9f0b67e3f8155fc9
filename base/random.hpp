#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {

// Unpredictable bytes from the operating system, fetched a page at a time, for ids that clients
// must not guess. Not thread-safe.
class RandomBytes {
 public:
  void fill(std::span<std::byte> out);
  std::uint64_t next_u64();

 private:
  std::array<std::byte, 4096> pool_{};
  std::size_t used_ = 4096;
};

}  // namespace cairn
