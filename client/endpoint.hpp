#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace cairn::client {

// Where a server listens: a TCP address, or a Unix socket where `unix_path` is not empty.
struct Endpoint {
  std::string host;
  std::string port;
  std::string unix_path;
  bool tls = false;

  // Reads `http://HOST[:PORT]` or `https://HOST[:PORT]` (port 80 or 443 where none is given; an
  // IPv6 address in brackets) or `unix:/PATH`.
  static Result<Endpoint> parse(std::string_view url);

  // As it goes into a Host field.
  std::string authority() const;
};

}  // namespace cairn::client
