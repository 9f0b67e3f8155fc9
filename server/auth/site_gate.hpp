#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "server/http/message.hpp"

namespace cairn {

// Keeps out what the web pages of others have a browser send to this server. A page whose name was
// made to resolve to this server's address tells its own name in Host; one that asks across origins
// is told of in Origin and Sec-Fetch-Site. Immutable and so thread-safe.
class SiteGate {
 public:
  // Names of this server besides the loopback ones and the addresses it is reached at, in lower
  // case and without a port; "*.example.org" is every name below that, "*" any.
  explicit SiteGate(std::vector<std::string> allowed_hosts)
      : allowed_hosts_(std::move(allowed_hosts)) {}

  // malformed or unknown_host; cross_site, where a page of another origin would have something
  // changed.
  Result<> check(const http::RequestHead& head) const;

 private:
  bool knows(std::string_view host, const http::RequestHead& head) const;

  const std::vector<std::string> allowed_hosts_;
};

// What an allowed host is written as: a name, an address, "*.name" or "*".
bool is_allowed_host_form(std::string_view text);

}  // namespace cairn
