#include "transport/store/redis_settings.hpp"

namespace cairn {
namespace {

constexpr std::uint16_t kRedisPort = 6'379;

Error malformed(std::string_view url, const std::string& why) {
  return {ErrorCode::malformed, "'" + std::string(url.substr(0, 200)) + "' " + why};
}

}  // namespace

Result<RedisSettings> redis_settings_from(std::string_view url) {
  RedisSettings settings;
  std::string_view rest = url;
  if (rest.starts_with("rediss://")) {
    settings.tls = true;
    rest.remove_prefix(9);
  } else if (rest.starts_with("redis://")) {
    rest.remove_prefix(8);
  } else {
    return malformed(url, "is not redis://HOST[:PORT][,HOST[:PORT]...] or rediss://");
  }
  if (rest.find('@') != std::string_view::npos) {
    return Error{ErrorCode::malformed,
                 "the store's URL contains a user or a password; set shared.user and "
                 "shared.password_file instead"};
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  while (true) {
    const auto comma = rest.find(',');
    auto address = read_address(rest.substr(0, comma), kRedisPort);
    if (!address) return malformed(url, address.error().detail);
    settings.endpoints.push_back(std::move(*address));
    if (comma == std::string_view::npos) return settings;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace cairn
