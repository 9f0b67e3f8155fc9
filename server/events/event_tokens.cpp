#include "server/events/event_tokens.hpp"

#include "server/codec/document.hpp"

namespace cairn {

std::vector<std::uint32_t> tokens_of(const BlockManager& manager, const std::string& cache,
                                     const EventGroup& group) {
  if (!group.any_metadata) return {};
  auto found = manager.find_cache(cache);
  if (!found) return {};
  std::vector<std::uint32_t> tokens;
  for (const BlockKey& key : group.keys) {
    const auto text = (*found)->metadata(key);
    if (!text || text->empty()) return {};
    const json metadata = json::parse(*text, nullptr, /*allow_exceptions=*/false);
    const auto list = metadata.is_object() ? metadata.find("tokens") : metadata.end();
    if (list == metadata.end() || !list->is_array()) return {};
    for (const json& token : *list) {
      if (!token.is_number_unsigned() || token.get<std::uint64_t>() > UINT32_MAX) return {};
      tokens.push_back(token.get<std::uint32_t>());
    }
  }
  return tokens;
}

}  // namespace cairn
