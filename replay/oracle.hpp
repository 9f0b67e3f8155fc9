#pragma once

#include <cstdint>
#include <optional>

#include "blockmgr/eviction/reuse_hint.hpp"
#include "replay/options.hpp"

namespace cairn::replay {

// What is said of a conversation that goes on in so many ms, or never: always the same of the
// number-th request.
ReuseHint hint_of(const HintOptions& hints, std::optional<std::int64_t> back_in_ms,
                  std::uint64_t number);

}  // namespace cairn::replay
