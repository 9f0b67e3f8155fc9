#include "transport/collective/numbers.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/assert.hpp"
#include "transport/collective/data_types.hpp"

namespace cairn {
namespace {

template <class T>
void append(std::vector<std::byte>& bytes, T value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace

void Numbers::add(std::int64_t value) {
  if (!is_integer(type_)) return add(static_cast<double>(value));
  dispatch(type_, [&](auto kind) {
    using T = decltype(kind);
    if constexpr (std::is_integral_v<T>) append(bytes_, static_cast<T>(value));
  });
}

void Numbers::add(double value) {
  CAIRN_ASSERT(!is_integer(type_), "a fraction would be cut off");
  dispatch(type_, [&](auto kind) {
    using T = decltype(kind);
    if constexpr (std::is_same_v<T, Half>) {
      append(bytes_, to_half(static_cast<float>(value)));
    } else if constexpr (std::is_same_v<T, BrainHalf>) {
      append(bytes_, to_brain_half(static_cast<float>(value)));
    } else {
      append(bytes_, static_cast<T>(value));
    }
  });
}

Numbers::Value Numbers::at(std::size_t index) const {
  Value value;
  dispatch(type_, [&](auto kind) {
    using T = decltype(kind);
    std::memcpy(&kind, bytes_.data() + index * sizeof kind, sizeof kind);
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BrainHalf>) {
      value = static_cast<double>(to_float(kind));
    } else if constexpr (std::is_floating_point_v<T>) {
      value = static_cast<double>(kind);
    } else if constexpr (std::is_signed_v<T>) {
      value = static_cast<std::int64_t>(kind);
    } else {
      value = static_cast<std::uint64_t>(kind);
    }
  });
  return value;
}

bool is_integer(DataType type) {
  bool integer = false;
  dispatch(type, [&](auto kind) { integer = std::is_integral_v<decltype(kind)>; });
  return integer;
}

IntegerBounds bounds_of(DataType type) {
  IntegerBounds bounds;
  dispatch(type, [&](auto kind) {
    using T = decltype(kind);
    if constexpr (std::is_integral_v<T>) {
      constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
      bounds = {
          .min = static_cast<std::int64_t>(std::numeric_limits<T>::min()),
          .max = static_cast<std::int64_t>(std::min(kMost, static_cast<std::uint64_t>(INT64_MAX)))};
    }
  });
  return bounds;
}

}  // namespace cairn
