#pragma once

#include <memory>
#include <vector>

#include "blockmgr/shared/shared_context.hpp"

namespace cairn {

// Brings blocks from the store into a tier, some at a time, in order, up to the first that does not
// come. Each is checked before anybody can find it; a value that is none is erased.
struct SharedFetch {
  std::shared_ptr<SharedContext> context;
  std::vector<BlockKey> keys;
  Tier to = Tier::pinned;
  std::shared_ptr<BlockQuota> quota = {};
  // Of the keys, so many from the first on are here.
  UniqueFunction<void(std::size_t arrived)> ended;
};
class SharedFetches {
 public:
  // It is a transfer of the cache. queue_full.
  static Result<TransferId> start(SharedFetch fetch);
};

}  // namespace cairn
