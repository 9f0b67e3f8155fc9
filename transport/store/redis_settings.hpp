#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "transport/store/wire_address.hpp"

namespace cairn {

// How a Redis or Valkey is reached: one server, a primary with replicas, or a cluster, which is
// found out when it answers.
struct RedisSettings {
  std::vector<WireAddress> endpoints;  // any of its nodes; they are asked in turn
  std::string user = {};               // empty: the default user
  std::string password = {};           // empty: none
  bool tls = false;
  WireTls tls_files = {.section = "shared.tls"};
  // For values, a node; one more is for what is small. A connection moves 1 to 3 GB/s.
  std::uint32_t connections = 2;
  // A node from which nothing came for so long, while something was asked of it, is given up.
  std::uint32_t timeout_ms = 1'000;
  // Values that wait for a connection, a node; more are refused.
  std::uint32_t max_queued = 256;
};

// redis://HOST[:PORT][,HOST[:PORT]…] or rediss:// with TLS; an address in brackets is IPv6's.
// malformed. A password has no place in it: command lines are seen by everybody on the host.
Result<RedisSettings> redis_settings_from(std::string_view url);

}  // namespace cairn
