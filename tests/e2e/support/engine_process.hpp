#pragma once

#include <cstdint>

#include "tests/e2e/support/engine_area.hpp"

// What the engine that is killed and the test that kills it agree on.
namespace cairn::e2e::engine_process {

inline constexpr const char* kName = "killed";
inline constexpr const char* kRegistered = "registered";
inline constexpr const char* kComplaint = "refused: ";

inline constexpr unsigned kThreads = 3;
// The keys that it loads, 0 and following, and the blocks that they go to.
inline constexpr std::uint32_t kSharedKeys = 96;
inline constexpr std::uint32_t kLoadedBlocks = 128;
// Of each thread: the keys that it stores, and its blocks.
inline constexpr std::uint32_t kStoredKeys = 128;
inline constexpr std::uint32_t kStoredBlocks = 32;
inline constexpr std::uint32_t kBlocks = kLoadedBlocks + kThreads * kStoredBlocks;
inline constexpr int first_stored(unsigned thread) {
  return 1000 + static_cast<int>(thread * kStoredKeys);
}
// Of what nobody gives back once it is killed.
inline constexpr std::uint32_t kLeaseMs = 300;

}  // namespace cairn::e2e::engine_process
