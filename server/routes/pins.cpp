// Pins: who keeps which blocks, until when. Sessions: which blocks a conversation used.
#include "server/codec/ids.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

ordered_json pin_body(const PinInfo& info) {
  ordered_json body = {{"pin", pin_text(info.pin)},
                       {"token", info.holder ? ordered_json(*info.holder) : ordered_json(nullptr)}};
  if (!info.session.empty()) body["session"] = info.session;
  body["blocks"] = info.blocks;
  body["bytes"] = info.bytes;
  body["expires_at_ms"] = info.expires_at_unix_ms;
  return body;
}

ordered_json session_body(const SessionInfo& info) {
  ordered_json blocks = ordered_json::object();
  for (const Tier tier : kTiers) {
    const std::uint32_t count = info.blocks[index_of(tier)];
    if (count > 0) blocks[std::string(to_string(tier))] = count;
  }
  return {{"session", info.session},
          {"token", info.holder ? ordered_json(*info.holder) : ordered_json(nullptr)},
          {"blocks", std::move(blocks)},
          {"missing", info.missing},
          {"bytes", info.bytes},
          {"last_use_ms", info.last_use_unix_ms}};
}

}  // namespace

// Anyone who knows a pin may end it, so only an admin sees the pins of others.
void list_pins(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  Query query(call.head.query);
  PinListRequest request;
  request.limit = query.limit();
  request.cursor = query.number("cursor", {}).value_or(0);
  if (auto read = query.finish(); !read) return reply.error(read.error());
  if (!call.is_admin()) request.holder = *call.holder();
  answer_on(service.readers, std::move(reply),
            [cache = std::move(cache), request = std::move(request)](Reply& answer) {
              const PinList list = cache->pins(request);
              ordered_json pins = ordered_json::array();
              for (const PinInfo& info : list.pins) pins.push_back(pin_body(info));
              answer.document(
                  200, {{"pins", std::move(pins)}, {"next_cursor", cursor_body(list.next_cursor)}});
            });
}

// The path names no cache, so each one is asked: there are few, and a look-up takes a microsecond.
void delete_pin(Service& service, const Call& call, Reply reply) {
  const std::string name(call.path[0].substr(0, 64));
  const auto pin = pin_from(call.path[0]);
  std::optional<LeaseHolder> holder;
  if (!call.is_admin()) holder = call.holder();
  for (const auto& cache : pin ? service.manager.caches() : std::vector<std::shared_ptr<Cache>>()) {
    if (!call.may_touch(cache->config().name)) continue;
    const auto blocks = cache->end_pin(*pin, holder);
    if (blocks) return reply.document(200, {{"pin", pin_text(*pin)}, {"blocks", *blocks}});
  }
  reply.error({ErrorCode::unknown_pin, "there is no pin '" + name + "', or it has ended"});
}

// A token that knows the name of another's conversation cannot act on it, but names may be private.
void list_sessions(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  Query query(call.head.query);
  SessionListRequest request;
  request.limit = query.limit();
  if (auto read = query.finish(); !read) return reply.error(read.error());
  if (!call.is_admin()) request.holder = *call.holder();
  answer_on(service.readers, std::move(reply),
            [cache = std::move(cache), request = std::move(request)](Reply& answer) {
              const SessionList list = cache->sessions(request);
              ordered_json sessions = ordered_json::array();
              for (const SessionInfo& info : list.sessions) sessions.push_back(session_body(info));
              answer.document(200, {{"sessions", std::move(sessions)}, {"known", list.known}});
            });
}

}  // namespace cairn::routes
