#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>

#include "base/result.hpp"
#include "blockmgr/eviction/reuse_hint.hpp"
#include "replay/options.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

// The hint for a conversation that resumes in this number of ms, or never: always the same for the
// number-th request.
ReuseHint hint_of(const HintOptions& hints, std::optional<std::int64_t> back_in_ms,
                  std::uint64_t number);

// Knows the rest of a trace: it gets the requests from the last to the first.
class Oracle {
 public:
  explicit Oracle(const HintOptions& hints) : hints_(hints) {}

  struct Request {
    std::uint64_t number = 0;
    std::span<const std::uint64_t> blocks;
    std::uint64_t full_blocks = 0;  // the ones that are full of tokens; 0: unknown
    std::int64_t unix_ms = 0;
  };
  // A conversation resumes when half of a prompt is requested again: then its stored blocks are
  // useful.
  ReuseHint says_of(const Request& request);

 private:
  const HintOptions hints_;
  std::unordered_map<std::uint64_t, std::int64_t> next_ms_;
};

// The same requests, with the hint for each: `limit` at most; 0: all. Keeps them in memory.
Result<std::unique_ptr<Workload>> with_hints(Workload& workload, std::uint64_t limit,
                                             const HintOptions& hints);

}  // namespace cairn::replay
