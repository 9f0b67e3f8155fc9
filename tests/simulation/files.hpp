#pragma once

#include <filesystem>

#include "tests/simulation/seeded_random.hpp"

namespace cairn::sim {

// The folder for files of runs: in memory if such a file system exists, since a flush is free
// there.
std::filesystem::path folder_for_runs();

// Removes the indexes of the disk tiers below a folder: checkpoints and logs. Only the headers of
// the slots are left.
void remove_index(const std::filesystem::path& folder);

// Damages one byte of a slot in each slot file below a folder.
void rot_a_slot(const std::filesystem::path& folder, Random& random);

}  // namespace cairn::sim
