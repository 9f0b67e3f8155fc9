#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace cairn {

// A host and its port, or a Unix socket where `unix_path` is not empty.
struct WireAddress {
  std::string host;
  std::uint16_t port = 0;
  std::string unix_path = {};

  std::string text() const;
  friend bool operator==(const WireAddress&, const WireAddress&) = default;
};
// What may stand for a host, as a name or an address, wherever it comes from: letters, digits and
// ".-_:%". Nothing else goes into a label, a log line or a request.
bool is_host(std::string_view text);
// An absolute path that fits a socket's address, of printable characters and without "..".
bool is_socket_path(std::string_view text);
// HOST[:PORT]; a host in brackets is an address of IPv6. malformed.
Result<WireAddress> read_address(std::string_view text, std::uint16_t default_port);

// Which authorities are believed, and who this side is.
struct WireTls {
  std::filesystem::path ca = {};           // PEM; empty: the system's
  std::filesystem::path certificate = {};  // PEM, of this side; empty: none
  std::filesystem::path key = {};
  std::string section = {};  // of the settings they come from, for who reads an error
};
}  // namespace cairn
