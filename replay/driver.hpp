#pragma once

#include <chrono>
#include <optional>
#include <stop_token>
#include <string>

#include "client/answer.hpp"
#include "replay/console.hpp"
#include "replay/options.hpp"
#include "replay/tally.hpp"
#include "replay/target_cache.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

// The result of a replay, and the server's counts.
struct Outcome {
  TargetCache target;
  Tally tally;
  std::chrono::nanoseconds duration{};
  // counted by the server meanwhile; nullopt if it did not report them
  std::optional<MatchCounts> server;
  std::optional<PrefetchCounts> prefetched;  // the same of prefetched blocks, if there were actions
  std::string broken_off;  // why it ended before the workload's end; empty if it did not
};

// Runs the workload against the server in `options`, with one thread per connection, and removes
// the cache it made. Returns when the workload ends, a stop is requested, or the server stops
// responding; an error if it could not begin.
client::Answer<Outcome> replay(const ReplayOptions& options, Workload& workload, Console& console,
                               const std::stop_token& stop);

}  // namespace cairn::replay
