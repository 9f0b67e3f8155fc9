#include "transport/collective/reduce.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/assert.hpp"

namespace cairn {
namespace {

// Half-precision numbers in memory.
struct Half {
  std::uint16_t bits;
};
struct BrainHalf {
  std::uint16_t bits;
};

float to_float(BrainHalf value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

float to_float(Half value) {
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
BrainHalf to_brain_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFF'FFFFu) > 0x7F80'0000u) {
    return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)};
}

Half to_half(float value) {
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

template <class T>
T combine(T a, T b, Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
    case Reduction::avg:
      if constexpr (std::is_integral_v<T>) {
        using Wrapping = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
      } else {
        return a + b;
      }
    case Reduction::prod:
      if constexpr (std::is_integral_v<T>) {
        // In 64 bits: integral promotion would make two unsigned factors signed.
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      } else {
        return a * b;
      }
    case Reduction::max:
      return std::max(a, b);
    case Reduction::min:
      return std::min(a, b);
  }
  invariant_broken("Reduction", "a value outside the enumeration");
}

Half combine(Half a, Half b, Reduction reduction) {
  return to_half(combine(to_float(a), to_float(b), reduction));
}
BrainHalf combine(BrainHalf a, BrainHalf b, Reduction reduction) {
  return to_brain_half(combine(to_float(a), to_float(b), reduction));
}

template <class T>
T divide(T sum, std::uint32_t by) {
  if constexpr (std::is_same_v<T, Half>) {
    return to_half(to_float(sum) / static_cast<float>(by));
  } else if constexpr (std::is_same_v<T, BrainHalf>) {
    return to_brain_half(to_float(sum) / static_cast<float>(by));
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(sum) / static_cast<std::int64_t>(by));
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(sum) / by);
  } else {
    return static_cast<T>(sum / static_cast<T>(by));
  }
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

}  // namespace

void reduce(const ReduceStep& step) {
  CAIRN_ASSERT(step.accumulator.size() == step.values.size(),
               "a reduction would run past one side's end");
  dispatch(step.type, [&](auto kind) {
    using T = decltype(kind);
    auto* const sums = reinterpret_cast<T*>(step.accumulator.data());
    const auto* const values = reinterpret_cast<const T*>(step.values.data());
    const std::size_t count = step.accumulator.size() / sizeof(T);
    for (std::size_t i = 0; i < count; ++i) sums[i] = combine(sums[i], values[i], step.reduction);
  });
}

void average(std::span<std::byte> sums, DataType type, std::uint32_t world_size) {
  dispatch(type, [&](auto kind) {
    using T = decltype(kind);
    auto* const values = reinterpret_cast<T*>(sums.data());
    for (std::size_t i = 0; i < sums.size() / sizeof(T); ++i) {
      values[i] = divide(values[i], world_size);
    }
  });
}

}  // namespace cairn
