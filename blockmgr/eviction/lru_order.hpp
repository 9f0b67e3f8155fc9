#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockmgr/eviction/linked_blocks.hpp"
#include "blockmgr/eviction/reuse_hint.hpp"

namespace cairn {

// At most one in kKeptShare blocks of a cache is kept longer because it is expected soon. A client
// that expects every block soon gets no more than LRU, and takes at most a quarter from the others.
inline constexpr std::uint32_t kKeptShare = 4;

// LRU with hints has a list for each NextUse. lru_worth() compares the first blocks of these lists.
// `never` is evicted first, then `later`. The others are evicted by the time since their last use,
// but blocks expected soon stay until that time is over, as far as kKeptShare allows.
struct LruFront {
  NextUse next_use = NextUse::unknown;
  std::int64_t age_ms = 0;            // since it was listed
  std::uint32_t expected_blocks = 0;  // in all lists of blocks expected soon
  std::uint32_t capacity_blocks = 0;
};
inline float lru_worth(const LruFront& front) {
  constexpr float kFirst = -1e30F;
  constexpr float kNext = -1e20F;
  constexpr float kLast = 1e20F;  // beyond every age
  if (front.next_use == NextUse::never) return kFirst;
  if (front.next_use == NextUse::later) return kNext;
  const auto age = static_cast<float>(front.age_ms);
  const bool is_kept = front.age_ms < expected_within_ms(front.next_use) &&
                       front.expected_blocks <= front.capacity_blocks / kKeptShare;
  return is_kept ? kLast - age : -age;
}

// Counts the blocks that are expected soon; one list for each NextUse.
inline std::uint32_t expected_blocks(std::span<const LinkedBlocks> by_next_use) {
  std::uint32_t blocks = 0;
  for (std::size_t i = 0; i < kNextUses; ++i) {
    if (expected_within_ms(static_cast<NextUse>(i)) > 0) blocks += by_next_use[i].count;
  }
  return blocks;
}

}  // namespace cairn
