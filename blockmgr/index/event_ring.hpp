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
  stored,   // a copy of the key can be found in the tier
  removed,  // that copy is gone
  cleared,  // no key has a copy there any more; without a tier: in the whole cache
};
std::string_view to_string(BlockEventKind kind);

// Where a copy is: in one of the cache's tiers, or in the store that servers share.
enum class EventTier : std::uint8_t { device, pinned, disk, shared };
constexpr EventTier event_tier(Tier tier) { return static_cast<EventTier>(tier); }
static_assert(event_tier(Tier::disk) == EventTier::disk && kNumTiers == 3);
// Nothing of what is no tier of the cache.
constexpr std::optional<Tier> tier_of(EventTier tier) {
  return tier == EventTier::shared ? std::nullopt : std::optional(static_cast<Tier>(tier));
}
std::string_view to_string(EventTier tier);

struct BlockEvent {
  std::uint64_t id = 0;  // one more than that of the event before it
  std::int64_t unix_ms = 0;
  std::uint32_t cache = 0;  // its number
  BlockEventKind kind = BlockEventKind::stored;
  std::optional<EventTier> tier = {};
  std::optional<BlockKey> key = {};     // nothing for cleared
  std::optional<BlockKey> parent = {};  // stored: of the key, where it is known
  bool has_metadata = false;            // stored: there may be some to be asked for
};

// The last so many events of all caches of a manager, in order. What writes is never held up by
// what reads: readers come by themselves, take a few events at a time, and are told how many have
// been overwritten where they come too late. Thread-safe; its lock is taken inside a cache's and
// holds no other.
class EventRing {
 public:
  struct Options {
    std::uint32_t capacity = 0;  // more than 0
    // Ids go on from here. Where each life of the server begins later than the ids of the one
    // before it, an id of that life cannot be mistaken for one of this.
    std::uint64_t first_id = 1;
  };
  explicit EventRing(const Options& options);

  // Gives the cache a name for those who read; before its first event.
  void open(std::uint32_t cache, std::string name);
  // The cache is gone. Its name stays for as long as an event of it can be read.
  void close(std::uint32_t cache, std::int64_t unix_ms);
  // The event's id is set here. Tens of nanoseconds.
  void append(BlockEvent event);
  // The same of what ends by itself, which may be after its cache: then nobody is told.
  void append_if_open(BlockEvent event);

  std::uint64_t next_id() const;
  struct Read {
    std::size_t count = 0;      // events copied to the front of `out`
    std::uint64_t lost = 0;     // events before them that are no longer here
    std::uint64_t next_id = 0;  // where to read on
  };
  // From the event `id` on. An id that is none of this ring's is taken for the oldest, or where it
  // lies ahead for the next; what lies between counts as lost, as far as that can be known.
  Read read(std::uint64_t id, std::span<BlockEvent> out) const;
  std::string cache_name(std::uint32_t cache) const;  // empty where nothing of it is left

 private:
  void append_locked(BlockEvent&& event) CAIRN_REQUIRES(mutex_);
  std::uint64_t oldest_id() const CAIRN_REQUIRES(mutex_);

  std::size_t place_of(std::uint64_t id) const {
    return static_cast<std::size_t>((id - first_id_) % capacity_);
  }

  const std::uint32_t capacity_;
  const std::uint64_t first_id_;
  mutable Mutex mutex_;
  std::vector<BlockEvent> events_ CAIRN_GUARDED_BY(mutex_);  // by place_of; grows to the capacity
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

// Where a cache's events go. A small value.
struct EventSink {
  EventRing* ring = nullptr;  // null: nowhere
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
