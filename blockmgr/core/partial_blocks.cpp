#include "blockmgr/core/partial_blocks.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/assert.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {

PartialBlocks::Partial* PartialBlocks::find(const BlockKey& key) {
  if (by_key_.empty()) return nullptr;
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &found->second;
}

void PartialBlocks::add(const BlockKey& key, Partial partial) {
  const SlotRef at = partial.at;
  Keeper& keeper = *partial.keeper;
  if (keeper.blocks++ == 0) {
    keeper.number = ++last_number_;
    keepers_.emplace(keeper.number, partial.keeper);
  }
  const bool is_new = by_key_.try_emplace(key, std::move(partial)).second;
  CAIRN_ASSERT(is_new, "the parts of a key would be spread over two blocks");
  keys_.emplace(at.bits(), key);
}

void PartialBlocks::remove(SlotRef at) {
  if (by_key_.empty()) return;
  const auto key = keys_.extract(at.bits());
  if (key.empty()) return;
  const auto partial = by_key_.extract(key.mapped());
  Keeper& keeper = *partial.mapped().keeper;
  if (--keeper.blocks == 0) keepers_.erase(keeper.number);
}

void PartialBlocks::enter(CacheLock& locked, Keeper& keeper) {
  if (keeper.writers++ > 0) return;
  if (const auto lease = locked->leases.find(keeper.lease)) {
    locked->leases.renew(*lease, Leases::kNotYet);
  }
}

void PartialBlocks::leave(CacheLock& locked, Keeper& keeper) {
  if (--keeper.writers > 0) return;
  const auto lease = locked->leases.find(keeper.lease);
  if (!lease) return;
  if (keeper.blocks == 0) return locked->leases.end(locked, *lease, false);
  const std::chrono::milliseconds kept(locked.core().options().partial_block_ms);
  locked->leases.renew(*lease, locked.now() + kept);
}

void PartialBlocks::give_way(CacheLock& locked, Tier tier, std::uint64_t units) {
  const SlotPool& slots = locked->store.pool(tier);
  const std::uint64_t wanted = slots.free_count() + units;
  std::uint64_t number = 0;
  // A released lease may be another keeper's, whose entry then goes: no iterator lives that long.
  for (auto at = keepers_.begin(); at != keepers_.end() && slots.free_count() < wanted;
       at = keepers_.upper_bound(number)) {
    number = at->first;
    const std::shared_ptr<Keeper> keeper = at->second;
    const auto lease = locked->leases.find(keeper->lease);
    if (keeper->writers > 0 || !lease) continue;
    const std::vector<SlotRef>& held = locked->leases[*lease].held;
    const auto is_there = [tier](SlotRef slot) { return slot.tier() == tier; };
    if (std::ranges::none_of(held, is_there)) continue;
    for (const SlotRef slot : std::vector(held)) remove(slot);
    locked->leases.end(locked, *lease, false);
    // A large lease is released in steps, others before it.
    while (slots.free_count() < wanted && locked->leases.is_releasing()) {
      locked->leases.release_step(locked);
    }
  }
}

}  // namespace cairn
