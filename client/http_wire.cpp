#include "client/http_wire.hpp"

#include "base/hex.hpp"

namespace cairn::client {
namespace {

using nlohmann::json;

// How much of a response is quoted if it is not problem+json.
constexpr std::size_t kMaxQuotedBytes = 200;

BlockHandle handle_from(const json& block) {
  const auto& name = block.at("tier").get_ref<const std::string&>();
  const auto tier = tier_from(name);
  if (!tier) throw json::other_error::create(599, "tier is '" + name + "'", &block);
  return {.tier = *tier,
          .slot = block.at("slot").get<std::uint64_t>(),
          .generation = block.at("generation").get<std::uint64_t>(),
          .kv_group = block.value("kv_group", std::string())};
}

StoreStatus status_from(const json& block) {
  const auto& word = block.at("status").get_ref<const std::string&>();
  if (word == "committed") return StoreStatus::committed;
  if (word == "duplicate") return StoreStatus::duplicate;
  throw json::other_error::create(599, "status is '" + word + "'", &block);
}

}  // namespace

std::string_view to_string(Tier tier) {
  switch (tier) {
    case Tier::device:
      return "device";
    case Tier::pinned:
      return "pinned";
    case Tier::disk:
      return "disk";
  }
  invariant_broken("Tier", "a value outside the enumeration");
}

std::optional<Tier> tier_from(std::string_view name) {
  for (const Tier tier : kTiers) {
    if (to_string(tier) == name) return tier;
  }
  return std::nullopt;
}

std::string percent_encoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      out += c;
    } else {
      out += '%';
      append_hex(out, std::as_bytes(std::span(&c, 1)));
    }
  }
  return out;
}

json hex_list(KeyList keys) {
  json list = json::array();
  for (std::size_t i = 0; i < keys.size(); ++i) list.push_back(to_hex(keys[i]));
  return list;
}

json parent_list(KeyList keys, std::span<const std::byte> parent) {
  json list = json::array();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto above = i == 0 ? parent : keys[i - 1];
    list.push_back(above.empty() ? json() : json(to_hex(above)));
  }
  return list;
}

json json_of(const BlockHandle& handle) {
  json one = {
      {"tier", to_string(handle.tier)}, {"slot", handle.slot}, {"generation", handle.generation}};
  if (!handle.kv_group.empty()) one["kv_group"] = handle.kv_group;
  return one;
}

Answer<json> json_from(std::string_view text) {
  json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) {
    return ClientError{0, kBadAnswer, "not JSON: " + std::string(text.substr(0, kMaxQuotedBytes))};
  }
  return value;
}

ClientError problem_from(unsigned status, std::string_view body) {
  const json problem = json::parse(body, nullptr, false);
  const auto text = [&problem](const char* name) -> std::string {
    if (!problem.is_object()) return "";
    const auto found = problem.find(name);
    return found != problem.end() && found->is_string() ? found->get<std::string>() : "";
  };
  ClientError error{status, text("code"), text("detail")};
  if (error.code.empty()) error.code = "http_" + std::to_string(status);
  if (error.detail.empty()) error.detail = body.substr(0, kMaxQuotedBytes);
  return error;
}

Answer<GroupMatch> group_match_from(const json& answer) {
  return guarded([&answer] {
    GroupMatch read;
    read.matched = answer.at("matched").get<std::size_t>();
    read.full_matched = answer.at("full_matched").get<std::size_t>();
    const json& lease = answer.at("lease");
    if (!lease.is_null()) {
      read.lease = lease.get<std::string>();
      read.expires_at_ms = answer.at("expires_at_ms").get<std::int64_t>();
    }
    for (const json& block : answer.at("blocks")) {
      read.blocks.push_back({block.at("key").get<std::string>(), handle_from(block)});
    }
    return read;
  });
}

Answer<Match> match_from(const json& answer, KeyList asked) {
  auto match = guarded([&answer, asked] {
    Match read;
    const json& lease = answer.at("lease");
    if (!lease.is_null()) {
      read.lease = lease.get<std::string>();
      read.expires_at_ms = answer.at("expires_at_ms").get<std::int64_t>();
    }
    for (const json& block : answer.at("blocks")) {
      read.blocks.push_back(handle_from(block));
      const std::size_t index = read.blocks.size() - 1;
      const auto& key = block.at("key").get_ref<const std::string&>();
      if (index >= asked.size() || key != to_hex(asked[index])) {
        throw json::other_error::create(599, "'" + key + "' is not the key asked for", &block);
      }
    }
    return read;
  });
  if (!match) return match;
  const auto matched = field_from<std::size_t>(answer, "matched");
  if (!matched) return matched.error();
  if (*matched != match->blocks.size()) {
    return ClientError{0, kBadAnswer,
                       "matched is " + std::to_string(*matched) + ", with " +
                           std::to_string(match->blocks.size()) + " blocks"};
  }
  return match;
}

Answer<Allocation> allocation_from(const json& answer) {
  return guarded([&answer] {
    Allocation read;
    read.lease = answer.at("lease").get<std::string>();
    read.expires_at_ms = answer.at("expires_at_ms").get<std::int64_t>();
    for (const json& block : answer.at("blocks")) read.blocks.push_back(handle_from(block));
    return read;
  });
}

Answer<Transfer> transfer_from(const json& answer) {
  return guarded([&answer] {
    return Transfer{answer.at("transfer").get<std::string>(), answer.at("state").get<std::string>(),
                    answer.at("blocks_done").get<std::uint64_t>(),
                    answer.at("blocks_total").get<std::uint64_t>(),
                    answer.at("bytes").get<std::uint64_t>()};
  });
}

Answer<std::vector<StoreStatus>> statuses_from(const json& answer, std::size_t count) {
  auto statuses = guarded([&answer] {
    std::vector<StoreStatus> read;
    for (const json& block : answer.at("blocks")) read.push_back(status_from(block));
    return read;
  });
  if (statuses && statuses->size() != count) {
    return ClientError{0, kBadAnswer,
                       std::to_string(statuses->size()) + " statuses for " + std::to_string(count)};
  }
  return statuses;
}

}  // namespace cairn::client
