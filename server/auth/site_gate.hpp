#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "server/http/message.hpp"

namespace cairn {

// Rejects requests that other web pages make a browser send to this server. A page whose name
// resolves to this server's address (DNS rebinding) sends its own name in Host; a cross-origin
// request shows in Origin and Sec-Fetch-Site. Immutable, so thread-safe.
class SiteGate {
 public:
  // `allowed_hosts`: names of this server, besides loopback names and its own addresses, in lower
  // case and without a port. "*.example.org" allows every name below it, "*" any.
  explicit SiteGate(std::vector<std::string> allowed_hosts)
      : allowed_hosts_(std::move(allowed_hosts)) {}

  // Errors: malformed; unknown_host; cross_site if a page of another origin would change something.
  Result<> check(const http::RequestHead& head) const;

 private:
  bool knows(std::string_view host, const http::RequestHead& head) const;

  const std::vector<std::string> allowed_hosts_;
};

// True for a name, an address, "*.name" or "*".
bool is_allowed_host_form(std::string_view text);

}  // namespace cairn
