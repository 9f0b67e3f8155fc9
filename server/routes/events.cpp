#include <algorithm>
#include <charconv>

#include "server/codec/ids.hpp"
#include "server/events/event_streams.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// The caches of the events that a caller asks for and may see. Empty: all.
Result<std::vector<std::string>> caches_of(const Service& service, const Call& call,
                                           const std::optional<std::string_view>& asked) {
  if (asked) {
    const std::string name(*asked);
    if (!call.may_touch(name)) {
      return Error{ErrorCode::forbidden, "the token may not touch this cache"};
    }
    auto cache = service.manager.find_cache(name);
    if (!cache) return std::move(cache).error();
    return std::vector<std::string>{name};
  }
  if (call.caller == nullptr) return std::vector<std::string>();
  return call.caller->caches();
}

// Returns a check that the caller may still see these caches: the tokens may change meanwhile.
std::function<bool()> still_may(const Service& service, const Call& call,
                                const std::vector<std::string>& caches) {
  if (call.caller == nullptr) return {};
  return [&gate = *service.gate, caches, caller = call.caller,
          seen = service.gate->generation()]() mutable {
    const std::uint64_t generation = gate.generation();
    if (generation == seen) return caller != nullptr;
    seen = generation;
    if (caller != nullptr) caller = gate.now(*caller);
    if (caller == nullptr || !caller->may(Role::read)) return false;
    if (caches.empty()) return !caller->is_confined();
    return std::ranges::all_of(caches,
                               [&](const std::string& name) { return caller->may_touch(name); });
  };
}

Result<std::optional<std::uint64_t>> last_id_of(std::string_view text) {
  if (text.empty()) return std::optional<std::uint64_t>();
  std::uint64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id == UINT64_MAX) {
    return Error{ErrorCode::malformed, "Last-Event-ID is '" + std::string(text.substr(0, 64)) +
                                           "', which is not the id of an event"};
  }
  return std::optional(id);
}

}  // namespace

void events(Service& service, const Call& call, Reply reply) {
  Query query(call.head.query);
  const auto asked = query.text("cache");
  if (auto read = query.finish(); !read) return reply.error(read.error());
  auto caches = caches_of(service, call, asked);
  if (!caches) return reply.error(caches.error());
  auto after = last_id_of(call.head.last_event_id);
  if (!after) return reply.error(after.error());

  http::Response response;
  response.content_type = "text/event-stream";
  response.headers = "Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n";
  if (!reply.style().head_only) {
    auto may_listen = still_may(service, call, *caches);
    auto body = service.events.open(
        {.caches = std::move(*caches), .after = *after, .may_listen = std::move(may_listen)});
    if (!body) return reply.error(body.error());
    response.download = std::move(*body);
    response.endless = true;
  }
  reply.send(std::move(response));
}

}  // namespace cairn::routes
