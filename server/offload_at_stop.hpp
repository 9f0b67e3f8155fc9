#pragma once

#include "base/log.hpp"
#include "blockmgr/block_manager.hpp"

namespace cairn {

// Copies the blocks of each cache's pinned tier to its disk tier, as far as they find room there,
// so that the next start has them. Waits for it.
void bring_pinned_to_disk(BlockManager& manager, Logger& log);

}  // namespace cairn
