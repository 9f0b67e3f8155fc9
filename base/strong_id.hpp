#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace cairn {

// A number with its own type.
template <class Tag, class Rep = std::uint64_t>
struct StrongId {
  Rep value{};
  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
};

}  // namespace cairn

template <class Tag, class Rep>
struct std::hash<cairn::StrongId<Tag, Rep>> {
  std::size_t operator()(const cairn::StrongId<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
