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
  // Only https:// is asked, and sockets of `unix_users`: whoever writes into the store cannot have
  // the token sent to a server that nobody vouches for.
  bool needs_tls = false;
  // Whose Unix sockets are asked; without `needs_tls` those of this process's own user too.
  std::vector<uid_t> unix_users = {};
  std::string token = {};  // empty: none
  std::uint32_t connections = 2;
  std::uint32_t timeout_ms = 1'000;
  std::uint32_t max_queued = 256;  // reads that wait for a server's connections
};

// A server that fails is left alone as a store's node is. It has a thread of its own. unavailable
// where a file of `settings.tls` cannot be used.
Result<std::unique_ptr<BlockPeers>> make_http_peers(PeerSettings settings);

}  // namespace cairn
