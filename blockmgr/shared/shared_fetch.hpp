#pragma once

#include <memory>
#include <vector>

#include "blockmgr/shared/shared_context.hpp"

namespace cairn {

// Brings blocks from the store, or from servers that have them, into a tier, some at a time, in
// order, up to the first that does not come. Each is checked before anybody can find it. A value
// that is none is erased; of servers that do not give a block the next is asked, three at most.
struct SharedFetch {
  std::shared_ptr<SharedContext> context;
  std::vector<BlockKey> keys;
  std::vector<BlockSources> sources = {};  // of the keys; empty: the store has them
  Tier to = Tier::pinned;
  std::shared_ptr<BlockQuota> quota = {};
  // Of the keys, so many from the first on are here.
  UniqueFunction<void(std::size_t arrived)> ended;
  // A server said so of itself, or gave something else.
  UniqueFunction<void(const BlockKey& key, const BlockSource& source)> is_not_there = {};
};
class SharedFetches {
 public:
  // It is a transfer of the cache. queue_full.
  static Result<TransferId> start(SharedFetch fetch);
};

}  // namespace cairn
