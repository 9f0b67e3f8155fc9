#pragma once

#include <cstdint>

#include "tests/e2e/support/engine_area.hpp"

// What the engine that is killed and the test that kills it agree on.
namespace cairn::e2e::engine_process {

inline constexpr const char* kName = "killed";
inline constexpr const char* kRegistered = "registered";
inline constexpr const char* kComplaint = "refused: ";

inline constexpr unsigned kThreads = 3;
// The keys that it loads, 0 and following.
inline constexpr std::uint32_t kSharedKeys = 96;
// Of each thread: the keys that it stores, and its blocks. Two loads into the same ones at once
// would be the engine's own fault, so one that is not waited for has others than the next.
inline constexpr std::uint32_t kStoredKeys = 128;
inline constexpr std::uint32_t kStoredBlocks = 32;
inline constexpr std::uint32_t kLoadedBlocks = 2 * kSharedKeys;
inline constexpr std::uint32_t kThreadBlocks = kStoredBlocks + kLoadedBlocks;
inline constexpr std::uint32_t kBlocks = kThreads * kThreadBlocks;
inline constexpr int first_stored(unsigned thread) {
  return 1000 + static_cast<int>(thread * kStoredKeys);
}
// Of what nobody gives back once it is killed.
inline constexpr std::uint32_t kLeaseMs = 300;

}  // namespace cairn::e2e::engine_process
