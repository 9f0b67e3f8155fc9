#include "transport/store/wire_address.hpp"

#include <algorithm>
#include <charconv>

namespace cairn {
namespace {

// The limit for DNS names.
constexpr std::size_t kMaxHostBytes = 253;
// The limit of sockaddr_un, without the final zero.
constexpr std::size_t kMaxSocketPathBytes = 107;

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

bool is_host(std::string_view text) {
  constexpr std::string_view kOthers = ".-_:%";
  return !text.empty() && text.size() <= kMaxHostBytes && std::ranges::all_of(text, [&](char c) {
    return is_letter_or_digit(c) || kOthers.find(c) != std::string_view::npos;
  });
}

bool is_socket_path(std::string_view text) {
  if (!text.starts_with('/') || text.size() > kMaxSocketPathBytes) return false;
  if (text.ends_with("/..") || text.find("/../") != std::string_view::npos) return false;
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

std::string WireAddress::text() const {
  if (!unix_path.empty()) return "unix:" + unix_path;
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<WireAddress> read_address(std::string_view text, std::uint16_t default_port) {
  WireAddress address{.host = {}, .port = default_port};
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == std::string_view::npos) {
      return Error{ErrorCode::malformed, "has a '[' without its ']'"};
    }
    address.host = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
  } else {
    address.host = text.substr(0, text.find(':'));
    text.remove_prefix(address.host.size());
  }
  if (address.host.empty()) return Error{ErrorCode::malformed, "names no host"};
  if (!is_host(address.host)) {
    return Error{ErrorCode::malformed, "has an invalid character in its host"};
  }
  if (text.empty()) return address;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + 1, end, address.port);
  if (text.front() != ':' || error != std::errc() || stop != end || address.port == 0) {
    return Error{ErrorCode::malformed, "has a port that is not 1 to 65535"};
  }
  return address;
}

}  // namespace cairn
