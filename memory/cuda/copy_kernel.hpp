#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "memory/memory_copy.hpp"

namespace cairn {

// Copies pieces with threads of the device: 16 bytes at a time if both sides have the same offset
// from a multiple of 16, else with the widest word that suits both. Between two places in the
// device's memory, and between it and host memory that the device sees at the CPU's address.

// In a block of threads. Four blocks per multiprocessor can be resident with 32 registers per
// thread.
inline constexpr std::uint32_t kCopyThreads = 512;

// The pieces travel in the launch itself, so no memory has to outlive it. A launch takes 32,764
// bytes of arguments; small jobs should not carry that much.
inline constexpr std::size_t kSmallCopyTable = 32;
inline constexpr std::size_t kLargeCopyTable = 1024;

// The input of a launch: every piece is divided into `parts` parts, and the blocks of threads take
// the parts of all pieces in turn.
template <std::size_t capacity>
struct CopyTable {
  std::uint32_t pieces;
  std::uint32_t parts;
  MemoryCopy piece[capacity];
};
static_assert(sizeof(CopyTable<kLargeCopyTable>) <= 32'764);

struct CopyLaunch {
  std::uint32_t thread_blocks = 1;
  std::uint32_t parts = 1;
};

// False if the program was built without nvcc: then launch_copy_kernel() returns
// cudaErrorNotSupported.
bool has_copy_kernel();
// REQUIRES: 1 to kLargeCopyTable pieces, none empty.
cudaError_t launch_copy_kernel(std::span<const MemoryCopy> pieces, CopyLaunch launch,
                               cudaStream_t stream);

// The number of blocks of threads, and of parts per piece, for these pieces. Over the bus a few
// blocks have enough loads in progress, and leave the device to the engine; within the device all
// blocks work.
struct CopyReach {
  bool crosses_bus = false;
  std::uint32_t multiprocessors = 1;
};
CopyLaunch plan_copy_launch(std::span<const MemoryCopy> pieces, CopyReach reach);

}  // namespace cairn
