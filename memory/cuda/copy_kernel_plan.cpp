#include <algorithm>

#include "memory/cuda/copy_kernel.hpp"

namespace cairn {
namespace {

// 4,096 threads: their loads fill the bus (see the kernel), and more would take multiprocessors
// from computations.
constexpr std::uint32_t kBusThreadBlocks = 8;
// As many as can be resident.
constexpr std::uint32_t kThreadBlocksAMultiprocessor = 4;
// A part smaller than one access of every thread would leave threads without work.
constexpr std::uint64_t kLeastPartBytes = std::uint64_t{16} * kCopyThreads;

}  // namespace

CopyLaunch plan_copy_launch(std::span<const MemoryCopy> pieces, CopyReach reach) {
  const auto count = static_cast<std::uint32_t>(pieces.size());
  const std::uint32_t wanted =
      reach.crosses_bus ? kBusThreadBlocks : reach.multiprocessors * kThreadBlocksAMultiprocessor;
  const std::uint64_t longest = std::ranges::max(pieces, {}, &MemoryCopy::size_bytes).size_bytes;
  const std::uint64_t useful = std::max<std::uint64_t>(longest / kLeastPartBytes, 1);
  // Several shares per block of threads balance pieces of different sizes.
  const std::uint64_t even = (std::uint64_t{4} * wanted + count - 1) / count;
  const auto parts = static_cast<std::uint32_t>(std::min(useful, even));
  return {.thread_blocks = std::min(wanted, count * parts), .parts = parts};
}

}  // namespace cairn
