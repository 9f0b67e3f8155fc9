#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "transport/store/block_peers.hpp"
#include "transport/store/peer_url.hpp"
#include "transport/store/wire_address.hpp"

namespace cairn {

struct PeerSettings {
  WireTls tls = {.section = "shared.peer"};
  // Only use https:// and Unix sockets of `unix_users`. Otherwise anyone who can write to the store
  // could have the token sent to any server.
  bool needs_tls = false;
  // Owners of the Unix sockets to use. Without `needs_tls`, also this process's own user.
  std::vector<uid_t> unix_users = {};
  std::string token = {};  // empty: none
  std::uint32_t connections = 2;
  std::uint32_t timeout_ms = 1'000;
  std::uint32_t max_queued = 256;  // reads waiting per server
};

// Reads from other servers on a separate thread. Pauses after a server's failure as for a store's
// node (Circuit). Errors: not_found or malformed if a file of `settings.tls` cannot be
// used.
Result<std::unique_ptr<BlockPeers>> make_http_peers(PeerSettings settings);

}  // namespace cairn
