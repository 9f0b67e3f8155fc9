#include "transport/store/redis_settings.hpp"

#include <charconv>

namespace cairn {
namespace {

Error malformed(std::string_view url, const std::string& why) {
  return {ErrorCode::malformed, "'" + std::string(url.substr(0, 200)) + "' " + why};
}

}  // namespace

std::string RedisAddress::text() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<RedisSettings> redis_settings_from(std::string_view url) {
  RedisSettings settings;
  std::string_view rest = url;
  if (rest.starts_with("rediss://")) {
    settings.tls = true;
    rest.remove_prefix(9);
  } else if (rest.starts_with("redis://")) {
    rest.remove_prefix(8);
  } else {
    return malformed(url, "is no redis://HOST[:PORT][,HOST[:PORT]...], nor rediss://");
  }
  if (rest.find('@') != std::string_view::npos) {
    return Error{ErrorCode::malformed,
                 "the store's URL has a user or a password: shared.user and shared.password_file "
                 "are for them"};
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  while (true) {
    const auto comma = rest.find(',');
    std::string_view one = rest.substr(0, comma);
    RedisAddress address;
    if (one.starts_with('[')) {
      const auto end = one.find(']');
      if (end == std::string_view::npos) return malformed(url, "has a '[' without its ']'");
      address.host = one.substr(1, end - 1);
      one.remove_prefix(end + 1);
    } else {
      address.host = one.substr(0, one.find(':'));
      one.remove_prefix(address.host.size());
    }
    if (address.host.empty()) return malformed(url, "names no host");
    if (!one.empty()) {
      const char* const end = one.data() + one.size();
      const auto [stop, error] = std::from_chars(one.data() + 1, end, address.port);
      if (one.front() != ':' || error != std::errc() || stop != end || address.port == 0) {
        return malformed(url, "has a port that is not 1 to 65535");
      }
    }
    settings.endpoints.push_back(std::move(address));
    if (comma == std::string_view::npos) return settings;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace cairn
