#pragma once

#include "base/log.hpp"
#include "blockmgr/block_manager.hpp"

namespace cairn {

// Copies the blocks of each cache's device and pinned tiers to its disk tier, as far as they fit,
// for the next start. Blocks until done. A drain would not do: it moves all blocks or none, and a
// disk tier in use is full.
void bring_memory_to_disk(BlockManager& manager, Logger& log);

}  // namespace cairn
