// Hints about blocks that the client does not use now.
#include "server/codec/dom_blocks.hpp"
#include "server/codec/reuse_hint_body.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

struct HintBody {
  std::optional<std::vector<BlockKey>> keys;  // nullopt: those of the session
  RequestHint hint;
};

HintBody read_hints(Fields& fields, std::size_t max_keys) {
  HintBody body;
  const bool has_keys = fields.has("keys");
  if (has_keys) body.keys = read_keys(fields, "keys", max_keys);
  body.hint = read_hint(fields);
  DecodeErrors& errors = fields.errors();
  if (!body.hint.reuse) errors.add(ErrorCode::missing_field, "reuse is missing");
  const bool has_session = !body.hint.session.empty();
  if (has_keys && has_session) {
    errors.add(ErrorCode::malformed, "keys and session are both given; a hint takes one of them");
  }
  if (!has_keys && !has_session) {
    errors.add(ErrorCode::missing_field, "keys (or session) is missing");
  }
  return body;
}

}  // namespace

void hints(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  const auto body = read_body(call, max_values(service), [&service](Fields& fields) {
    return read_hints(fields, service.manager.options().max_blocks_per_request);
  });
  if (!body) return reply.error(body.error());
  HintRequest request{.reuse = body->hint.reuse, .holder = call.holder()};
  std::vector<BlockKey> blocks;
  std::vector<KeyView> keys;
  if (body->keys) {
    blocks = blocks_of_keys(*cache, *body->keys, std::nullopt);
    keys.assign(blocks.begin(), blocks.end());
    request.keys = keys;
  } else {
    request.session = body->hint.session;
  }
  const auto hinted = cache->hint(request);
  if (!hinted) return reply.error(hinted.error());
  reply.document(
      200, {{"blocks", hinted->blocks}, {"shared", hinted->shared}, {"missing", hinted->missing}});
}

}  // namespace cairn::routes
