#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/files.hpp"

namespace cairn::sim {

// One run: a cache from nothing, so many steps of its clients, of time and of faults. The same
// options are the same run.
struct RunOptions {
  std::uint64_t seed = 0;
  std::uint32_t steps = 2'000;
  // Only these, by number; nothing: all. Each step has random numbers of its own, so that what is
  // left of a run goes as it went before.
  std::optional<std::vector<std::uint32_t>> only = {};
  bool tell = false;  // each step on stderr
  // Where the run makes a folder of its own.
  std::filesystem::path folder = folder_for_runs();
};

struct RunOutcome {
  std::string finding = {};       // empty: none
  std::uint32_t step = 0;         // where it was found
  std::uint64_t events = 0;       // of the queue
  std::uint64_t steps = 0;        // done
  std::uint64_t lives = 0;        // of the server
  std::uint64_t fingerprint = 0;  // of all that happened: equal for equal runs
};
RunOutcome run(const RunOptions& options);

}  // namespace cairn::sim
