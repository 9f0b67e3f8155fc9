#include "server/events/event_tokens.hpp"

#include <optional>
#include <utility>

#include "server/codec/document.hpp"

namespace cairn {
namespace {

// Reads "tokens" from the block's metadata.
std::optional<std::vector<std::uint32_t>> tokens_of_block(const Cache& cache, const BlockKey& key) {
  const auto text = cache.metadata(key);
  if (!text || text->empty()) return std::nullopt;
  const json metadata = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto list = metadata.is_object() ? metadata.find("tokens") : metadata.end();
  if (list == metadata.end() || !list->is_array()) return std::nullopt;
  std::vector<std::uint32_t> tokens;
  for (const json& token : *list) {
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() > UINT32_MAX) return std::nullopt;
    tokens.push_back(token.get<std::uint32_t>());
  }
  return tokens;
}

}  // namespace

std::vector<std::uint32_t> tokens_of(const BlockManager& manager, const std::string& cache,
                                     const EventGroup& group) {
  auto parts = split_by_tokens(manager, cache, group);
  return parts.size() == 1 ? std::move(parts.front().tokens) : std::vector<std::uint32_t>();
}

std::vector<GroupAndTokens> split_by_tokens(const BlockManager& manager, const std::string& cache,
                                            EventGroup group) {
  std::vector<GroupAndTokens> parts;
  const auto found = manager.find_cache(cache);
  if (!found || !group.any_metadata || group.keys.empty()) {
    parts.push_back({.group = std::move(group), .tokens = {}});
    return parts;
  }
  const std::vector<BlockKey> keys = std::exchange(group.keys, {});
  bool had_tokens = false;
  for (const BlockKey& key : keys) {
    const auto tokens = tokens_of_block(**found, key);
    if (parts.empty() || tokens.has_value() != had_tokens) {
      const std::optional<BlockKey> before =
          parts.empty() ? group.parent : parts.back().group.keys.back();
      parts.push_back({.group = group, .tokens = {}});
      parts.back().group.parent = before;
      had_tokens = tokens.has_value();
    }
    GroupAndTokens& part = parts.back();
    part.group.keys.push_back(key);
    if (tokens) part.tokens.insert(part.tokens.end(), tokens->begin(), tokens->end());
  }
  return parts;
}

}  // namespace cairn
