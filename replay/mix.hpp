#pragma once

#include <cstdint>

namespace cairn::replay {

// Odd, and far from any short bit pattern: stepping by it visits every 64-bit value.
inline constexpr std::uint64_t kGolden = 0x9E37'79B9'7F4A'7C15;

// SplitMix64's finisher: a bijection, so that different numbers stay different.
constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xBF58'476D'1CE4'E5B9;
  value = (value ^ (value >> 27U)) * 0x94D0'49BB'1331'11EB;
  return value ^ (value >> 31U);
}

// From 0 to 1, the same for the same number.
constexpr double chance(std::uint64_t number) {
  return static_cast<double>(mix(number + kGolden) >> 11U) * 0x1p-53;
}

}  // namespace cairn::replay
