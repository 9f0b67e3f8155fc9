#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "server/codec/document.hpp"

// How routers read a batch of KV events, written from their documentation. An event that a router
// would leave out or cannot read throws.
namespace cairn {

struct RoutedEvent {
  std::string kind;
  std::vector<std::uint64_t> hashes = {};
  std::optional<std::uint64_t> parent = {};
  std::vector<std::uint32_t> tokens = {};
  std::string tier = {};
};

[[noreturn]] inline void left_out(const std::string& why, const json& event) {
  throw std::runtime_error(why + ": " + event.dump());
}

// The members of an event by name, in either form.
inline json named(const json& event, const std::vector<std::string>& stored,
                  const std::vector<std::string>& removed) {
  if (event.is_object()) return event;
  if (!event.is_array() || event.empty() || !event[0].is_string()) left_out("no event", event);
  json members = {{"type", event[0]}};
  const auto& names = event[0] == "BlockStored" ? stored : removed;
  for (std::size_t i = 1; i < event.size() && i <= names.size(); ++i) {
    members[names[i - 1]] = event[i];
  }
  return members;
}

inline const json& events_of(const json& batch) {
  if (!batch.is_array() || batch.size() != 3 || !batch[0].is_number_float() ||
      !batch[1].is_array() || !batch[2].is_number_unsigned()) {
    left_out("no batch", batch);
  }
  return batch[1];
}

// Dynamo: "ZMQ KV Event Wire Parsing" (lib/kv-router/src/zmq_wire) and "Publish KV Events from a
// Custom Backend". Dynamo stops at the first event of a batch that it cannot read. It leaves out
// events with an owner, with a locality other than LOCAL, or with an unknown medium. Hashes are
// numbers.
inline std::vector<RoutedEvent> read_by_dynamo(const json& batch) {
  const auto number = [](const json& hash) {
    if (!hash.is_number_integer()) left_out("a hash is no number", hash);
    return hash.get<std::uint64_t>();
  };
  const auto tier_of = [](const json& event) -> std::string {
    const std::string medium = event.value("medium", "GPU");
    const auto is_one_of = [&](std::initializer_list<const char*> words) {
      return std::ranges::find(words, medium) != words.end();
    };
    if (is_one_of({"GPU", "DEVICE"})) return "device";
    if (is_one_of({"CPU", "CPU_PINNED", "CPU_TIER1"})) return "host";
    if (is_one_of({"CPU_TIER2", "DISK", "NVME", "STORAGE"})) return "disk";
    if (is_one_of({"EXTERNAL", "NETWORK", "REMOTE", "SHARED"})) return "external";
    left_out("an unknown medium", event);
  };
  std::vector<RoutedEvent> all;
  for (const json& one : events_of(batch)) {
    const json event =
        named(one,
              {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
               "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
               "kv_cache_spec_sliding_window", "locality", "ownership"},
              {"block_hashes", "medium", "group_idx", "kv_cache_spec_kind",
               "kv_cache_spec_sliding_window", "locality", "ownership"});
    RoutedEvent& read = all.emplace_back(RoutedEvent{.kind = event.at("type")});
    if (event.contains("ownership")) left_out("an owner", event);
    if (read.kind == "AllBlocksCleared") continue;
    if (event.value("locality", "LOCAL") != "LOCAL") left_out("it is not local", event);
    if (event.value("group_idx", 0) != 0) left_out("another group", event);
    read.tier = tier_of(event);
    for (const json& hash : event.at("block_hashes")) read.hashes.push_back(number(hash));
    if (read.kind == "BlockRemoved") continue;
    if (read.kind != "BlockStored") left_out("an unknown kind", event);
    const json& parent = event.at("parent_block_hash");
    if (!parent.is_null()) read.parent = number(parent);
    read.tokens = event.at("token_ids").get<std::vector<std::uint32_t>>();
    if (!event.at("block_size").is_number_unsigned()) left_out("no block size", event);
    std::vector<std::uint64_t> seen = read.hashes;
    if (read.parent) seen.push_back(*read.parent);
    std::ranges::sort(seen);
    if (std::ranges::adjacent_find(seen) != seen.end()) left_out("a hash twice", event);
  }
  return all;
}

// llm-d's indexer (llm-d-kv-cache, pkg/kvevents and its documentation). A hash is a number, or
// bytes whose last eight are a number. llm-d reads events as maps since 0.9. Before, it refused a
// batch if one of its arrays had another number of members than its own structure.
enum class LlmD : std::uint8_t { today, before_maps };
inline std::vector<RoutedEvent> read_by_llm_d(const json& batch, LlmD release) {
  const auto number = [](const json& hash) {
    if (hash.is_number_integer()) return hash.get<std::uint64_t>();
    if (!hash.is_binary() || hash.get_binary().empty()) left_out("no hash", hash);
    std::uint64_t value = 0;
    const auto& bytes = hash.get_binary();
    const std::size_t skipped = bytes.size() > 8 ? bytes.size() - 8 : 0;
    for (std::size_t i = skipped; i < bytes.size(); ++i) value = value << 8 | bytes[i];
    return value;
  };
  std::vector<RoutedEvent> all;
  for (const json& one : events_of(batch)) {
    if (release == LlmD::before_maps) {
      if (!one.is_array()) left_out("no array", one);
      const std::size_t members = one[0] == "BlockStored" ? 8 : one[0] == "BlockRemoved" ? 3 : 1;
      if (one.size() != members) left_out("another number of members", one);
    }
    const json event = named(one,
                             {"block_hashes", "parent_block_hash", "token_ids", "block_size",
                              "lora_id", "medium", "lora_name", "extra_keys"},
                             {"block_hashes", "medium"});
    RoutedEvent& read = all.emplace_back(RoutedEvent{.kind = event.at("type")});
    if (read.kind == "AllBlocksCleared") continue;
    if (!event.at("medium").is_string()) left_out("a medium is no text", event);
    read.tier = event.at("medium").get<std::string>();
    std::ranges::transform(read.tier, read.tier.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    for (const json& hash : event.at("block_hashes")) read.hashes.push_back(number(hash));
    if (read.kind == "BlockRemoved") continue;
    if (read.kind != "BlockStored") left_out("an unknown kind", event);
    const json& parent = event.at("parent_block_hash");
    if (!parent.is_null()) read.parent = number(parent);
    read.tokens = event.at("token_ids").get<std::vector<std::uint32_t>>();
    if (!event.at("block_size").is_number_unsigned()) left_out("no block size", event);
    if (!event.at("lora_id").is_null()) left_out("an adapter", event);
  }
  return all;
}

// Readers of SGLang's array events. They read hashes as numbers and the members up to the adapter,
// and skip the rest.
inline std::vector<RoutedEvent> read_as_sglangs_arrays(const json& batch) {
  std::vector<RoutedEvent> all;
  for (const json& event : events_of(batch)) {
    if (!event.is_array()) left_out("no array", event);
    RoutedEvent& read = all.emplace_back(RoutedEvent{.kind = event.at(0)});
    if (read.kind == "AllBlocksCleared") continue;
    for (const json& hash : event.at(1)) {
      if (!hash.is_number_integer()) left_out("a hash is no number", event);
      read.hashes.push_back(hash.get<std::uint64_t>());
    }
    if (read.kind == "BlockRemoved") continue;
    if (read.kind != "BlockStored") left_out("an unknown kind", event);
    if (!event.at(2).is_null()) read.parent = event.at(2).get<std::uint64_t>();
    read.tokens = event.at(3).get<std::vector<std::uint32_t>>();
    if (!event.at(4).is_number_unsigned() || !event.at(5).is_null()) left_out("no form", event);
  }
  return all;
}

}  // namespace cairn
