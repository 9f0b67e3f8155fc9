#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "transport/store/redis_reply.hpp"
#include "transport/store/redis_settings.hpp"

namespace cairn {

inline constexpr std::uint32_t kRedisSlots = 16'384;

// The slot of a name in a cluster: CRC16 (XMODEM) of it, or of what stands between its first '{'
// and the '}' behind that (Redis cluster specification).
std::uint32_t redis_slot_of(std::string_view name);

// Slots that one node has.
struct RedisSlotRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;  // as well
  WireAddress node = {};
};
// Of an answer to CLUSTER SLOTS that came from `asked`, whose host stands for one that is not told.
// Nothing where it is none, where a node has a host or a port that can be none, or where a slot is
// told of more than once.
std::optional<std::vector<RedisSlotRange>> read_slots(const RedisReply& reply,
                                                      const WireAddress& asked);
// Of an answer to ROLE: all slots are the primary's.
std::optional<std::vector<RedisSlotRange>> read_role(const RedisReply& reply,
                                                     const WireAddress& asked);

// "MOVED 3999 10.0.0.1:6381" and "ASK 3999 10.0.0.1:6381".
struct RedisRedirect {
  bool is_ask = false;
  std::uint32_t slot = 0;
  WireAddress node = {};
};
std::optional<RedisRedirect> read_redirect(std::string_view error, const WireAddress& asked);

}  // namespace cairn
