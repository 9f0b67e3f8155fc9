// Cache: lists present blocks, for reports to others.
#include <algorithm>

#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Keys looked up under one hold of the lock, some 100 ns each.
constexpr std::size_t kHeldStep = 64;

std::optional<Tier> told_tier(const BlockStore& store, EntryNumber number, bool only_used_again) {
  const Entry& entry = store.entry(number);
  if (!entry.present()) return std::nullopt;
  const SlotRef at = store.highest_copy(entry);
  if (only_used_again && !store.record(at).used_again) return std::nullopt;
  return at.tier();
}

}  // namespace

std::vector<std::optional<Tier>> Cache::highest_tiers(std::span<const KeyView> keys,
                                                      bool only_used_again) {
  std::vector<std::optional<Tier>> tiers(keys.size());
  Section section(*core_, LockUse::look);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i > 0 && i % kHeldStep == 0) section.give_way();
    if (section->dropped) break;
    const EntryNumber entry = section->store.find(keys[i], section.now());
    if (entry != kNoEntry) tiers[i] = told_tier(section->store, entry, only_used_again);
  }
  return tiers;
}

HeldBlocks Cache::held(const HeldRequest& request) const {
  HeldBlocks result;
  Section section(*core_, LockUse::look);
  std::uint64_t next = request.cursor;
  for (std::size_t looked = 0; looked < request.limit && !section->dropped; ++looked, ++next) {
    if (looked > 0 && looked % kHeldStep == 0) section.give_way();
    if (next >= section->store.entry_end()) break;
    const auto number = static_cast<EntryNumber>(next);
    const auto tier = told_tier(section->store, number, request.only_used_again);
    if (tier) result.blocks.push_back({.key = section->store.key(number), .tier = *tier});
  }
  result.end = section->dropped ? 0 : section->store.entry_end();
  result.next_cursor = std::min<std::uint64_t>(next, result.end);
  return result;
}

}  // namespace cairn
