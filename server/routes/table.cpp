#include "server/routes/table.hpp"

#include <array>

namespace cairn::routes {
namespace {

using enum http::Method;

constexpr Route plain(http::Method method, std::string_view path, Handle handle) {
  return {.pattern = {method, path}, .body = BodyKind::none, .handle = handle};
}
constexpr Route structured(http::Method method, std::string_view path, Handle handle) {
  return {.pattern = {method, path}, .body = BodyKind::structured, .handle = handle};
}
constexpr Route streamed(http::Method method, std::string_view path, Begin begin) {
  return {.pattern = {method, path}, .body = BodyKind::streamed, .begin = begin};
}
// Of the contract, but not of this build.
constexpr Route later(http::Method method, std::string_view path) {
  return {.pattern = {method, path}, .body = BodyKind::structured, .handle = not_implemented};
}

constexpr std::array kRoutes = {
    structured(post, "/v1/caches/{cache}/match", match),
    structured(post, "/v1/caches/{cache}/allocate", allocate),
    structured(post, "/v1/caches/{cache}/commit", commit),
    structured(post, "/v1/leases/{lease}/release", release),
    structured(post, "/v1/leases/{lease}/renew", renew),
    plain(delete_, "/v1/leases/{lease}", end_lease),
    streamed(put, "/v1/caches/{cache}/slots/{tier}/{slot}/data", write_slot_body),
    structured(post, "/v1/caches/{cache}/read", read_many),
    streamed(post, "/v1/caches/{cache}/write", write_many_body),

    plain(get, "/v1/caches/{cache}/keys/{key}", get_key),
    streamed(put, "/v1/caches/{cache}/keys/{key}", put_key_body),
    plain(head, "/v1/caches/{cache}/keys/{key}", head_key),
    plain(delete_, "/v1/caches/{cache}/keys/{key}", delete_key),
    plain(get, "/v1/caches/{cache}/keys/{key}/metadata", get_metadata),
    structured(put, "/v1/caches/{cache}/keys/{key}/metadata", put_metadata),

    structured(post, "/v1/caches/{cache}/transfers", start_transfer),
    plain(get, "/v1/transfers/{transfer}", get_transfer),
    plain(delete_, "/v1/transfers/{transfer}", cancel_transfer),
    structured(post, "/v1/caches/{cache}/evict", evict),
    structured(post, "/v1/caches/{cache}/clear", clear),
    plain(get, "/v1/caches/{cache}/blocks", list_blocks),

    plain(get, "/v1/caches", list_caches),
    plain(get, "/v1/caches/{cache}", get_cache),
    structured(put, "/v1/caches/{cache}", put_cache),
    plain(delete_, "/v1/caches/{cache}", delete_cache),

    plain(get, "/healthz", healthz),
    plain(get, "/readyz", readyz),
    plain(get, "/v1/system", system),
    plain(get, "/metrics", metrics),
    plain(get, "/openapi.json", openapi),
    plain(get, "/", status_page),

    later(get, "/v1/caches/{cache}/tiers/{tier}/export"),
    later(post, "/v1/caches/{cache}/snapshots"),
    later(get, "/v1/caches/{cache}/snapshots"),
    later(delete_, "/v1/caches/{cache}/snapshots/{name}"),
    later(post, "/v1/caches/{cache}/snapshots/{name}/restore"),
    later(get, "/v1/events"),
    later(post, "/v1/groups"),
    later(get, "/v1/groups"),
    later(get, "/v1/groups/{name}"),
    later(delete_, "/v1/groups/{name}"),
    later(post, "/v1/groups/{name}/send"),
    later(post, "/v1/groups/{name}/recv"),
    later(post, "/v1/groups/{name}/broadcast"),
    later(post, "/v1/groups/{name}/all_gather"),
    later(post, "/v1/groups/{name}/agree"),
};

}  // namespace

std::span<const Route> table() { return kRoutes; }

}  // namespace cairn::routes
