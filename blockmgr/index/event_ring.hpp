#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

enum class BlockEventKind : std::uint8_t {
  stored,   // the tier has a copy of the key
  removed,  // the tier lost its copy of the key
  cleared,  // the tier lost all its copies; without a tier: the whole cache did
};
std::string_view to_string(BlockEventKind kind);

// Where a copy is: in a tier of the cache, or in the store that servers share.
enum class EventTier : std::uint8_t { device, pinned, disk, shared };
constexpr EventTier event_tier(Tier tier) { return static_cast<EventTier>(tier); }
static_assert(event_tier(Tier::disk) == EventTier::disk && kNumTiers == 3);
// nullopt for `shared`, which is no tier of the cache.
constexpr std::optional<Tier> tier_of(EventTier tier) {
  return tier == EventTier::shared ? std::nullopt : std::optional(static_cast<Tier>(tier));
}
std::string_view to_string(EventTier tier);

struct BlockEvent {
  std::uint64_t id = 0;  // consecutive
  std::int64_t unix_ms = 0;
  std::uint32_t cache = 0;  // the cache's number
  BlockEventKind kind = BlockEventKind::stored;
  std::optional<EventTier> tier = {};
  std::optional<BlockKey> key = {};     // nullopt for `cleared`
  std::optional<BlockKey> parent = {};  // `stored`: the key's parent, if known
  bool has_metadata = false;            // `stored`: the block had metadata
};

// The last events of all caches of a manager, in order. Readers never block writers: a reader polls
// for a few events at a time, and learns how many it missed because they were overwritten.
// Thread-safe. Its lock is taken while holding a cache's lock, and takes no other lock.
class EventRing {
 public:
  struct Options {
    std::uint32_t capacity = 0;  // at least 1
    // Id of the first event. If each run of the server starts above the ids of the run before it,
    // readers can tell ids of earlier runs.
    std::uint64_t first_id = 1;
  };
  explicit EventRing(const Options& options);

  // Names the cache for readers. Call before its first event.
  void open(std::uint32_t cache, std::string name);
  // Appends `cleared` for a dropped cache. Its name stays while an event of it can be read.
  void close(std::uint32_t cache, std::int64_t unix_ms);
  // Sets the event's id. Takes tens of nanoseconds.
  void append(BlockEvent event);
  // Drops the event if its cache was closed. For operations that may end after their cache.
  void append_if_open(BlockEvent event);

  std::uint64_t next_id() const;
  struct Read {
    std::size_t count = 0;      // events copied to the front of `out`
    std::uint64_t lost = 0;     // earlier events that were overwritten
    std::uint64_t next_id = 0;  // where to read on
  };
  // Reads from event `id` on. An id of an earlier run reads from the oldest event; an id above the
  // next one reads from the next one. `lost` counts the events between, as far as known.
  Read read(std::uint64_t id, std::span<BlockEvent> out) const;
  std::string cache_name(std::uint32_t cache) const;  // empty if no event of it is left

 private:
  void append_locked(BlockEvent&& event) CAIRN_REQUIRES(mutex_);
  std::uint64_t oldest_id() const CAIRN_REQUIRES(mutex_);

  std::size_t place_of(std::uint64_t id) const {
    return static_cast<std::size_t>((id - first_id_) % capacity_);
  }

  const std::uint32_t capacity_;
  const std::uint64_t first_id_;
  mutable Mutex mutex_;
  // indexed by place_of; grows to the capacity
  std::vector<BlockEvent> events_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t next_id_ CAIRN_GUARDED_BY(mutex_);
  struct Named {
    std::string name;
    bool is_open = true;
  };
  std::unordered_map<std::uint32_t, Named> names_ CAIRN_GUARDED_BY(mutex_);
  struct Closed {
    std::uint64_t last_id = 0;
    std::uint32_t cache = 0;
  };
  std::deque<Closed> closed_ CAIRN_GUARDED_BY(mutex_);
};

// Appends a cache's events to the ring. Cheap to copy.
struct EventSink {
  EventRing* ring = nullptr;  // null: events are dropped
  std::uint32_t cache = 0;

  void append(BlockEvent event) const {
    if (ring == nullptr) return;
    event.cache = cache;
    ring->append(std::move(event));
  }
  void append_if_open(BlockEvent event) const {
    if (ring == nullptr) return;
    event.cache = cache;
    ring->append_if_open(std::move(event));
  }
};

}  // namespace cairn
