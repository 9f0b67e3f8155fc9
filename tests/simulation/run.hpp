#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/files.hpp"

namespace cairn::sim {

// One run: an empty cache and a number of steps of its clients, of time and of faults. The same
// options give the same run.
struct RunOptions {
  std::uint64_t seed = 0;
  std::uint32_t steps = 2'000;
  // Runs only the steps with these numbers; nullopt: all. Each step has its own random numbers, so
  // that the steps left of a run do the same as before.
  std::optional<std::vector<std::uint32_t>> only = {};
  bool tell = false;  // each step on stderr
  // The run creates its own folder in this one.
  std::filesystem::path folder = folder_for_runs();
};

struct RunOutcome {
  std::string finding = {};       // empty: none
  std::uint32_t step = 0;         // the step that found it
  std::uint64_t events = 0;       // of the queue
  std::uint64_t steps = 0;        // done
  std::uint64_t lives = 0;        // runs of the server
  std::uint64_t fingerprint = 0;  // of all events: equal for equal runs
};
RunOutcome run(const RunOptions& options);

}  // namespace cairn::sim
