#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/events/event_groups.hpp"

namespace cairn {

// How events are written for routers that read an engine's KV-cache events (vLLM's kv_events):
// MessagePack of `[timestamp, [event, …], rank]`.
struct KvEventForm {
  // An event as an array that begins with its name, as older engines write it, or as a map with its
  // name under "type", as vLLM and SGLang do. vLLM's own classes read one of them alone.
  enum class Events : std::uint8_t { arrays, maps } events = Events::maps;
  // A key as its bytes, or as the number that its last 8 bytes are, big-endian: the one form that
  // every reader takes.
  enum class Hashes : std::uint8_t { bytes, int64 } hashes = Hashes::int64;
  // A block of the shared tier: the medium REMOTE, which routers take for a tier of the server that
  // tells of it, or vLLM's words, the medium STORAGE with the locality REMOTE, which Dynamo passes
  // over.
  enum class Shared : std::uint8_t { medium, locality } shared = Shared::medium;
  std::uint32_t rank = 0;
};

// A group and what it lacks.
struct KvEvent {
  EventGroup group;
  std::vector<std::uint32_t> tokens;  // empty: not known
  std::uint32_t block_size = 0;       // tokens a block
};

// Nothing where there is none that a router would know.
std::optional<std::string> kv_payload(std::span<const KvEvent> events, const KvEventForm& form);

}  // namespace cairn
