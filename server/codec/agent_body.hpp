#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockmgr/agent/agent_types.hpp"
#include "blockmgr/cache/cache.hpp"
#include "server/codec/fields.hpp"

// Agents as the contract writes them.
namespace cairn {

struct AgentBody {
  AgentConfig config;  // its regions without the open files that came along
  std::optional<std::uint32_t> lease_ms = {};

  // Some of its memory came as open files: it goes with the connection.
  bool is_tethered() const;
};
AgentBody read_agent_body(Fields& fields, std::string name);

// `with_handles`: also what opens memory that has no path.
ordered_json agent_info_body(const AgentInfo& info, bool with_handles);

// Of a load, or of a store, which takes parents and a tier too.
struct AgentCopyBody {
  std::string agent;
  std::vector<BlockKey> keys;
  std::vector<std::optional<BlockKey>> parents;  // of a store: one a key
  std::vector<std::uint32_t> blocks;
  std::optional<Tier> tier;
  std::uint32_t wait_ms = 0;
};
enum class AgentCopyKind : std::uint8_t { load, store };
AgentCopyBody read_agent_copy(Fields& fields, AgentCopyKind kind, std::size_t max_keys);

}  // namespace cairn
