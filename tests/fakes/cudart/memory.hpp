#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace cairn::fakes {

// New memory holds whatever was there before, never zeros.
inline constexpr int kStale = 0xA5;

// Of each device: CAIRN_FAKE_CUDA_DEVICE_BYTES, or 1 GiB. Of managed memory there may be 32
// times as much.
std::size_t device_bytes();

enum class Kind : std::uint8_t { pageable, registered, device, managed };

// All that the fake's devices can reach. What it gives out as device memory is an address range
// without access, so that the CPU traps on it; the bytes are elsewhere. Thread-safe.
class Memory {
 public:
  cudaError_t allocate(Kind kind, int device, std::size_t size_bytes, void** address);
  cudaError_t free(void* address);
  // Another process opens the block that holds the address, whole, and at an address of its own.
  // CUDA opens no block in the process that has it.
  cudaError_t export_block(const void* address, cudaIpcMemHandle_t* handle) const;
  cudaError_t open_block(const cudaIpcMemHandle_t& handle, int device, void** address);
  // Where the block of an address begins, which may be before what was given out.
  cudaError_t block_of(const void* address, std::uintptr_t* begin, std::size_t* size_bytes) const;
  cudaError_t add_registration(void* address, std::size_t size_bytes);
  cudaError_t remove_registration(void* address);

  // What virtual memory management maps: nobody may reach it until set_access().
  void add_mapped(void* address, int device, std::size_t size_bytes, std::byte* bytes);
  // Which devices reach it, a bit each. False where nothing of that size is mapped there.
  bool set_access(const void* address, std::size_t size_bytes, std::uint64_t devices);
  void remove_mapped(const void* address);

  // A run of bytes as the devices see it.
  struct Side {
    Kind kind = Kind::pageable;
    int device = -1;
    std::byte* bytes = nullptr;                    // where they really are
    std::uint64_t reached_by = ~std::uint64_t{0};  // a bit for each device that may
    bool is_reached_by(int by) const { return (reached_by >> by & 1) != 0; }
  };
  // Nothing where the run does not lie in one piece: it begins or ends in the midst of an
  // allocation or registration and leaves it.
  std::optional<Side> find(const void* address, std::size_t size_bytes) const;

  std::size_t alive(Kind kind) const;

 private:
  struct Range {
    Kind kind = Kind::pageable;
    int device = -1;
    std::size_t size_bytes = 0;
    std::byte* bytes = nullptr;
    std::byte* mapping = nullptr;  // of the addresses given out; null where not ours
    std::size_t mapping_bytes = 0;
    int file = -1;  // device: the bytes, for other processes
    std::uint64_t reached_by = ~std::uint64_t{0};
  };
  const Range* block_at(const void* address) const;
  using Ranges = std::map<std::uintptr_t, Range>;
  bool overlaps(std::uintptr_t begin, std::size_t size_bytes) const;

  mutable std::mutex mutex_;
  Ranges ranges_;
};

}  // namespace cairn::fakes
