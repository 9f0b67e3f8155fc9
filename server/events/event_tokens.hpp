#pragma once

#include <cstdint>
#include <vector>

#include "blockmgr/block_manager.hpp"
#include "server/events/event_groups.hpp"

namespace cairn {

// The tokens of a group's blocks end to end: what their metadata says under "tokens", an array of
// numbers. Empty unless every one of them says it.
std::vector<std::uint32_t> tokens_of(const BlockManager& manager, const std::string& cache,
                                     const EventGroup& group);

// The group in parts, one after the other: in each, every block's tokens are known, or none's. A
// router that computes its own keys leaves out blocks from the first one on that has none.
struct GroupAndTokens {
  EventGroup group;
  std::vector<std::uint32_t> tokens;
};
std::vector<GroupAndTokens> split_by_tokens(const BlockManager& manager, const std::string& cache,
                                            EventGroup group);

}  // namespace cairn
