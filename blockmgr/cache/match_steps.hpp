#pragma once

#include <cstddef>
#include <span>

#include "blockmgr/core/cache_core.hpp"

// What both kinds of matches do, step by step.
namespace cairn {

// Keys looked up under one hold of the lock: some 60 ns each if they are pinned.
inline constexpr std::size_t kStepKeys = 96;

// Marks blocks as used, as the release of a lease does: the end of the prefix stays its least
// recently used part. Nothing pins the blocks, so some may have been evicted.
void touch_from_end(CacheLock& locked, std::span<const BlockHandle> blocks,
                    BlockStore::UseHint use_hint);

}  // namespace cairn
