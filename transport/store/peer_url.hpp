#pragma once

#include <string_view>

#include "base/result.hpp"
#include "transport/store/wire_address.hpp"

namespace cairn {

// http://HOST[:PORT], https://HOST[:PORT] or unix:/PATH.
struct PeerUrl {
  WireAddress address;
  bool tls = false;
};
// Error: malformed.
Result<PeerUrl> read_peer_url(std::string_view url);

}  // namespace cairn
