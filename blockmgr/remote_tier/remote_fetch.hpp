#pragma once

#include <memory>
#include <vector>

#include "blockmgr/remote_tier/remote_context.hpp"

namespace cairn {

// Fetches blocks from the store, or from servers that have them, into a tier. They arrive in order,
// which is by KV group, a few at a time; the first that fails ends the fetch. Each block is checked
// before it becomes visible. An invalid value is erased from the store. If a server does not
// deliver a block, up to three servers are tried.
struct RemoteFetch {
  std::shared_ptr<RemoteContext> context;
  std::vector<BlockKey> keys;
  std::vector<BlockSources> sources = {};  // one entry per key; empty: the store has the blocks
  Tier to = Tier::pinned;
  std::shared_ptr<BlockQuota> quota = {};
  // `arrived` is the number of leading keys that are now in the cache.
  UniqueFunction<void(std::size_t arrived)> ended;
  // The server says that it lacks the block, or sent a wrong one.
  UniqueFunction<void(const BlockKey& key, const BlockSource& source)> is_not_there = {};
};
class RemoteFetches {
 public:
  // Starts a transfer of the cache. Error: queue_full.
  static Result<TransferId> start(RemoteFetch fetch);
};

}  // namespace cairn
