#pragma once

#include <filesystem>

#include "tests/simulation/seeded_random.hpp"

namespace cairn::sim {

// Where the files of runs lie: in memory where there is such a file system, where a flush costs
// nothing.
std::filesystem::path folder_for_runs();

// Takes the indexes of the disk tiers below a folder away: checkpoints and logs. The headers of the
// slots have to tell what lies there.
void remove_index(const std::filesystem::path& folder);

// A byte of a slot of each slot file below a folder goes wrong while nobody looks.
void rot_a_slot(const std::filesystem::path& folder, Random& random);

}  // namespace cairn::sim
