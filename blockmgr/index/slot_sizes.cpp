#include "blockmgr/index/slot_sizes.hpp"

#include <algorithm>

#include "base/assert.hpp"
#include "base/checked.hpp"

namespace cairn {
namespace {

// Units of the smallest block, at most. Each unit costs some 80 bytes of metadata.
constexpr std::uint64_t kMaxDivisor = 16;
// A unit on disk has room for a header, which fills the alignment, and for a block.
constexpr std::uint64_t kLeastUnit = 2;
// Accepted loss: a block's part of its last unit, and what is left at the end of a slab.
constexpr double kUnitLoss = 1.0 / 32;
constexpr double kSlabLoss = 1.0 / 16;
// Small slabs are easily emptied for another size, so that few blocks of the largest size fill one.
constexpr std::uint32_t kMaxLargestBlocks = 4;

std::uint64_t divided_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// The largest share of a block's room that is lost with units of this size.
double unit_loss(const std::vector<std::uint64_t>& block_bytes, std::uint64_t unit_bytes) {
  double most = 0;
  for (const std::uint64_t bytes : block_bytes) {
    const auto room = static_cast<double>(divided_up(bytes, unit_bytes) * unit_bytes);
    most = std::max(most, 1 - static_cast<double>(bytes) / room);
  }
  return most;
}

std::uint64_t choose_unit(const std::vector<std::uint64_t>& block_bytes, std::uint64_t alignment) {
  const std::uint64_t smallest = std::ranges::min(block_bytes);
  if (std::ranges::all_of(block_bytes, [&](std::uint64_t b) { return b % smallest == 0; })) {
    return smallest;
  }
  std::uint64_t best = 0;
  double least = 1;
  for (std::uint64_t divisor = 1; divisor <= kMaxDivisor && least > kUnitLoss; ++divisor) {
    const std::uint64_t unit = std::max(
        checked_align_up(divided_up(smallest, divisor), alignment).value(), kLeastUnit * alignment);
    const double loss = unit_loss(block_bytes, unit);
    if (best != 0 && loss >= least) continue;
    best = unit;
    least = loss;
  }
  return best;
}

std::uint32_t choose_slab(const std::vector<std::uint32_t>& block_units) {
  const std::uint32_t largest = std::ranges::max(block_units);
  std::uint32_t best = largest;
  double least = 1;
  for (std::uint32_t slab = largest; slab <= kMaxLargestBlocks * largest; ++slab) {
    double loss = 0;
    for (const std::uint32_t units : block_units) {
      loss = std::max(loss, static_cast<double>(slab % units) / slab);
    }
    if (loss >= least) continue;
    best = slab;
    least = loss;
    if (loss <= kSlabLoss) break;
  }
  return best;
}

}  // namespace

SlotSizes choose_slot_sizes(const std::vector<std::uint64_t>& block_bytes,
                            std::uint64_t alignment) {
  CAIRN_ASSERT(!block_bytes.empty(), "a cache has a block");
  SlotSizes sizes{.unit_bytes = std::ranges::max(block_bytes)};
  const std::uint64_t unit = choose_unit(block_bytes, alignment);
  std::vector<std::uint32_t> units;
  for (const std::uint64_t bytes : block_bytes) {
    units.push_back(static_cast<std::uint32_t>(divided_up(bytes, unit)));
  }
  // Blocks of about one size need no slabs.
  if (std::ranges::min(units) == std::ranges::max(units)) return sizes;
  sizes.unit_bytes = unit;
  sizes.slab_units = choose_slab(units);
  sizes.block_units = std::move(units);
  return sizes;
}

}  // namespace cairn
