// What somebody expects of blocks that he does not use now.
#include "server/codec/dom_blocks.hpp"
#include "server/codec/reuse_hint.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

struct HintBody {
  std::optional<std::vector<BlockKey>> keys;  // nothing: the session's
  RequestHint hint;
};

Result<HintBody> read_hints(const json& document, std::size_t max_keys) {
  DecodeErrors errors;
  Fields fields(document, "", errors);
  HintBody body;
  const bool has_keys = fields.has("keys");
  if (has_keys) body.keys = read_keys(fields, "keys", max_keys);
  body.hint = read_hint(fields);
  fields.finish();
  CAIRN_TRY(errors.take());
  if (!body.hint.reuse) return Error{ErrorCode::missing_field, "reuse is missing"};
  const bool has_session = !body.hint.session.empty();
  if (has_keys && has_session) {
    return Error{ErrorCode::malformed, "keys and session are both given; a hint takes one of them"};
  }
  if (!has_keys && !has_session) {
    return Error{ErrorCode::missing_field, "keys (or session) is missing"};
  }
  return body;
}

}  // namespace

void hints(Service& service, const Call& call, Reply reply) {
  auto cache = cache_of(service, call);
  if (!cache) return reply.error(cache.error());
  if (auto none = no_query(call); !none) return reply.error(none.error());
  auto document = body_document(call, max_values(service));
  if (!document) return reply.error(document.error());
  const auto body = read_hints(*document, service.manager.options().max_blocks_per_request);
  if (!body) return reply.error(body.error());
  HintRequest request{.reuse = body->hint.reuse, .holder = call.holder()};
  std::vector<KeyView> keys;
  if (body->keys) {
    keys.assign(body->keys->begin(), body->keys->end());
    request.keys = keys;
  } else {
    request.session = body->hint.session;
  }
  const auto told = (*cache)->hint(request);
  if (!told) return reply.error(told.error());
  reply.document(200,
                 {{"blocks", told->blocks}, {"shared", told->shared}, {"missing", told->missing}});
}

}  // namespace cairn::routes
