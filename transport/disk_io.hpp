#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

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

  // Memory from and to which much will be moved: an engine may make that cheaper. What is moved,
  // and from where, does not depend on it. An error says why it could not, and changes nothing.
  virtual Result<> prepare(std::span<std::byte>) { return {}; }
  // REQUIRES: no call uses it any more. To be called before that memory is anything else's.
  virtual void forget(std::span<std::byte>) {}
};

// Prepared as long as it lives.
class PreparedMemory {
 public:
  // Borrows both.
  static Result<PreparedMemory> of(DiskIo& disk, std::span<std::byte> memory) {
    CAIRN_TRY(disk.prepare(memory));
    return PreparedMemory(disk, memory);
  }
  PreparedMemory(PreparedMemory&& other) noexcept
      : disk_(std::exchange(other.disk_, nullptr)), memory_(other.memory_) {}
  PreparedMemory& operator=(PreparedMemory&&) = delete;
  ~PreparedMemory() {
    if (disk_ != nullptr) disk_->forget(memory_);
  }

 private:
  PreparedMemory(DiskIo& disk, std::span<std::byte> memory) : disk_(&disk), memory_(memory) {}
  DiskIo* disk_;
  std::span<std::byte> memory_;
};

std::unique_ptr<DiskIo> make_positional_disk_io();

}  // namespace cairn
