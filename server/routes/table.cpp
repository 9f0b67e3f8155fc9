#include "server/routes/table.hpp"

#include <array>

namespace cairn::routes {
namespace {

using enum http::Method;
using enum Role;

constexpr Route plain(Role role, http::Method method, std::string_view path, Handler handle) {
  return {.pattern = {method, path}, .role = role, .body = BodyKind::none, .handle = handle};
}
constexpr Route structured(Role role, http::Method method, std::string_view path, Handler handle) {
  return {.pattern = {method, path}, .role = role, .body = BodyKind::structured, .handle = handle};
}
constexpr Route packed(Route route) {
  route.body = BodyKind::packed;
  return route;
}
constexpr Route streamed(Role role, http::Method method, std::string_view path, Begin begin) {
  return {.pattern = {method, path}, .role = role, .body = BodyKind::streamed, .begin = begin};
}
constexpr Route with_query(Route route) {
  route.takes_query = true;
  return route;
}
constexpr Route with_files(Route route) {
  route.takes_files = true;
  return route;
}
// The handler shows each caller only what it may touch.
constexpr Route filtered(Route route) {
  route.subject = Subject::filtered;
  return route;
}

constexpr std::array kRoutes = {
    with_query(packed(structured(read, post, "/v1/caches/{cache}/match", match))),
    with_query(packed(structured(read, post, "/v1/caches/{cache}/contains", contains))),
    structured(write, post, "/v1/caches/{cache}/allocate", allocate),
    structured(write, post, "/v1/caches/{cache}/commit", commit),
    structured(read, post, "/v1/leases/{lease}/release", release),
    structured(read, post, "/v1/leases/{lease}/renew", renew),
    plain(read, delete_, "/v1/leases/{lease}", end_lease),
    with_query(
        streamed(write, put, "/v1/caches/{cache}/slots/{tier}/{slot}/data", write_slot_body)),
    with_query(structured(peer, post, "/v1/caches/{cache}/read", read_many)),
    with_query(streamed(write, post, "/v1/caches/{cache}/write", write_many_body)),

    with_query(plain(peer, get, "/v1/caches/{cache}/keys/{key}", get_key)),
    with_query(streamed(write, put, "/v1/caches/{cache}/keys/{key}", put_key_body)),
    with_query(plain(peer, head, "/v1/caches/{cache}/keys/{key}", get_key)),
    with_query(plain(write, delete_, "/v1/caches/{cache}/keys/{key}", delete_key)),
    with_query(plain(read, get, "/v1/caches/{cache}/keys/{key}/metadata", get_metadata)),
    with_query(structured(write, put, "/v1/caches/{cache}/keys/{key}/metadata", put_metadata)),

    with_query(plain(read, get, "/v1/caches/{cache}/leases", list_leases)),
    structured(write, post, "/v1/caches/{cache}/transfers", start_transfer),
    with_query(filtered(plain(read, get, "/v1/transfers", list_transfers))),
    with_query(plain(read, get, "/v1/transfers/{transfer}", get_transfer)),
    plain(write, delete_, "/v1/transfers/{transfer}", cancel_transfer),
    structured(write, post, "/v1/caches/{cache}/evict", evict),
    structured(admin, post, "/v1/caches/{cache}/clear", clear),
    with_query(plain(read, get, "/v1/caches/{cache}/blocks", list_blocks)),
    with_query(plain(read, get, "/v1/caches/{cache}/pending", list_pending)),
    with_query(plain(read, get, "/v1/caches/{cache}/miss_ratio", miss_ratio)),
    structured(write, post, "/v1/caches/{cache}/drain", drain),
    structured(write, post, "/v1/caches/{cache}/hints", hints),
    structured(peer, post, "/v1/caches/{cache}/actions", actions),
    with_query(plain(read, get, "/v1/caches/{cache}/pins", list_pins)),
    filtered(plain(write, delete_, "/v1/pins/{pin}", delete_pin)),
    with_query(plain(read, get, "/v1/caches/{cache}/sessions", list_sessions)),

    filtered(plain(read, get, "/v1/caches", list_caches)),
    plain(read, get, "/v1/caches/{cache}", get_cache),
    with_files(structured(admin, put, "/v1/caches/{cache}", put_cache)),
    structured(admin, patch, "/v1/caches/{cache}", patch_cache),
    with_query(plain(admin, delete_, "/v1/caches/{cache}", delete_cache)),

    structured(admin, post, "/v1/caches/{cache}/snapshots", make_snapshot),
    plain(read, get, "/v1/caches/{cache}/snapshots", list_snapshots),
    plain(admin, delete_, "/v1/caches/{cache}/snapshots/{name}", delete_snapshot),
    structured(admin, post, "/v1/caches/{cache}/snapshots/{name}/restore", restore_snapshot),
    structured(admin, post, "/v1/groups", join_group),
    plain(read, get, "/v1/groups", list_groups),
    plain(read, get, "/v1/groups/{name}", get_group),
    plain(admin, delete_, "/v1/groups/{name}", leave_group),
    structured(write, post, "/v1/groups/{name}/send", group_send),
    structured(write, post, "/v1/groups/{name}/recv", group_recv),
    structured(write, post, "/v1/groups/{name}/broadcast", group_broadcast),
    structured(write, post, "/v1/groups/{name}/all_gather", group_all_gather),
    structured(write, post, "/v1/groups/{name}/agree", group_agree),
    structured(write, post, "/v1/groups/{name}/all_reduce", group_all_reduce),

    with_query(structured(write, post, "/v1/caches/{cache}/load", load_to_engine)),
    with_query(structured(write, post, "/v1/caches/{cache}/store", store_from_engine)),
    filtered(with_files(structured(write, put, "/v1/agents/{name}", put_engine_memory))),
    filtered(plain(read, get, "/v1/agents", list_engine_memories)),
    filtered(plain(read, get, "/v1/agents/{name}", get_engine_memory)),
    filtered(plain(write, delete_, "/v1/agents/{name}", delete_engine_memory)),

    plain(read, get, "/v1/devices", list_devices),
    plain(admin, post, "/v1/devices/{id}/empty_cache", empty_device_cache),
    plain(admin, post, "/v1/devices/{id}/reset_peaks", reset_device_peaks),

    filtered(plain(none, get, "/healthz", healthz)),
    filtered(plain(none, get, "/readyz", readyz)),
    plain(read, get, "/v1/system", system),
    plain(Role::metrics, get, "/metrics", routes::metrics),
    with_query(plain(read, get, "/v1/history", history)),
    filtered(plain(read, get, "/openapi.json", openapi)),
    filtered(plain(read, get, "/", status_page)),
    filtered(plain(read, get, "/runbooks/{name}", runbook)),

    plain(admin, post, "/v1/caches/{cache}/tiers/{tier}/export", export_tier),
    with_query(filtered(plain(read, get, "/v1/events", events))),
};

}  // namespace

std::span<const Route> table() { return kRoutes; }

}  // namespace cairn::routes
