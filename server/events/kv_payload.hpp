#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockmgr/index/config.hpp"
#include "server/events/event_groups.hpp"

namespace cairn {

// Form of events for routers that read an engine's KV-cache events (vLLM's kv_events): MessagePack
// of `[timestamp, [event, …], rank]`.
struct KvEventForm {
  // Events as arrays that start with their name (older engines), or as maps with the name under
  // "type" (vLLM, SGLang). vLLM's own classes read only one of these.
  enum class Events : std::uint8_t { arrays, maps } events = Events::maps;
  // Keys as bytes, or as a number from their last 8 bytes, big-endian; every reader accepts the
  // number.
  enum class Hashes : std::uint8_t { bytes, int64 } hashes = Hashes::int64;
  // Blocks of the shared tier: either medium REMOTE, which routers take for a tier of this server;
  // or vLLM's medium STORAGE with locality REMOTE, which Dynamo ignores.
  enum class Shared : std::uint8_t { medium, locality } shared = Shared::medium;
  std::uint32_t rank = 0;
};

// A group with the data that it lacks.
struct KvEvent {
  EventGroup group;
  std::vector<std::uint32_t> tokens;  // empty: unknown
  std::uint32_t block_size = 0;       // tokens per block
  // Set in a cache with kv_groups. Readers of arrays do not know groups, so they get the events of
  // full groups only.
  std::optional<KvGroupConfig> kv_group = {};
};

// Returns nullopt if a router would know none of the events.
std::optional<std::string> kv_payload(std::span<const KvEvent> events, const KvEventForm& form);

}  // namespace cairn
