#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <algorithm>

#include "memory/cuda/copy_kernel.hpp"
#include "memory/cuda/copy_kernel_words.hpp"

namespace cairn {
namespace {

// Loads of a thread in progress before its first store. With 8 blocks of threads that makes 256
// KiB, three times what a bus of 55 GB/s needs for its 1.5 us.
constexpr std::uint64_t kLoadsAhead = 4;

template <class Word>
__device__ void copy_of_width(std::byte* destination, const std::byte* source,
                              std::uint64_t words) {
  auto* const to = reinterpret_cast<Word*>(destination);
  const auto* const from = reinterpret_cast<const Word*>(source);
  std::uint64_t at = threadIdx.x;
  for (; at + (kLoadsAhead - 1) * kCopyThreads < words; at += kLoadsAhead * kCopyThreads) {
    Word loaded[kLoadsAhead];
#pragma unroll
    for (std::uint64_t i = 0; i < kLoadsAhead; ++i) loaded[i] = from[at + i * kCopyThreads];
#pragma unroll
    for (std::uint64_t i = 0; i < kLoadsAhead; ++i) to[at + i * kCopyThreads] = loaded[i];
  }
  for (; at < words; at += kCopyThreads) to[at] = from[at];
}

__device__ void copy_run(std::byte* destination, const std::byte* source,
                         std::uint64_t size_bytes) {
  const CopyWords words = copy_words(reinterpret_cast<std::uintptr_t>(destination),
                                     reinterpret_cast<std::uintptr_t>(source), size_bytes);
  copy_of_width<std::uint8_t>(destination, source, words.head_bytes);
  destination += words.head_bytes;
  source += words.head_bytes;
  switch (words.word_bytes) {
    case 16:
      copy_of_width<uint4>(destination, source, words.words);
      break;
    case 8:
      copy_of_width<uint2>(destination, source, words.words);
      break;
    case 4:
      copy_of_width<std::uint32_t>(destination, source, words.words);
      break;
    case 2:
      copy_of_width<std::uint16_t>(destination, source, words.words);
      break;
    default:
      copy_of_width<std::uint8_t>(destination, source, words.words);
  }
  const std::uint64_t done = words.words * words.word_bytes;
  copy_of_width<std::uint8_t>(destination + done, source + done, words.tail_bytes);
}

template <std::size_t capacity>
__device__ void copy_table(const CopyTable<capacity>& table) {
  const std::uint32_t shares = table.pieces * table.parts;
  for (std::uint32_t share = blockIdx.x; share < shares; share += gridDim.x) {
    const MemoryCopy& piece = table.piece[share / table.parts];
    const CopyPart part = copy_part(piece.size_bytes, share % table.parts, table.parts);
    copy_run(piece.destination + part.begin, piece.source + part.begin, part.end - part.begin);
  }
}

template <std::size_t capacity>
cudaError_t launch_table(const void* kernel, std::span<const MemoryCopy> pieces, CopyLaunch launch,
                         cudaStream_t stream) {
  CopyTable<capacity> table;
  table.pieces = static_cast<std::uint32_t>(pieces.size());
  table.parts = launch.parts;
  std::ranges::copy(pieces, table.piece);
  void* arguments[] = {&table};
  return cudaLaunchKernel(kernel, dim3(launch.thread_blocks), dim3(kCopyThreads), arguments, 0,
                          stream);
}

}  // namespace

// Tests use these names.
extern "C" __global__ void __launch_bounds__(kCopyThreads)
    cairn_copy_small(const __grid_constant__ CopyTable<kSmallCopyTable> table) {
  copy_table(table);
}
extern "C" __global__ void __launch_bounds__(kCopyThreads)
    cairn_copy_large(const __grid_constant__ CopyTable<kLargeCopyTable> table) {
  copy_table(table);
}

bool has_copy_kernel() { return true; }

cudaError_t launch_copy_kernel(std::span<const MemoryCopy> pieces, CopyLaunch launch,
                               cudaStream_t stream) {
  if (pieces.size() <= kSmallCopyTable) {
    return launch_table<kSmallCopyTable>(reinterpret_cast<const void*>(&cairn_copy_small), pieces,
                                         launch, stream);
  }
  return launch_table<kLargeCopyTable>(reinterpret_cast<const void*>(&cairn_copy_large), pieces,
                                       launch, stream);
}

}  // namespace cairn
