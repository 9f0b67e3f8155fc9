#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "server/codec/fields.hpp"
#include "server/codec/query.hpp"

// Actions: what frontends, agents and routers ask for blocks that they do not use now.
namespace cairn {

// Enough for a router that speaks for all requests of a batch; one action names many blocks.
inline constexpr std::size_t kMaxActions = 256;
inline constexpr std::uint32_t kStandardPinMs = 300'000;
// A day: a client that is gone must not keep room for longer.
inline constexpr std::uint32_t kMaxPinMs = 86'400'000;
// Names of actions: as long as those of sessions.
inline constexpr std::size_t kMaxActionIdBytes = 128;

struct Action {
  std::optional<std::string> id = {};
  ActionType type = ActionType::unknown;
  std::string refusal = {};         // the reason why it cannot be done; empty: it may be
  std::vector<BlockKey> keys = {};  // of the target, unless it is a session
  std::optional<std::string> session = {};
  std::uint32_t ttl_ms = kStandardPinMs;
  std::optional<std::uint8_t> priority = {};
  std::optional<Tier> to = {};
  std::optional<std::string> peer = {};
  std::uint64_t max_blocks = UINT64_MAX;
  std::optional<std::uint32_t> deadline_ms = {};
  bool refresh_on_hit = false;
  std::uint32_t wait_ms = 0;
};

struct ActionsBody {
  std::vector<Action> actions;
  std::optional<std::string> message_id = {};  // of the envelope form
};

struct ActionLimits {
  std::size_t max_keys = 0;          // of one action
  std::uint64_t tokens_per_key = 1;  // for targets given as tokens
};
// Reads both forms of the body: the plain one, and the envelope of engines. In an envelope an
// unknown type or version is no error; its action has a refusal.
ActionsBody read_actions(Fields& fields, const ActionLimits& limits);

// The member or parameter `cache_control`: `{"type": "ephemeral", "ttl": "5m"|"1h"}`. Returns how
// long the blocks are pinned; nullopt if it is left out.
std::optional<std::uint32_t> read_cache_control(Fields& fields);
std::optional<std::uint32_t> read_cache_control(Query& query);
Result<std::uint32_t> read_cache_control(std::string_view object_text);

}  // namespace cairn
