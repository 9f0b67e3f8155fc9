#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockmgr/index/event_ring.hpp"

namespace cairn {

// Consecutive events of the same kind for one prefix, or for one tier.
struct EventGroup {
  BlockEventKind kind = BlockEventKind::stored;
  std::uint32_t cache = 0;
  std::optional<EventTier> tier;
  KvGroupNumber kv_group = 0;      // of the keys
  std::vector<BlockKey> keys;      // stored: each the parent of the next
  std::optional<BlockKey> parent;  // of the first key, if known
  bool any_metadata = false;       // some block has metadata
  std::uint64_t last_id = 0;
  std::int64_t unix_ms = 0;  // of the last event
};

// Limits a group, so that readers get pieces they can hold.
inline constexpr std::size_t kMaxGroupKeys = 256;

std::vector<EventGroup> group_events(std::span<const BlockEvent> events);

}  // namespace cairn
