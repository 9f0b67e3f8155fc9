#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/collective/communicator.hpp"

namespace cairn {

// accumulator[i] = accumulator[i] (reduction) values[i]. For `avg` it computes the sum; average()
// then divides it. Half-precision numbers are reduced in single precision and rounded to nearest
// after each step. REQUIRES: both aligned to the type and of whole elements.
struct ReduceStep {
  std::span<std::byte> accumulator;
  std::span<const std::byte> values;
  DataType type = DataType::uint8;
  Reduction reduction = Reduction::sum;
};
void reduce(const ReduceStep& step);

void average(std::span<std::byte> sums, DataType type, std::uint32_t world_size);

}  // namespace cairn
