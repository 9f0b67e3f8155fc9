#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "client/blocks.hpp"

namespace cairn::replay {

// The steps of a request whose latency is measured separately.
enum class Step : std::uint8_t { match, read, allocate, write, commit, release, action };
inline constexpr std::array kSteps = {Step::match,  Step::read,    Step::allocate, Step::write,
                                      Step::commit, Step::release, Step::action};
std::string_view to_string(Step step);

struct Percentiles {
  std::uint64_t count = 0;
  double p50_us = 0;
  double p90_us = 0;
  double p99_us = 0;
  double max_us = 0;
};

// The smallest sample that at least this share of the samples do not exceed; sorts them.
Percentiles percentiles_of(std::vector<float>& samples_us);

// The results of one connection, or of all of them together. For one thread at a time.
struct Tally {
  std::uint64_t requests = 0;         // matched and completed
  std::uint64_t requests_failed = 0;  // ended at the match
  std::uint64_t blocks_asked = 0;     // of requests whose match succeeded
  std::uint64_t matched = 0;          // of those; with one KV group, as many as blocks were hit
  std::uint64_t full_matched = 0;     // with several: by the full groups alone
  std::array<std::uint64_t, client::kTiers.size()> hits{};
  std::uint64_t misses = 0;
  std::uint64_t stored = 0;
  std::uint64_t duplicates = 0;   // another connection stored it first
  std::uint64_t not_stored = 0;   // no room, or the server was busy, in all tries
  std::uint64_t blocks_read = 0;  // and compared
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t wrong_bytes = 0;
  std::uint64_t wrong_blocks = 0;
  std::uint64_t leased_missing = 0;             // blocks that were missing under a lease
  std::uint64_t retries = 0;                    // temporary refusals of the server
  std::uint64_t late_ms = 0;                    // the longest delay of the replay behind the trace
  std::map<std::string, std::uint64_t> errors;  // "read 404 unknown_key"
  // By type and outcome: "pin", "accepted".
  std::map<std::string, std::map<std::string, std::uint64_t>> actions;
  std::array<std::vector<float>, kSteps.size()> latencies_us;
  // From a request's arrival until its engine has loaded or computed all of it.
  struct EngineTime {
    float real_us = 0;     // of the server's calls
    float virtual_us = 0;  // of the simulated engine
  };
  std::vector<EngineTime> engine_times;

  void add_latency(Step step, std::chrono::nanoseconds taken);
  Percentiles latency(Step step);
  void add_engine_time(EngineTime time) { engine_times.push_back(time); }
  enum class EnginePart : std::uint8_t { real, simulated, both };
  Percentiles engine_time(EnginePart part) const;
  void add(Tally&& other);

  std::uint64_t errors_total() const;
  std::uint64_t hits_total() const { return hits[0] + hits[1] + hits[2]; }
};

}  // namespace cairn::replay
