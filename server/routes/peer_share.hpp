#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "blockmgr/index/types.hpp"
#include "server/routes/service.hpp"

namespace cairn::routes {

// Blocks that another server should fetch from the shared store now.
struct PeerShare {
  std::string server;  // its URL
  std::string cache;   // the cache's name there
  std::vector<BlockKey> keys;
  std::uint32_t within_ms = 0;
};
// Asks the server for a prefetch, and again as long as it does not know all of the blocks: they
// reach the store, or are announced there, a moment after this server decides so. Reports how many
// of the blocks the server has or fetches. `done` runs once, on a thread that it must not delay.
// Errors: those of BlockPeers; unknown_cache; malformed if the response is none of a server;
// forbidden if it refuses the prefetch; queue_full.
// REQUIRES: service.shared has peers.
void share_with_peer(Service& service, PeerShare share,
                     UniqueFunction<void(Result<std::uint64_t>)> done);

}  // namespace cairn::routes
