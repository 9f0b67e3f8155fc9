#pragma once

#include <bit>
#include <cstdint>

#include "base/assert.hpp"
#include "transport/collective/communicator.hpp"

// The C++ types of DataType.
namespace cairn {

// Half-precision numbers in memory.
struct Half {
  std::uint16_t bits;
};
struct BrainHalf {
  std::uint16_t bits;
};

inline float to_float(BrainHalf value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline float to_float(Half value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const std::uint32_t fraction = value.bits & 0x3FFu;
  if (exponent == 0) {
    // Zero or subnormal: fraction * 2^-24, exact in single precision.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline BrainHalf to_brain_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFF'FFFFu) > 0x7F80'0000u) {
    return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)};
}

inline Half to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFF'FFFFu;
  const auto with_sign = [sign](std::uint32_t half) {
    return Half{static_cast<std::uint16_t>(sign | half)};
  };
  if (magnitude > 0x7F80'0000u) return with_sign(0x7E00u);
  // 65520 and above round to infinity.
  if (magnitude >= 0x477F'F000u) return with_sign(0x7C00u);
  if (magnitude < 0x3880'0000u) {
    // Subnormal: adding 0.5 rounds to a multiple of 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return with_sign(std::bit_cast<std::uint32_t>(shifted) - 0x3F00'0000u);
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return with_sign((rounded - 0x3800'0000u) >> 13);
}

// Calls `with` with a value of the C++ type for `type`.
template <class With>
void dispatch(DataType type, With with) {
  switch (type) {
    case DataType::int8:
      return with(std::int8_t{});
    case DataType::uint8:
      return with(std::uint8_t{});
    case DataType::int32:
      return with(std::int32_t{});
    case DataType::uint32:
      return with(std::uint32_t{});
    case DataType::int64:
      return with(std::int64_t{});
    case DataType::uint64:
      return with(std::uint64_t{});
    case DataType::float16:
      return with(Half{});
    case DataType::float32:
      return with(float{});
    case DataType::float64:
      return with(double{});
    case DataType::bfloat16:
      return with(BrainHalf{});
  }
  invariant_broken("DataType", "a value outside the enumeration");
}

}  // namespace cairn
