#include "replay/oracle.hpp"

#include <array>

#include "replay/mix.hpp"

namespace cairn::replay {
namespace {

double chance(std::uint64_t number) {
  return static_cast<double>(mix(number + kGolden) >> 11U) * 0x1p-53;
}

}  // namespace

ReuseHint hint_of(const HintOptions& hints, std::optional<std::int64_t> back_in_ms,
                  std::uint64_t number) {
  using enum ReuseHint::Kind;
  const bool is_right = chance(2 * number) < hints.right;
  const double told = chance(2 * number + 1);
  if (hints.ended > 0) {
    const bool ends = back_in_ms.has_value() != is_right;
    return {.kind = ends && told < hints.ended ? never : none};
  }
  if (told >= hints.when) return {};
  if (!is_right) {
    constexpr std::array<ReuseHint, 5> kAny = {{{.kind = never},
                                                {.kind = later},
                                                {.kind = within, .within_ms = 400'000},
                                                {.kind = within, .within_ms = 120'000},
                                                {.kind = within, .within_ms = 30'000}}};
    return kAny[mix(~number) % kAny.size()];
  }
  if (!back_in_ms) return {.kind = never};
  return {.kind = within, .within_ms = static_cast<std::uint64_t>(*back_in_ms)};
}

}  // namespace cairn::replay
