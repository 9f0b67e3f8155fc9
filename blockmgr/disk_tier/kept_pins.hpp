#pragma once

#include "base/result.hpp"

namespace cairn {

class CacheCore;

// Writes the cache's pins beside its slot file. The next start adds those whose time is not over to
// the blocks that it finds on disk. No effect without a disk tier, or once the cache is removed.
// Blocks on I/O. REQUIRES: the caller holds core.checkpointing.
Result<> keep_pins(CacheCore& core);
// Adds the pins of an earlier run. A file that cannot be read is logged, and its pins are lost.
// REQUIRES: nobody uses the cache yet.
void take_pins(CacheCore& core);

}  // namespace cairn
