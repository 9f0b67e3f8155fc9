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

// What a replay did, and what the server says about it.
struct Outcome {
  TargetCache target;
  Tally tally;
  std::chrono::nanoseconds duration{};
  std::optional<MatchCounts> server;  // counted by it meanwhile; nothing where it did not tell
  std::string broken_off;  // why it ended before the workload's end; empty where it did not
};

// Runs the workload against the server that `options` name, with a thread for each connection, and
// removes the cache it made. Returns when the workload ends, a stop is asked for, or the server no
// longer answers; an error where it could not begin.
client::Answer<Outcome> replay(const ReplayOptions& options, Workload& workload, Console& console,
                               const std::stop_token& stop);

}  // namespace cairn::replay
