#include "server/codec/reuse_hint_body.hpp"

#include <string>

namespace cairn {
namespace {

Result<ReuseHint> of_word(std::string_view word) {
  if (word == "never") return ReuseHint{.kind = ReuseHint::Kind::never};
  if (word == "soon") return ReuseHint{.kind = ReuseHint::Kind::soon};
  if (word == "later") return ReuseHint{.kind = ReuseHint::Kind::later};
  return Error{ErrorCode::out_of_range,
               "reuse is '" + std::string(word.substr(0, 64)) +
                   "'; it takes one of never, soon, later, or an object with within_ms"};
}

ReuseHint of_object(const json& object, DecodeErrors& errors) {
  Fields fields(object, "reuse", errors);
  const ReuseHint hint{.kind = ReuseHint::Kind::within,
                       .within_ms = fields.number("within_ms", {0, kMaxTtlMs})};
  fields.finish();
  return hint;
}

}  // namespace

Result<ReuseHint> read_reuse(std::string_view text) {
  if (!text.starts_with('{')) return of_word(text);
  const auto object = parse_document(text);
  if (!object) return Error{object.error().code, "reuse: " + object.error().detail};
  DecodeErrors errors;
  const ReuseHint hint = of_object(*object, errors);
  CAIRN_TRY(errors.take());
  return hint;
}

Result<> check_session(std::string_view session) {
  if (!session.empty() && session.size() <= kMaxSessionBytes) return {};
  return Error{ErrorCode::out_of_range, "session has " + std::to_string(session.size()) +
                                            " bytes; it takes 1 to " +
                                            std::to_string(kMaxSessionBytes)};
}

RequestHint read_hint(Fields& fields) {
  RequestHint hint;
  DecodeErrors& errors = fields.errors();
  if (const json* reuse = fields.optional_any("reuse")) {
    if (reuse->is_object()) {
      hint.reuse = of_object(*reuse, errors);
    } else if (!reuse->is_string()) {
      errors.add(ErrorCode::wrong_type, "reuse is neither a string nor an object");
    } else if (auto word = of_word(reuse->get_ref<const std::string&>())) {
      hint.reuse = *word;
    } else {
      errors.add(word.error().code, word.error().detail);
    }
  }
  if (auto session = fields.optional_string("session")) {
    if (auto fits = check_session(*session); !fits) {
      errors.add(fits.error().code, fits.error().detail);
    }
    hint.session = std::move(*session);
  }
  return hint;
}

RequestHint read_hint(Query& query) {
  RequestHint hint;
  if (const auto text = query.text("reuse")) {
    if (auto reuse = read_reuse(*text)) {
      hint.reuse = *reuse;
    } else {
      query.refuse(reuse.error().code, reuse.error().detail);
    }
  }
  if (const auto session = query.text("session")) {
    if (auto fits = check_session(*session); !fits) {
      query.refuse(fits.error().code, fits.error().detail);
    }
    hint.session = *session;
  }
  return hint;
}

}  // namespace cairn
