#pragma once

#include "blockmgr/cache/cache.hpp"

namespace cairn {

class CacheCore;

// Changes the cache's settings and sizes, all or none. `remember` makes them durable. Blocks on
// memory and files, and for some seconds on block moves: call it on a thread that serves no other
// requests. Errors: see Cache::change().
Result<> change_cache(CacheCore& core, const CacheChange& change, const Cache::Remember& remember);
// Frees memory and file space of tiers that shrank, once no lease holds slots in it.
void trim_if_due(CacheCore& core);

}  // namespace cairn
