#pragma once

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/reuse/sessions.hpp"

namespace cairn {

// Applies an expected next use to all blocks of a session. Yields the lock between steps.
HintResult hint_session(CacheLock& locked, const Sessions::Name& name, NextUse next_use);

}  // namespace cairn
