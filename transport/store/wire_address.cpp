#include "transport/store/wire_address.hpp"

#include <charconv>

namespace cairn {

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
  if (text.empty()) return address;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + 1, end, address.port);
  if (text.front() != ':' || error != std::errc() || stop != end || address.port == 0) {
    return Error{ErrorCode::malformed, "has a port that is not 1 to 65535"};
  }
  return address;
}

}  // namespace cairn
