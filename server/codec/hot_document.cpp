#include "server/codec/hot_document.hpp"

#include "server/codec/dom_blocks.hpp"
#include "server/codec/ids.hpp"
#include "server/codec/reuse_hint.hpp"

namespace cairn::hot_document {
namespace {

template <class T>
std::optional<T> narrowed(std::optional<std::uint64_t> number) {
  if (!number) return std::nullopt;
  return static_cast<T>(*number);
}

void check_size(const json& list, std::string_view name, std::size_t most, DecodeErrors& errors) {
  if (list.size() <= most) return;
  const Error error = too_many(name, most);
  errors.add(error.code, error.detail);
}

// Calls `read(fields)` for each object of the list `name`, which has at most `most`.
template <class Read>
void each_object(Fields& fields, std::string_view name, std::size_t most, Read&& read) {
  const json* list = fields.list(name);
  if (list == nullptr) return;
  check_size(*list, name, most, fields.errors());
  if (fields.errors().any()) return;
  std::size_t index = 0;
  for (const json& item : *list) {
    Fields element(item, fields.path_of(name) + "[" + std::to_string(index++) + "]",
                   fields.errors());
    read(element);
    element.finish();
    if (fields.errors().any()) return;
  }
}

CommitBlock read_commit_block(Fields& fields) {
  CommitBlock block;
  block.handle = read_handle(fields);
  const auto key = key_from(fields.string("key"), fields.path_of("key"));
  if (key) {
    block.key = *key;
  } else {
    fields.errors().add(key.error().code, key.error().detail);
  }
  const json* parent = fields.optional_any("parent");
  if (parent != nullptr && !parent->is_null()) {
    block.parent = read_key(*parent, fields.path_of("parent"), fields.errors());
  }
  read_write_options(fields, block);
  return block;
}

}  // namespace

Result<> read_match(const json& body, const MatchLimits& limits, MatchBody& out) {
  out.clear();
  DecodeErrors errors;
  Fields fields(body, "", errors);
  const json* keys = fields.optional_list("keys");
  if (keys != nullptr) {
    check_size(*keys, "keys", limits.max_keys, errors);
    for (const json& item : *keys) {
      if (errors.any()) break;
      const auto key =
          read_key(item, "keys[" + std::to_string(out.keys.size()) + "]", fields.errors());
      if (!key) break;
      out.keys.add(key->view().bytes());
    }
  }
  if (const json* tokens = fields.optional_list("tokens")) {
    out.has_tokens = true;
    check_size(*tokens, "tokens", limits.max_tokens, errors);
    for (const json& item : *tokens) {
      if (errors.any()) break;
      const std::string path = "tokens[" + std::to_string(out.tokens.size()) + "]";
      out.tokens.push_back(static_cast<std::uint32_t>(read_number(item, path, kAnyU32, errors)));
    }
  }
  out.salt = fields.optional_string("salt");
  out.lease_ms = narrowed<std::uint32_t>(fields.optional_number("lease_ms", kAnyU32));
  out.onboard = read_optional_tier(fields, "onboard");
  out.wait_ms =
      static_cast<std::uint32_t>(fields.optional_number("wait_ms", {0, kMaxWaitMs}).value_or(0));
  out.hint = read_hint(fields);
  out.shared = fields.optional_bool("shared").value_or(true);
  fields.finish();
  CAIRN_TRY(errors.take());
  return check_match_sources(keys != nullptr, out);
}

Result<AllocateBody> read_allocate(const json& body) {
  DecodeErrors errors;
  Fields fields(body, "", errors);
  AllocateBody out;
  out.count = static_cast<std::uint32_t>(fields.number("count", {1, UINT32_MAX}));
  out.tier = read_optional_tier(fields, "tier");
  out.lease_ms = narrowed<std::uint32_t>(fields.optional_number("lease_ms", kAnyU32));
  out.priority = static_cast<std::uint8_t>(
      fields.optional_number("priority", kPriorities).value_or(out.priority));
  fields.finish();
  CAIRN_TRY(errors.take());
  return out;
}

Result<CommitBody> read_commit(const json& body, std::size_t max_blocks) {
  DecodeErrors errors;
  Fields fields(body, "", errors);
  CommitBody out;
  const std::string lease = fields.string("lease");
  each_object(fields, "blocks", max_blocks,
              [&out](Fields& element) { out.blocks.push_back(read_commit_block(element)); });
  out.release = fields.optional_bool("release").value_or(false);
  out.hint = read_hint(fields);
  fields.finish();
  CAIRN_TRY(errors.take());
  CAIRN_TRY(read_lease(lease, out.lease));
  return out;
}

Result<ReleaseBody> read_release(const json& body, std::size_t max_blocks) {
  DecodeErrors errors;
  Fields fields(body, "", errors);
  ReleaseBody out;
  const bool has_blocks = fields.has("blocks");
  if (has_blocks) {
    each_object(fields, "blocks", max_blocks, [&out](Fields& element) {
      out.blocks.push_back(read_handle(element));
      // A match names it beside the handle; the handle alone says which block.
      static_cast<void>(element.optional_string("key"));
    });
  }
  const auto to_lease = fields.optional_string("to_lease");
  const auto tokens = [&fields](std::string_view name) -> std::optional<std::uint32_t> {
    const auto number = fields.optional_number(name, kAnyU32);
    if (!number) return std::nullopt;
    return static_cast<std::uint32_t>(*number);
  };
  out.input_tokens = tokens("input_tokens");
  out.output_tokens = tokens("output_tokens");
  out.hint = read_hint(fields);
  fields.finish();
  CAIRN_TRY(errors.take());
  if (to_lease) CAIRN_TRY(read_lease(*to_lease, out.to_lease.emplace(), "to_lease"));
  CAIRN_TRY(check_release(out, has_blocks));
  return out;
}

Result<RenewBody> read_renew(const json& body) {
  DecodeErrors errors;
  Fields fields(body, "", errors);
  RenewBody out;
  out.lease_ms = narrowed<std::uint32_t>(fields.optional_number("lease_ms", {1, UINT32_MAX}));
  fields.finish();
  CAIRN_TRY(errors.take());
  return out;
}

}  // namespace cairn::hot_document
