#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cairn {

// The hint for a block's next use, given by its user, in the steps that eviction orders
// distinguish.
enum class NextUse : std::uint8_t {
  unknown,
  never,
  later,
  within_400_s,
  within_120_s,
  within_30_s
};
inline constexpr std::size_t kNextUses = 6;

// The time from now within which a use is expected; 0 if it is not expected soon.
constexpr std::int64_t expected_within_ms(NextUse next_use) {
  constexpr std::array<std::int64_t, kNextUses> kWithinMs = {0, 0, 0, 400'000, 120'000, 30'000};
  return kWithinMs[static_cast<std::size_t>(next_use)];
}
// A hint `within` a longer time is one for later.
inline constexpr std::int64_t kLongestExpectedMs = expected_within_ms(NextUse::within_400_s);

// The hint as the client gave it. It changes only which blocks are evicted first.
struct ReuseHint {
  enum class Kind : std::uint8_t { none, never, soon, later, within };
  Kind kind = Kind::none;
  std::uint64_t within_ms = 0;  // of `within`

  friend bool operator==(const ReuseHint&, const ReuseHint&) = default;
  explicit operator bool() const { return kind != Kind::none; }

  NextUse next_use() const {
    switch (kind) {
      case Kind::none:
        return NextUse::unknown;
      case Kind::never:
        return NextUse::never;
      case Kind::later:
        return NextUse::later;
      case Kind::soon:
        return NextUse::within_120_s;  // conversations that continue mostly do so in 40 to 80 s
      case Kind::within:
        break;
    }
    for (const NextUse next_use :
         {NextUse::within_30_s, NextUse::within_120_s, NextUse::within_400_s}) {
      if (within_ms <= static_cast<std::uint64_t>(expected_within_ms(next_use))) return next_use;
    }
    return NextUse::later;
  }
};
inline constexpr std::size_t kHintKinds = 5;  // including `none`

}  // namespace cairn
