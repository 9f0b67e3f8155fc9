#include "server/codec/action_body.hpp"

#include <algorithm>
#include <array>

#include "server/codec/dom_blocks.hpp"
#include "server/codec/requests.hpp"
#include "server/codec/reuse_hint_body.hpp"
#include "server/codec/token_keys.hpp"

namespace cairn {
namespace {

constexpr std::array<std::string_view, 6> kTypeWords = {"pin",      "unpin",  "retain",
                                                        "prefetch", "demote", "share"};
// URLs of servers.
constexpr std::size_t kMaxPeerBytes = 2'048;
constexpr NumberBounds kPinTimes{1, kMaxPinMs};
constexpr std::array<std::string_view, 1> kControlTypes = {"ephemeral"};
constexpr std::array<std::string_view, 2> kControlTimes = {"5m", "1h"};
constexpr std::array<std::uint32_t, 2> kControlTimesMs = {300'000, 3'600'000};

std::optional<std::string> read_text(Fields& fields, std::string_view name, std::size_t most) {
  auto text = fields.optional_string(name);
  if (!text || (!text->empty() && text->size() <= most)) return text;
  fields.errors().add(ErrorCode::out_of_range, fields.path_of(name) + " has " +
                                                   std::to_string(text->size()) +
                                                   " bytes; it takes 1 to " + std::to_string(most));
  return std::nullopt;
}

void read_tokens(Fields& fields, const ActionLimits& limits, Action& out) {
  const json* const list = fields.list("tokens");
  const auto salt = fields.optional_string("salt");
  if (list == nullptr) return;
  const std::string path = fields.path_of("tokens");
  const std::size_t most = MatchLimits::of(limits.max_keys, limits.tokens_per_key).max_tokens;
  if (list->size() > most) {
    return fields.errors().add(ErrorCode::out_of_range,
                               path + " has " + std::to_string(list->size()) +
                                   " elements; it takes at most " + std::to_string(most));
  }
  std::vector<std::uint32_t> tokens;
  tokens.reserve(list->size());
  for (const json& token : *list) {
    tokens.push_back(static_cast<std::uint32_t>(read_number(
        token, path + "[" + std::to_string(tokens.size()) + "]", kAnyU32, fields.errors())));
    if (fields.errors().any()) return;
  }
  KeyBuffer keys;
  std::optional<std::string_view> salted;
  if (salt) salted = *salt;
  add_token_keys({.tokens = tokens, .page_size = limits.tokens_per_key, .salt = salted}, keys);
  for (const KeyView& key : keys.views()) out.keys.emplace_back(key);
}

void read_target(Fields& fields, const ActionLimits& limits, Action& out) {
  const json* const object = fields.object("target");
  if (object == nullptr) return;
  DecodeErrors& errors = fields.errors();
  Fields target(*object, fields.path_of("target"), errors);
  const int given = static_cast<int>(target.has("keys")) + static_cast<int>(target.has("tokens")) +
                    static_cast<int>(target.has("session"));
  if (given != 1) {
    return errors.add(given == 0 ? ErrorCode::missing_field : ErrorCode::malformed,
                      fields.path_of("target") + " takes one of keys, tokens, session");
  }
  if (target.has("keys")) out.keys = read_keys(target, "keys", limits.max_keys);
  if (target.has("tokens")) read_tokens(target, limits, out);
  if (target.has("session")) {
    out.session = target.optional_string("session");
    if (out.session) {
      if (auto fits = check_session(*out.session); !fits) {
        errors.add(fits.error().code, target.path_of("session") + ": " + fits.error().detail);
      }
    }
  }
  target.finish();
}

// The fields that both forms share.
void read_payload(Fields& fields, const ActionLimits& limits, Action& out) {
  read_target(fields, limits, out);
  out.ttl_ms = static_cast<std::uint32_t>(
      fields.optional_number("ttl_ms", kPinTimes).value_or(kStandardPinMs));
  if (const auto priority = fields.optional_number("priority", kPriorities)) {
    out.priority = static_cast<std::uint8_t>(*priority);
  }
  out.to = read_optional_tier(fields, "to");
  out.peer = read_text(fields, "peer", kMaxPeerBytes);
  out.max_blocks = fields.optional_number("max_blocks", {1, UINT64_MAX}).value_or(UINT64_MAX);
  if (const auto deadline = fields.optional_number("deadline_ms", kPinTimes)) {
    out.deadline_ms = static_cast<std::uint32_t>(*deadline);
  }
  out.refresh_on_hit = fields.optional_bool("refresh_on_hit").value_or(false);
  out.wait_ms = read_wait_ms(fields);
}

Action read_action(Fields& fields, const ActionLimits& limits) {
  Action action;
  action.id = read_text(fields, "id", kMaxActionIdBytes);
  action.type = static_cast<ActionType>(fields.word("type", kTypeWords));
  read_payload(fields, limits, action);
  return action;
}

// Senders write versions as numbers or as text.
bool is_version_one(const json* version) {
  if (version == nullptr) return false;
  if (version->is_number()) return *version == 1;
  if (!version->is_string()) return false;
  const auto& text = version->get_ref<const std::string&>();
  return text == "1" || text == "1.0";
}

void check_version(Fields& fields, std::string_view name, const json* version) {
  if (version == nullptr) {
    return fields.errors().add(ErrorCode::missing_field, fields.path_of(name) + " is missing");
  }
  if (!version->is_number() && !version->is_string()) {
    fields.errors().add(ErrorCode::wrong_type,
                        fields.path_of(name) + " is neither a number nor a string");
  }
}

// REQUIRES: the protocol's version is known, or `protocol_known` is false.
Action read_enveloped(Fields& fields, const ActionLimits& limits, bool protocol_known) {
  Action action;
  action.id = read_text(fields, "action_id", kMaxActionIdBytes);
  if (!action.id && !fields.errors().any()) {
    fields.errors().add(ErrorCode::missing_field, fields.path_of("action_id") + " is missing");
  }
  const std::string type = fields.string("action_type");
  const json* const version = fields.optional_any("action_version");
  check_version(fields, "action_version", version);
  const json* const payload = fields.object("payload");
  const auto word = std::ranges::find(kTypeWords, type);
  if (word == kTypeWords.end()) {
    action.refusal = "unknown_type";
    return action;
  }
  action.type = static_cast<ActionType>(word - kTypeWords.begin());
  if (!protocol_known || !is_version_one(version)) {
    action.refusal = "unknown_version";
    return action;
  }
  if (payload == nullptr) return action;
  Fields members(*payload, fields.path_of("payload"), fields.errors());
  read_payload(members, limits, action);
  members.finish();
  return action;
}

}  // namespace

ActionsBody read_actions(Fields& fields, const ActionLimits& limits) {
  ActionsBody body;
  DecodeErrors& errors = fields.errors();
  const bool enveloped = fields.has("protocol_version") || fields.has("message_id");
  bool protocol_known = true;
  if (enveloped) {
    const json* const version = fields.optional_any("protocol_version");
    check_version(fields, "protocol_version", version);
    protocol_known = is_version_one(version);
    body.message_id = fields.string("message_id");
  }
  const json* const list = fields.list("actions");
  if (list == nullptr) return body;
  if (list->empty() || list->size() > kMaxActions) {
    errors.add(ErrorCode::out_of_range, "actions has " + std::to_string(list->size()) +
                                            " elements; it takes 1 to " +
                                            std::to_string(kMaxActions));
    return body;
  }
  for (const json& item : *list) {
    const std::string path = "actions[" + std::to_string(body.actions.size()) + "]";
    if (!item.is_object()) {
      errors.add(ErrorCode::wrong_type, path + " is no object");
      break;
    }
    Fields members(item, path, errors);
    body.actions.push_back(enveloped ? read_enveloped(members, limits, protocol_known)
                                     : read_action(members, limits));
    members.finish();
    if (errors.any()) break;
  }
  return body;
}

namespace {

std::uint32_t read_control(Fields& control) {
  control.word("type", kControlTypes);
  return kControlTimesMs[control.optional_word("ttl", kControlTimes).value_or(0)];
}

}  // namespace

std::optional<std::uint32_t> read_cache_control(Fields& fields) {
  const json* const object = fields.optional_object("cache_control");
  if (object == nullptr) return std::nullopt;
  Fields control(*object, fields.path_of("cache_control"), fields.errors());
  const std::uint32_t ttl_ms = read_control(control);
  control.finish();
  return ttl_ms;
}

Result<std::uint32_t> read_cache_control(std::string_view object_text) {
  const auto object = parse_document(object_text);
  if (!object) return Error{object.error().code, "cache_control: " + object.error().detail};
  if (!object->is_object()) {
    return Error{ErrorCode::wrong_type, "cache_control is no object"};
  }
  DecodeErrors errors;
  Fields control(*object, "cache_control", errors);
  const std::uint32_t ttl_ms = read_control(control);
  control.finish();
  CAIRN_TRY(errors.take());
  return ttl_ms;
}

std::optional<std::uint32_t> read_cache_control(Query& query) {
  const auto text = query.text("cache_control");
  if (!text) return std::nullopt;
  const auto ttl_ms = read_cache_control(*text);
  if (ttl_ms) return *ttl_ms;
  query.refuse(ttl_ms.error().code, ttl_ms.error().detail);
  return std::nullopt;
}

}  // namespace cairn
