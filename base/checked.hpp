#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>

namespace cairn {

// Arithmetic that returns nullopt on overflow.
template <std::unsigned_integral T>
constexpr std::optional<T> checked_add(T a, T b) {
  T sum{};
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::unsigned_integral T>
constexpr std::optional<T> checked_mul(T a, T b) {
  T product{};
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The product of all factors; 1 if there are none.
constexpr std::optional<std::uint64_t> checked_product(
    std::initializer_list<std::uint64_t> factors) {
  std::uint64_t product = 1;
  for (std::uint64_t factor : factors) {
    auto next = checked_mul(product, factor);
    if (!next) return std::nullopt;
    product = *next;
  }
  return product;
}

constexpr bool is_power_of_two(std::uint64_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

// The smallest multiple of `alignment` (a power of two) that is at least `value`.
constexpr std::optional<std::uint64_t> checked_align_up(std::uint64_t value,
                                                        std::uint64_t alignment) {
  auto raised = checked_add<std::uint64_t>(value, alignment - 1);
  if (!raised) return std::nullopt;
  return *raised & ~(alignment - 1);
}

}  // namespace cairn
