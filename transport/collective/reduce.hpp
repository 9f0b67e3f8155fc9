#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/collective/communicator.hpp"

namespace cairn {

// accumulator[i] = accumulator[i] (reduction) values[i]; for `avg` the sum, which average() then
// divides. Half-precision numbers are reduced in single precision, each step rounded to nearest.
// REQUIRES: both aligned to the type's width and of whole elements.
struct ReduceStep {
  std::span<std::byte> accumulator;
  std::span<const std::byte> values;
  DataType type = DataType::uint8;
  Reduction reduction = Reduction::sum;
};
void reduce(const ReduceStep& step);

void average(std::span<std::byte> sums, DataType type, std::uint32_t world_size);

}  // namespace cairn
