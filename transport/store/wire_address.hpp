#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace cairn {

// A host and port, or a Unix socket if `unix_path` is set.
struct WireAddress {
  std::string host;
  std::uint16_t port = 0;
  std::string unix_path = {};

  std::string text() const;
  friend bool operator==(const WireAddress&, const WireAddress&) = default;
};
// Returns whether the text may be a host name or address: letters, digits and ".-_:%". Other text
// must not get into labels, log lines or requests.
bool is_host(std::string_view text);
// Returns whether the text is an absolute path of printable characters, without "..", that fits a
// socket's address.
bool is_socket_path(std::string_view text);
// Parses HOST[:PORT]; IPv6 addresses are in brackets. Error: malformed.
Result<WireAddress> read_address(std::string_view text, std::uint16_t default_port);

// The trusted authorities, and this side's certificate.
struct WireTls {
  std::filesystem::path ca = {};           // PEM; empty: the system's
  std::filesystem::path certificate = {};  // PEM, this side's; empty: none
  std::filesystem::path key = {};
  std::string section = {};  // the section of the settings, for error texts
};
}  // namespace cairn
