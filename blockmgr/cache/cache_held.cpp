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
    if (i > 0 && i % kHeldStep == 0) locked.yield();
    if (locked->dropped) break;
    const EntryNumber entry = locked->store.find(keys[i], locked.now());
    if (entry != kNoEntry) tiers[i] = held_tier(locked->store, entry, only_used_again);
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
