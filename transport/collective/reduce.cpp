#include "transport/collective/reduce.hpp"

#include <algorithm>
#include <type_traits>

#include "base/assert.hpp"
#include "transport/collective/data_types.hpp"

namespace cairn {
namespace {

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
