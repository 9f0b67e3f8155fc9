#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/engine_memory/engine_memory_types.hpp"
#include "server/codec/fields.hpp"

// Agents as JSON.
namespace cairn {

struct EngineMemoryBody {
  EngineMemoryConfig config;  // its regions, without the passed open files
  std::optional<std::uint32_t> lease_ms = {};

  // True if some of its memory was passed as open files. The agent then ends with the connection.
  bool is_tethered() const;
};
EngineMemoryBody read_engine_memory_body(Fields& fields, std::string name);

// `with_handles` adds the handles that open memory without a path.
ordered_json engine_memory_body(const EngineMemoryInfo& info, bool with_handles);

// The body of a load or a store. Only a store has parents and a tier.
struct EngineCopyBody {
  std::string memory;
  std::vector<BlockKey> keys;
  std::vector<std::optional<BlockKey>> parents;  // for a store: one per key
  std::vector<std::uint32_t> blocks;
  std::optional<Tier> tier;
  std::uint32_t wait_ms = 0;
};
enum class EngineCopyKind : std::uint8_t { load, store };
EngineCopyBody read_engine_copy(Fields& fields, EngineCopyKind kind, std::size_t max_keys);

}  // namespace cairn
