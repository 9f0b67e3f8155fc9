#include "server/codec/dom_blocks.hpp"

#include "server/codec/ids.hpp"
#include "server/codec/requests.hpp"

namespace cairn {

std::optional<Tier> read_optional_tier(Fields& fields, std::string_view name) {
  const auto index = fields.optional_word(name, kTierWords);
  if (!index) return std::nullopt;
  return kTiers[*index];
}

Tier read_tier(Fields& fields, std::string_view name) {
  return kTiers[fields.word(name, kTierWords)];
}

void read_write_options(Fields& fields, CommitBlock& out) {
  if (const json* metadata = fields.optional_object("metadata")) out.metadata = metadata->dump();
  out.ttl_ms = fields.optional_number("ttl_ms", {1, kMaxTtlMs});
  if (const auto priority = fields.optional_number("priority", kPriorities)) {
    out.priority = static_cast<std::uint8_t>(*priority);
  }
  out.refuse_duplicate = fields.optional_word("if_exists", kIfExistsWords) == 1U;
}

std::uint32_t read_wait_ms(Fields& fields) {
  return static_cast<std::uint32_t>(fields.optional_number("wait_ms", {0, kMaxWaitMs}).value_or(0));
}

std::optional<BlockKey> read_key(const json& value, const std::string& path, DecodeErrors& errors) {
  if (!value.is_string()) {
    errors.add(ErrorCode::wrong_type, path + " is no string; a key is written in hex");
    return std::nullopt;
  }
  auto key = key_from(value.get_ref<const std::string&>(), path);
  if (key) return *key;
  errors.add(key.error().code, std::move(key).error().detail);
  return std::nullopt;
}

std::vector<BlockKey> read_keys(Fields& fields, std::string_view name, std::size_t max_keys) {
  std::vector<BlockKey> keys;
  const json* list = fields.list(name);
  if (list == nullptr) return keys;
  const std::string path = fields.path_of(name);
  if (list->size() > max_keys) {
    fields.errors().add(ErrorCode::out_of_range, path + " has " + std::to_string(list->size()) +
                                                     " elements; it takes at most " +
                                                     std::to_string(max_keys));
    return keys;
  }
  keys.reserve(list->size());
  for (const json& item : *list) {
    const auto key =
        read_key(item, path + "[" + std::to_string(keys.size()) + "]", fields.errors());
    if (!key) return keys;
    keys.push_back(*key);
  }
  return keys;
}

std::vector<std::optional<BlockKey>> read_parents(const json& list, std::size_t count,
                                                  DecodeErrors& errors) {
  std::vector<std::optional<BlockKey>> parents;
  if (list.size() != count) {
    errors.add(ErrorCode::wrong_length, "parents has " + std::to_string(list.size()) +
                                            " elements; it takes one per key, " +
                                            std::to_string(count));
    return parents;
  }
  parents.reserve(count);
  for (const json& item : list) {
    const std::string path = "parents[" + std::to_string(parents.size()) + "]";
    auto& parent = parents.emplace_back();
    if (!item.is_null()) parent = read_key(item, path, errors);
    if (errors.any()) break;
  }
  return parents;
}

std::vector<std::optional<BlockKey>> chained_parents(const std::vector<BlockKey>& keys,
                                                     const std::optional<BlockKey>& first) {
  std::vector<std::optional<BlockKey>> parents(keys.size());
  if (!parents.empty()) parents[0] = first;
  for (std::size_t i = 1; i < keys.size(); ++i) parents[i] = keys[i - 1];
  return parents;
}

}  // namespace cairn
