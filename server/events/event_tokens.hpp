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

}  // namespace cairn
