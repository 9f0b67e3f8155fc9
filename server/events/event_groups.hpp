#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockmgr/index/event_ring.hpp"

namespace cairn {

// Events in a row that tell the same of one prefix, or of one tier.
struct EventGroup {
  BlockEventKind kind = BlockEventKind::stored;
  std::uint32_t cache = 0;
  std::optional<EventTier> tier;
  std::vector<BlockKey> keys;      // stored: each the parent of the next
  std::optional<BlockKey> parent;  // of the first key, where it is known
  bool any_metadata = false;       // one of the blocks came with metadata
  std::uint64_t last_id = 0;
  std::int64_t unix_ms = 0;  // of the last
};

// At most so many keys a group, so that a reader gets them in pieces that it can hold.
inline constexpr std::size_t kMaxGroupKeys = 256;

std::vector<EventGroup> group_events(std::span<const BlockEvent> events);

}  // namespace cairn
