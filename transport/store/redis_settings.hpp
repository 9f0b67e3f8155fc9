#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "transport/store/wire_address.hpp"

namespace cairn {

// How to reach Redis or Valkey: one server, a primary with replicas, or a cluster. The store
// detects which.
struct RedisSettings {
  std::vector<WireAddress> endpoints;  // any of its nodes, tried in turn
  std::string user = {};               // empty: the default user
  std::string password = {};           // empty: none
  bool tls = false;
  WireTls tls_files = {.section = "shared.tls"};
  // Connections for values per node; one more carries everything else. A connection moves 1 to 3
  // GB/s.
  std::uint32_t connections = 2;
  // A connection fails if it has pending commands and nothing arrives for this long.
  std::uint32_t timeout_ms = 1'000;
  // Values waiting for a connection, per node. Further ones are refused.
  std::uint32_t max_queued = 256;
};

// Parses redis://HOST[:PORT][,HOST[:PORT]…], or rediss:// for TLS; IPv6 addresses are in brackets.
// Error: malformed. The URL must not contain a password, because everyone on the host can see
// command lines.
Result<RedisSettings> redis_settings_from(std::string_view url);

}  // namespace cairn
