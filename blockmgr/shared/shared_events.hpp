#pragma once

#include <optional>

#include "base/clock.hpp"
#include "blockmgr/index/event_ring.hpp"

namespace cairn {

// Tells who listens to a cache's events what it knows of values in the store: that it has put one
// there, or found one gone. What others put there they tell themselves. Thread-safe.
class SharedEvents {
 public:
  SharedEvents(EventSink sink, const Clock& clock) : sink_(sink), clock_(clock) {}

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
