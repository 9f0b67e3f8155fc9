#include "server/events/kv_payload.hpp"

#include <algorithm>
#include <array>

#include "base/assert.hpp"
#include "server/codec/document.hpp"

namespace cairn {
namespace {

// Names that engines use for the places of their blocks, since vLLM 0.27.
struct Place {
  std::string_view medium;
  std::string_view locality = {};  // empty: omitted
};
Place place_of(EventTier tier, const KvEventForm& form) {
  constexpr std::string_view kStorage = "STORAGE";
  constexpr std::string_view kLocal = "LOCAL";
  switch (tier) {
    case EventTier::device:
      return {"GPU", kLocal};
    case EventTier::pinned:
      return {"CPU", kLocal};
    case EventTier::disk:
      return {kStorage, kLocal};
    case EventTier::shared:
      // Arrays have no place for a locality.
      if (form.shared == KvEventForm::Shared::medium ||
          form.events == KvEventForm::Events::arrays) {
        return {"REMOTE"};
      }
      return {kStorage, "REMOTE"};
  }
  invariant_broken("tier is an enumerator", "a router would look for a block in a wrong place");
}

ordered_json hash_of(const BlockKey& key, const KvEventForm& form) {
  const auto bytes = key.view().bytes();
  if (form.hashes == KvEventForm::Hashes::bytes) {
    std::vector<std::uint8_t> copy(bytes.size());
    std::transform(bytes.begin(), bytes.end(), copy.begin(),
                   [](std::byte byte) { return static_cast<std::uint8_t>(byte); });
    return ordered_json::binary(std::move(copy));
  }
  std::uint64_t number = 0;
  for (std::byte byte : bytes.last(std::min<std::size_t>(bytes.size(), 8))) {
    number = number << 8 | static_cast<std::uint64_t>(byte);
  }
  return number;
}

// The members with which vLLM names the group of a block.
void add_kv_group(ordered_json& members, const KvEvent& event) {
  members["group_idx"] = event.group.kv_group;
  if (event.group.kind != BlockEventKind::stored) return;
  constexpr std::array<std::string_view, 3> kKinds = {"full_attention", "sliding_window", "mamba"};
  members["kv_cache_spec_kind"] = kKinds[static_cast<std::size_t>(event.kv_group->kind)];
  members["kv_cache_spec_sliding_window"] = event.kv_group->kind == KvGroupKind::window
                                                ? ordered_json(event.kv_group->window_tokens)
                                                : ordered_json(nullptr);
}

// Members in array order. Readers of arrays count the members, so arrays have only those that
// vLLM's classes had when they were arrays.
ordered_json members_of(const KvEvent& event, const KvEventForm& form) {
  const EventGroup& group = event.group;
  ordered_json members = ordered_json::object();
  if (group.kind == BlockEventKind::cleared) return members;
  ordered_json hashes = ordered_json::array();
  for (const BlockKey& key : group.keys) hashes.push_back(hash_of(key, form));
  members["block_hashes"] = std::move(hashes);
  if (group.kind == BlockEventKind::stored) {
    members["parent_block_hash"] =
        group.parent ? hash_of(*group.parent, form) : ordered_json(nullptr);
    members["token_ids"] = event.tokens;
    members["block_size"] = event.block_size;
    members["lora_id"] = nullptr;
  }
  const Place place = place_of(*group.tier, form);
  members["medium"] = place.medium;
  if (group.kind == BlockEventKind::stored) members["lora_name"] = nullptr;
  if (form.events == KvEventForm::Events::maps && !place.locality.empty()) {
    members["locality"] = place.locality;
  }
  if (event.kv_group && form.events == KvEventForm::Events::maps) add_kv_group(members, event);
  return members;
}

std::string_view name_of(BlockEventKind kind) {
  switch (kind) {
    case BlockEventKind::stored:
      return "BlockStored";
    case BlockEventKind::removed:
      return "BlockRemoved";
    case BlockEventKind::cleared:
      return "AllBlocksCleared";
  }
  invariant_broken("kind is an enumerator", "an event would be published as another");
}

ordered_json written(const KvEvent& event, const KvEventForm& form) {
  const std::string_view name = name_of(event.group.kind);
  ordered_json members = members_of(event, form);
  if (form.events == KvEventForm::Events::maps) {
    ordered_json map = {{"type", name}};
    map.update(members);
    return map;
  }
  ordered_json array = ordered_json::array({name});
  for (auto& [member, value] : members.items()) array.push_back(std::move(value));
  return array;
}

}  // namespace

std::optional<std::string> kv_payload(std::span<const KvEvent> events, const KvEventForm& form) {
  ordered_json list = ordered_json::array();
  std::int64_t unix_ms = 0;
  for (const KvEvent& event : events) {
    // The form has no event for a cleared tier; its blocks were reported one by one.
    if (event.group.kind == BlockEventKind::cleared && event.group.tier) continue;
    const bool is_full = !event.kv_group || event.kv_group->kind == KvGroupKind::full ||
                         event.group.kind == BlockEventKind::cleared;
    if (!is_full && form.events == KvEventForm::Events::arrays) continue;
    list.push_back(written(event, form));
    unix_ms = event.group.unix_ms;
  }
  if (list.empty()) return std::nullopt;
  const ordered_json batch = {static_cast<double>(unix_ms) / 1000.0, std::move(list), form.rank};
  std::string payload;
  ordered_json::to_msgpack(batch, payload);
  return payload;
}

}  // namespace cairn
