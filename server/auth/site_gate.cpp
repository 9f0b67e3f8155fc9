#include "server/auth/site_gate.hpp"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <charconv>
#include <optional>

namespace cairn {
namespace {

constexpr std::size_t kMaxQuotedHost = 128;
// Length of a DNS name (RFC 1035); addresses are shorter.
constexpr std::size_t kMaxHostBytes = 253;
constexpr std::uint16_t kHttpPort = 80;
constexpr std::uint16_t kHttpsPort = 443;

// "host", "host:port" or "[address]:port".
struct Authority {
  std::string_view host;  // as written, without the brackets
  std::optional<std::uint16_t> port;
};

// Lower case; addresses in canonical form.
std::string canonical(std::string_view host) {
  std::string lower(host);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(lower, error);
  if (!error) return address.to_string();
  if (lower.ends_with('.')) lower.pop_back();  // the dot of the root does not change the name
  return lower;
}

std::optional<Authority> authority_from(std::string_view text) {
  std::string_view host = text;
  std::optional<std::uint16_t> port;
  const auto bracket = text.rfind(']');
  const auto colon = text.rfind(':');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    const std::string_view digits = text.substr(colon + 1);
    std::uint16_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    host = text.substr(0, colon);
    port = number;
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty() || host.size() > kMaxHostBytes) return std::nullopt;
  return Authority{.host = host, .port = port};
}

bool is_loopback_name(const std::string& host) {
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(host, error);
  return error ? host == "localhost" : address.is_loopback();
}

// "*.example.org" matches "a.example.org", not "example.org".
bool fits(std::string_view pattern, std::string_view host) {
  if (!pattern.starts_with('*')) return pattern == host;
  const std::string_view end = pattern.substr(1);
  return end.empty() || (host.size() > end.size() && host.ends_with(end));
}

// Only reads, from a browser's point of view.
bool is_safe(http::Method method) {
  return method == http::Method::get || method == http::Method::head ||
         method == http::Method::options;
}

// True for a page of the same origin as the request's host. Ignores the scheme: a proxy that ends
// TLS uses plain HTTP here, and no two servers share a port.
bool is_own_origin(std::string_view origin, const std::optional<std::string_view>& host) {
  if (!host) return false;
  const bool is_https = origin.starts_with("https://");
  if (!is_https && !origin.starts_with("http://")) return false;  // "null" too
  const auto from = authority_from(origin.substr(origin.find("//") + 2));
  const auto to = authority_from(*host);
  if (!from || !to) return false;
  const std::uint16_t usual = is_https ? kHttpsPort : kHttpPort;
  return from->port.value_or(usual) == to->port.value_or(usual) &&
         canonical(from->host) == canonical(to->host);
}

// The characters of a host and port (RFC 3986, 3.2.2).
bool has_host_form(std::string_view host) {
  return std::ranges::all_of(host, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-._~%!$&'()*+,;=:[]").find(c) != std::string_view::npos;
  });
}

std::string quoted(std::string_view text) {
  return "'" + std::string(text.substr(0, kMaxQuotedHost)) + "'";
}

}  // namespace

bool SiteGate::knows(std::string_view host, const http::RequestHead& head) const {
  // Web pages cannot reach a Unix socket, and its clients may use any host name.
  if (head.ends == nullptr || head.ends->local_address.empty()) {
    return host == "localhost" || has_host_form(host);
  }
  const auto authority = authority_from(host);
  if (!authority) return false;
  const std::string& address = head.ends->local_address;
  // Fast path for nearly all clients: parsing an address takes as long as parsing the whole head.
  if (authority->host == address || authority->host == "localhost") return true;
  if (!has_host_form(host)) return false;
  const std::string name = canonical(authority->host);
  return is_loopback_name(name) || name == address ||
         std::ranges::any_of(allowed_hosts_,
                             [&](const std::string& known) { return fits(known, name); });
}

Result<> SiteGate::check(const http::RequestHead& head) const {
  if (head.host && !knows(*head.host, head)) {
    if (!has_host_form(*head.host)) {
      return Error{ErrorCode::malformed,
                   "Host is " + quoted(*head.host) + ", which is not a valid host"};
    }
    return Error{
        ErrorCode::unknown_host,
        "Host is " + quoted(*head.host) +
            ", which is not a name of this server; add it to --allowed-hosts (http.allowed_hosts)"};
  }
  if (is_safe(head.method)) return {};
  // Same-site is not same-origin: other services on this machine are same-site.
  const std::string_view site = head.sec_fetch_site;
  if (!site.empty() && site != "same-origin" && site != "none") {
    return Error{ErrorCode::cross_site,
                 "Sec-Fetch-Site is " + quoted(site) +
                     ": pages of another origin may not change anything here"};
  }
  if (!head.origin.empty() && !is_own_origin(head.origin, head.host)) {
    return Error{ErrorCode::cross_site, "Origin is " + quoted(head.origin) +
                                            ", not this server's: pages of another origin may "
                                            "not change anything here"};
  }
  return {};
}

bool is_allowed_host_form(std::string_view text) {
  if (text == "*") return true;
  if (text.starts_with("*.")) text.remove_prefix(2);
  return !text.empty() && text.size() <= kMaxHostBytes && (canonical(text) == text) &&
         (text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-._") ==
              std::string_view::npos ||
          text.find_first_not_of("abcdef0123456789:.") == std::string_view::npos);
}

}  // namespace cairn
