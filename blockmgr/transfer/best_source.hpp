#pragma once

#include <optional>

#include "blockmgr/index/key_index.hpp"
#include "blockmgr/index/slot_ref.hpp"

namespace cairn {

// Returns the copy that is read fastest into memory of kind `to`: device memory goes to a device
// directly, pinned memory reaches every tier, and disk comes last. Leaves out tier `except`.
// nullopt if there is no such copy.
inline std::optional<SlotRef> best_source(const Entry& entry, Tier to,
                                          std::optional<Tier> except = std::nullopt) {
  const Tier first = to == Tier::device ? Tier::device : Tier::pinned;
  const Tier second = to == Tier::device ? Tier::pinned : Tier::device;
  for (const Tier tier : {first, second, Tier::disk}) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (tier != except && slot != kNoSlot) return SlotRef(tier, slot);
  }
  return std::nullopt;
}

}  // namespace cairn
