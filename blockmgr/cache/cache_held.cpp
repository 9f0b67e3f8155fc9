// Cache: lists present blocks, for reports to others.
#include <algorithm>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Keys looked up under one hold of the lock, some 100 ns each.
constexpr std::size_t kHeldStep = 64;

std::optional<Tier> held_tier(const BlockStore& store, EntryNumber number, bool only_used_again) {
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
  CacheLock locked(*core_, LockUse::look);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kHeldStep == 0) {
      if (i > 0) locked.yield();
      locked->store.prefetch(keys.subspan(i, std::min(kHeldStep, keys.size() - i)));
    }
    if (locked->dropped) break;
    const EntryNumber entry = locked->store.find(keys[i], locked.now());
    if (entry != kNoEntry) tiers[i] = held_tier(locked->store, entry, only_used_again);
  }
  return tiers;
}

std::vector<std::optional<Tier>> Cache::tiers_of(std::span<const KeyView> keys,
                                                 std::optional<KvGroupNumber> kv_group) {
  const CacheConfig& config = core_->config;
  if (config.kv_groups.empty()) return highest_tiers(keys, false);
  std::vector<KvGroupNumber> groups;
  for (KvGroupNumber group = 0; group < config.kv_group_count(); ++group) {
    if (kv_group ? group == *kv_group : config.kind_of(group) == KvGroupKind::full) {
      groups.push_back(group);
    }
  }
  for (KvGroupNumber group = 0; groups.empty() && group < config.kv_group_count(); ++group) {
    groups.push_back(group);
  }
  std::vector<std::optional<Tier>> tiers(keys.size());
  for (const KvGroupNumber group : groups) {
    std::vector<KeyView> blocks(keys.begin(), keys.end());
    for (KeyView& block : blocks) block = block.in(group);
    const auto of_group = highest_tiers(blocks, false);
    for (std::size_t i = 0; i < tiers.size(); ++i) tiers[i] = std::max(tiers[i], of_group[i]);
  }
  return tiers;
}

HeldBlocks Cache::held(const HeldRequest& request) const {
  HeldBlocks result;
  CacheLock locked(*core_, LockUse::look);
  std::uint64_t next = request.cursor;
  for (std::size_t looked = 0; looked < request.limit && !locked->dropped; ++looked, ++next) {
    if (looked > 0 && looked % kHeldStep == 0) locked.yield();
    if (next >= locked->store.entry_end()) break;
    const auto number = static_cast<EntryNumber>(next);
    const auto tier = held_tier(locked->store, number, request.only_used_again);
    if (tier) result.blocks.push_back({.key = locked->store.key(number), .tier = *tier});
  }
  result.end = locked->dropped ? 0 : locked->store.entry_end();
  result.next_cursor = std::min<std::uint64_t>(next, result.end);
  return result;
}

}  // namespace cairn
