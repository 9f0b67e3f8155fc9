#pragma once

#include <cstdint>

#include "tests/e2e/support/engine_area.hpp"

// Shared by the engine that is killed and the test that kills it.
namespace cairn::e2e::engine_process {

inline constexpr const char* kName = "killed";
inline constexpr const char* kRegistered = "registered";
inline constexpr const char* kComplaint = "refused: ";

inline constexpr unsigned kThreads = 3;
// It loads the keys from 0 on.
inline constexpr std::uint32_t kSharedKeys = 96;
// Each thread's stored keys, and its blocks. Two loads into the same blocks at once would be the
// engine's own fault, so a load in the background uses other blocks than the next one.
inline constexpr std::uint32_t kStoredKeys = 128;
inline constexpr std::uint32_t kStoredBlocks = 32;
inline constexpr std::uint32_t kLoadedBlocks = 2 * kSharedKeys;
inline constexpr std::uint32_t kThreadBlocks = kStoredBlocks + kLoadedBlocks;
inline constexpr std::uint32_t kBlocks = kThreads * kThreadBlocks;
inline constexpr int first_stored(unsigned thread) {
  return 1000 + static_cast<int>(thread * kStoredKeys);
}
// For leases that nobody releases after the kill.
inline constexpr std::uint32_t kLeaseMs = 300;

}  // namespace cairn::e2e::engine_process
