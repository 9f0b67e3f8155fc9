#include "server/routes/subject.hpp"

#include <optional>

#include "server/codec/ids.hpp"

namespace cairn::routes {
namespace {

// The cache of what the path names; nothing where there is no such thing.
std::optional<std::string> cache_named(const Service& service, std::string_view pattern,
                                       const PathParameters& path) {
  if (pattern.starts_with("/v1/caches/{cache}")) return std::string(path[0]);
  if (pattern.starts_with("/v1/leases/{lease}")) {
    const auto lease = lease_from(path[0]);
    if (!lease) return std::nullopt;
    auto cache = service.manager.cache_of(*lease);
    if (!cache) return std::nullopt;
    return (*cache)->config().name;
  }
  const auto transfer = transfer_from(path[0]);
  if (!transfer) return std::nullopt;
  auto cache = service.manager.cache_name_of(*transfer);
  if (!cache) return std::nullopt;
  return std::move(*cache);
}

}  // namespace

Result<> check_subject(const Service& service, const Caller& caller, const Route& route,
                       const PathParameters& path) {
  if (!caller.is_confined() || route.subject == Subject::filtered) return {};
  const std::string_view pattern = route.pattern.path;
  const bool names_one = pattern.starts_with("/v1/caches/{cache}") ||
                         pattern.starts_with("/v1/leases/{lease}") ||
                         pattern.starts_with("/v1/transfers/{transfer}");
  if (!names_one) {
    return Error{ErrorCode::forbidden, "this is about every cache; the token '" + caller.name() +
                                           "' may touch only some"};
  }
  const auto cache = cache_named(service, pattern, path);
  if (!cache || caller.may_touch(*cache)) return {};
  return Error{ErrorCode::forbidden, "the token '" + caller.name() + "' may not touch this cache"};
}

}  // namespace cairn::routes
