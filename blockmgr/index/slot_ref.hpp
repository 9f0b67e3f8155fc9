#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

using SlotNumber = std::uint32_t;
inline constexpr SlotNumber kNoSlot = ~SlotNumber{0};

// The maximum number of slots of a tier: a reference has 32 bits, two of them for the tier.
inline constexpr std::uint32_t kMaxSlots = 1u << 30;

// A slot of a cache in 4 bytes: a lease on a long prefix holds a long list of them.
class SlotRef {
 public:
  SlotRef() = default;  // assign before use
  SlotRef(Tier tier, SlotNumber slot)
      : bits_(static_cast<std::uint32_t>(tier) << 30 | (slot & (kMaxSlots - 1))) {}
  Tier tier() const { return static_cast<Tier>(bits_ >> 30); }
  SlotNumber slot() const { return bits_ & (kMaxSlots - 1); }
  std::uint32_t bits() const { return bits_; }
  friend auto operator<=>(const SlotRef&, const SlotRef&) = default;

 private:
  std::uint32_t bits_ = 0;
};
static_assert(sizeof(SlotRef) == 4 && kNumTiers <= 4);

}  // namespace cairn
