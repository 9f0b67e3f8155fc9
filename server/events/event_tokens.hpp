#pragma once

#include <cstdint>
#include <vector>

#include "blockmgr/block_manager.hpp"
#include "server/events/event_groups.hpp"

namespace cairn {

// Returns the tokens of all blocks of a group, from the "tokens" array in their metadata. Empty
// unless every block has them.
std::vector<std::uint32_t> tokens_of(const BlockManager& manager, const std::string& cache,
                                     const EventGroup& group);

// Splits a group into consecutive parts: in each, either all blocks have tokens or none has. A
// router that computes its own keys ignores blocks from the first one without tokens.
struct GroupAndTokens {
  EventGroup group;
  std::vector<std::uint32_t> tokens;
};
std::vector<GroupAndTokens> split_by_tokens(const BlockManager& manager, const std::string& cache,
                                            EventGroup group);

}  // namespace cairn
