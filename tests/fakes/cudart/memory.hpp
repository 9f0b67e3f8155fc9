#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace cairn::fakes {

// New memory is filled with this, never with zeros.
inline constexpr int kStale = 0xA5;

// The memory of each device: CAIRN_FAKE_CUDA_DEVICE_BYTES, or 1 GiB. Managed memory may be 32 times
// as much.
std::size_t device_bytes();

enum class Kind : std::uint8_t { pageable, registered, device, managed };

// All memory that the fake's devices can reach. Device memory is an address range without access,
// so that the CPU traps on it; the bytes are elsewhere. Thread-safe.
class Memory {
 public:
  cudaError_t allocate(Kind kind, int device, std::size_t size_bytes, void** address);
  cudaError_t free(void* address);
  // Another process opens the whole block that holds the address, at a different address. Like
  // CUDA, refuses to open a block in the process that allocated it.
  cudaError_t export_block(const void* address, cudaIpcMemHandle_t* handle) const;
  cudaError_t open_block(const cudaIpcMemHandle_t& handle, int device, void** address);
  // The begin of an address's block, which may be before the allocation.
  cudaError_t block_of(const void* address, std::uintptr_t* begin, std::size_t* size_bytes) const;
  cudaError_t add_registration(void* address, std::size_t size_bytes);
  cudaError_t remove_registration(void* address);

  // Memory mapped by VirtualMemory. No device may reach it until set_access().
  void add_mapped(void* address, int device, std::size_t size_bytes, std::byte* bytes);
  // `devices`: a bit for each device with access. Returns false if no mapping has that address and
  // size.
  bool set_access(const void* address, std::size_t size_bytes, std::uint64_t devices);
  void remove_mapped(const void* address);

  // A range of bytes as the devices see it.
  struct Side {
    Kind kind = Kind::pageable;
    int device = -1;
    std::byte* bytes = nullptr;                    // their real place
    std::uint64_t reached_by = ~std::uint64_t{0};  // a bit for each device with access
    bool is_reached_by(int by) const { return (reached_by >> by & 1) != 0; }
  };
  // nullopt if the range only partly lies in an allocation or registration.
  std::optional<Side> find(const void* address, std::size_t size_bytes) const;

  std::size_t alive(Kind kind) const;

 private:
  struct Range {
    Kind kind = Kind::pageable;
    int device = -1;
    std::size_t size_bytes = 0;
    std::byte* bytes = nullptr;
    std::byte* mapping = nullptr;  // of the allocated addresses; null if not ours
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
