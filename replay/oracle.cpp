#include "replay/oracle.hpp"

#include <array>
#include <utility>
#include <vector>

#include "replay/mix.hpp"
#include "replay/read_workload.hpp"

namespace cairn::replay {

ReuseHint hint_of(const HintOptions& hints, std::optional<std::int64_t> back_in_ms,
                  std::uint64_t number) {
  using enum ReuseHint::Kind;
  const bool is_right = chance(2 * number) < hints.right;
  const double draw = chance(2 * number + 1);
  if (hints.ended > 0) {
    const bool ends = back_in_ms.has_value() != is_right;
    return {.kind = ends && draw < hints.ended ? never : none};
  }
  if (draw >= hints.when) return {};
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

ReuseHint Oracle::says_of(const Request& request) {
  if (request.blocks.empty()) return {};
  const std::size_t full = request.full_blocks > 0 && request.full_blocks < request.blocks.size()
                               ? request.full_blocks
                               : request.blocks.size();
  std::optional<std::int64_t> back_in_ms;
  if (const auto next = next_ms_.find(request.blocks[(full - 1) / 2]); next != next_ms_.end()) {
    back_in_ms = next->second - request.unix_ms;
  }
  for (const std::uint64_t block : request.blocks) next_ms_[block] = request.unix_ms;
  return hint_of(hints_, back_in_ms, request.number);
}

Result<std::unique_ptr<Workload>> with_hints(Workload& workload, std::uint64_t limit,
                                             const HintOptions& hints) {
  auto read = read_all(workload, limit);
  if (!read) return std::move(read).error();
  std::vector<PromptRequest>& requests = *read;
  Oracle oracle(hints);
  for (std::size_t i = requests.size(); i-- > 0;) {
    requests[i].hint =
        oracle.says_of({.number = i,
                        .blocks = requests[i].hash_ids,
                        .unix_ms = static_cast<std::int64_t>(requests[i].timestamp_ms)});
  }
  return workload_from(std::move(requests), workload.name());
}

}  // namespace cairn::replay
