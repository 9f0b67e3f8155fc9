#pragma once

#include "blockmgr/cache/cache.hpp"

namespace cairn {

class CacheCore;

// Takes the cache's settings and sizes, all or none; `remember` makes them durable. Waits for
// memory, for files, and a while for blocks to move: for one thread that serves nobody else.
Result<> change_cache(CacheCore& core, const CacheChange& change, const Cache::Remember& remember);
// Gives back what a tier that shrank no longer uses, where leases held it until now.
void trim_if_due(CacheCore& core);

}  // namespace cairn
