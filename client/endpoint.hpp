#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace cairn::client {

// Where a server listens: the Unix socket `unix_path`, or a TCP address if that is empty.
struct Endpoint {
  std::string host;
  std::string port;
  std::string unix_path;
  bool tls = false;

  // Reads `http://HOST[:PORT]`, `https://HOST[:PORT]` (default port 80 or 443; an IPv6 address in
  // brackets) or `unix:/PATH`. Error: malformed.
  static Result<Endpoint> parse(std::string_view url);

  // The value of a Host field.
  std::string authority() const;
};

}  // namespace cairn::client
