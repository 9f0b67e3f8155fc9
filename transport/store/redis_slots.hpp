#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "transport/store/redis_reply.hpp"
#include "transport/store/redis_settings.hpp"

namespace cairn {

inline constexpr std::uint32_t kRedisSlots = 16'384;

// The slot of a name in a cluster: CRC16 (XMODEM) of the name, or of the text between its first '{'
// and the next '}' (Redis cluster specification).
std::uint32_t redis_slot_of(std::string_view name);

// Consecutive slots of one node.
struct RedisSlotRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;  // included
  WireAddress node = {};
};
// Reads a reply to CLUSTER SLOTS from node `asked`, whose host replaces a missing one. nullopt if
// malformed, if a node has an invalid host or port, or if there are more slots than exist.
std::optional<std::vector<RedisSlotRange>> read_slots(const RedisReply& reply,
                                                      const WireAddress& asked);
// Reads a reply to ROLE. The primary has all slots.
std::optional<std::vector<RedisSlotRange>> read_role(const RedisReply& reply,
                                                     const WireAddress& asked);

// A reply "MOVED 3999 10.0.0.1:6381" or "ASK 3999 10.0.0.1:6381".
struct RedisRedirect {
  bool is_ask = false;
  std::uint32_t slot = 0;
  WireAddress node = {};
};
std::optional<RedisRedirect> read_redirect(std::string_view error, const WireAddress& asked);

}  // namespace cairn
