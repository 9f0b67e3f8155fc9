#pragma once

#include "base/result.hpp"

namespace cairn {

class CacheCore;

// Makes the index of the disk tier durable. No effect without a disk tier. Blocks. Takes the
// cache's lock in steps.
Result<> checkpoint(CacheCore& core);

}  // namespace cairn
