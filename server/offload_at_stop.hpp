#pragma once

#include "base/log.hpp"
#include "blockmgr/block_manager.hpp"

namespace cairn {

// Copies the blocks of each cache's device and pinned tiers to its disk tier, as far as they find
// room there, so that the next start has them. Waits for it. A drain would bring all of them or
// none: a disk tier in use is full.
void bring_memory_to_disk(BlockManager& manager, Logger& log);

}  // namespace cairn
