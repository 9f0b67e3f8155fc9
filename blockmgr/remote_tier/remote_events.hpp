#pragma once

#include <optional>

#include "base/clock.hpp"
#include "blockmgr/index/event_ring.hpp"

namespace cairn {

// Publishes what this server knows about values in the store: it has stored one, or found one gone.
// Other servers publish their own. Thread-safe.
class RemoteEvents {
 public:
  RemoteEvents(EventSink sink, const Clock& clock) : sink_(sink), clock_(clock) {}

  void stored(const BlockKey& key, const std::optional<BlockKey>& parent) const {
    sink_.append_if_open({.unix_ms = clock_.unix_ms(),
                          .kind = BlockEventKind::stored,
                          .tier = EventTier::shared,
                          .key = key,
                          .parent = parent,
                          .has_metadata = true});
  }
  void removed(const BlockKey& key) const {
    sink_.append_if_open({.unix_ms = clock_.unix_ms(),
                          .kind = BlockEventKind::removed,
                          .tier = EventTier::shared,
                          .key = key});
  }

 private:
  EventSink sink_;
  const Clock& clock_;
};

}  // namespace cairn
