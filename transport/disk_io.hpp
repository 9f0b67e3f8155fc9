#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.hpp"

namespace cairn {

struct DiskRun {
  std::byte* memory = nullptr;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

// Reads and writes of a file at positions. A call moves every byte of every run or fails (io_error
// with the call, the offset and errno's words; no_capacity for a full disk): short I/O is continued
// or an error, never success. Blocks the caller. Thread-safe.
class DiskIo {
 public:
  virtual ~DiskIo() = default;
  virtual Result<> read(int fd, std::span<const DiskRun> runs) = 0;
  virtual Result<> write(int fd, std::span<const DiskRun> runs) = 0;
};

std::unique_ptr<DiskIo> make_positional_disk_io();

}  // namespace cairn
