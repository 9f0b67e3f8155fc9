#include "client/endpoint.hpp"

#include <charconv>
#include <cstdint>

namespace cairn::client {
namespace {

Error malformed(std::string_view url, std::string_view why) {
  std::string shown(url);
  // The text before an @ may be a password.
  if (url.find('@') != std::string_view::npos) shown = "…";
  return {ErrorCode::malformed, "server URL '" + shown + "': " + std::string(why)};
}

bool is_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), port);
  return failure == std::errc() && end == text.data() + text.size() && port > 0;
}

}  // namespace

Result<Endpoint> Endpoint::parse(std::string_view url) {
  constexpr std::string_view unix_scheme = "unix:";
  constexpr std::string_view http_scheme = "http://";
  constexpr std::string_view https_scheme = "https://";
  Endpoint endpoint;
  if (url.starts_with(unix_scheme)) {
    endpoint.unix_path = url.substr(unix_scheme.size());
    if (!endpoint.unix_path.starts_with('/')) return malformed(url, "the path must be absolute");
    return endpoint;
  }
  endpoint.tls = url.starts_with(https_scheme);
  if (!endpoint.tls && !url.starts_with(http_scheme)) {
    return malformed(url, "it must be http://HOST:PORT, https://HOST:PORT or unix:/PATH");
  }
  std::string_view rest = url.substr((endpoint.tls ? https_scheme : http_scheme).size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const bool bracketed = rest.starts_with('[');
  const std::size_t host_end = bracketed ? rest.find(']') : rest.find(':');
  if (bracketed && host_end == std::string_view::npos) return malformed(url, "']' is missing");
  endpoint.host = rest.substr(bracketed ? 1 : 0, bracketed ? host_end - 1 : host_end);
  endpoint.port = endpoint.tls ? "443" : "80";
  const std::size_t colon = bracketed ? host_end + 1 : host_end;
  if (colon < rest.size()) {
    if (rest[colon] != ':' || !is_port(rest.substr(colon + 1))) {
      return malformed(url, "the port must be 1 to 65535, with nothing after it");
    }
    endpoint.port = rest.substr(colon + 1);
  }
  if (endpoint.host.empty()) return malformed(url, "the host is missing");
  if (endpoint.host.find_first_of("/?#@ ") != std::string::npos) {
    return malformed(url, "only a host and a port may follow ://");
  }
  return endpoint;
}

std::string Endpoint::authority() const {
  if (!unix_path.empty()) return "localhost";
  const bool ipv6 = host.find(':') != std::string::npos;
  return (ipv6 ? "[" + host + "]" : host) + ":" + port;
}

}  // namespace cairn::client
