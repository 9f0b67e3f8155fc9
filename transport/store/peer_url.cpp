#include "transport/store/peer_url.hpp"

#include <string>
#include <utility>

#include "base/printable.hpp"

namespace cairn {

Result<PeerUrl> read_peer_url(std::string_view url) {
  const auto wrong = [&](std::string_view why) {
    return Error{ErrorCode::malformed,
                 "'" + printable(url.substr(0, 200)) + "' " + std::string(why)};
  };
  constexpr std::string_view kUnix = "unix:";
  constexpr std::string_view kPlain = "http://";
  constexpr std::string_view kTls = "https://";
  if (url.starts_with(kUnix)) {
    PeerUrl result;
    result.address.unix_path = url.substr(kUnix.size());
    if (!is_socket_path(result.address.unix_path)) return wrong("needs an absolute socket path");
    return result;
  }
  const bool tls = url.starts_with(kTls);
  if (!tls && !url.starts_with(kPlain)) {
    return wrong("is not http://HOST[:PORT] or https://HOST[:PORT]");
  }
  std::string_view rest = url.substr(tls ? kTls.size() : kPlain.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  // The rest goes into a Host field, so it may be nothing but a host and a port.
  if (rest.find_first_of("/?#@ \t\r\n") != std::string_view::npos) {
    return wrong("has more than a host and a port");
  }
  auto address = read_address(rest, tls ? 443 : 80);
  if (!address) return wrong(address.error().detail);
  return PeerUrl{.address = std::move(*address), .tls = tls};
}

}  // namespace cairn
