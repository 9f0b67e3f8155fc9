#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "blockmgr/remote_tier/eviction_uploads.hpp"
#include "blockmgr/remote_tier/remote_context.hpp"
#include "blockmgr/remote_tier/remote_holders.hpp"

namespace cairn {

struct RemoteTierOptions {
  // How long a match waits until the store says which keys behind the prefix it has.
  std::chrono::microseconds match_deadline{2'000};
  // How long an evicted block waits to be stored, and how long others wait for its slot: 250 MB at
  // 1 GB/s.
  std::chrono::milliseconds evict_wait{250};
  // Minimum time between two touches of a block that is in use here; a quarter of the TTL if that
  // is shorter. Without touches, a store with LRU eviction would drop the blocks that every host
  // has and uses.
  std::chrono::milliseconds touch_interval{60'000};
};

struct RemoteTierStats {
  std::string cache;
  std::uint64_t fetched_blocks = 0;
  std::uint64_t fetched_bytes = 0;
  std::uint64_t stored_blocks = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t there_already = 0;
  std::uint64_t dropped_full = 0;
  std::uint64_t dropped_failed = 0;
  std::uint64_t waiting_blocks = 0;  // waiting to be stored
  std::uint64_t absent = 0;
  std::uint64_t announced = 0;
  std::uint64_t withdrawn = 0;
  std::array<std::uint64_t, kNumWrongValues> wrong{};
  std::uint64_t probes = 0;
  std::uint64_t probes_spared = 0;
  std::uint64_t probes_late = 0;
  MediumCodec::Stats codec = {};
  MediumCodec::Stats far_codec = {};  // of the second of two stores; all else is of both

  void add(const RemoteTierStats& far);
};

// A cache's part in a store that many servers share: which of its blocks are stored there, and
// which are fetched from there. A failed fetch is a miss, a failed store is skipped; both are
// counted. Thread-safe.
class RemoteTier : public std::enable_shared_from_this<RemoteTier> {
 public:
  struct Services {
    RemoteContext::Beyond beyond;
    const Clock& clock;
    RemoteTierOptions options;
    // The part in Beyond::far, which hears of the same blocks and stores them by its own
    // configuration. It is not looked up by itself.
    std::shared_ptr<RemoteTier> far = {};
    bool tells_events = true;
  };
  RemoteTier(const std::shared_ptr<Cache>& cache, const Services& services);

  // Keys behind a match's prefix. They are looked up in the store up to the first that it lacks,
  // some hundred at a time, as long as the caller waits. Those that it has are fetched to `to` in
  // the background, once for all callers.
  struct Look {
    std::span<const KeyView> keys;
    Tier to = Tier::pinned;
    std::shared_ptr<BlockQuota> quota = {};
    bool fetches = true;                  // false: only report what the store has
    std::size_t most_fetched = SIZE_MAX;  // leading keys; the others are only looked up
    // How long the caller waits for the answer if that is longer than a match's deadline.
    std::chrono::milliseconds patience{0};
  };
  struct Beyond {
    std::uint64_t blocks = 0;  // how many of the leading keys the store has
    // How many of those are here already: they arrived during the look-up, for another match or
    // from an engine. A caller that found none of them must look again.
    std::uint64_t here = 0;
    // The transfers that fetch the others: those that other matches began, then this match's.
    std::vector<TransferId> transfers = {};
  };
  void probe_remote(const Look& look, UniqueFunction<void(Beyond)> done);
  // The same for a cache of several KV groups: the longest prefix that the cache and the store can
  // serve together. Beyond::blocks and `here` count keys beyond `matched`.
  struct GroupLook {
    std::span<const KeyView> keys;  // of the whole match
    std::uint32_t matched = 0;      // what the cache serves alone
    std::uint32_t have = 0;         // as in GroupMatchRequest
    Tier to = Tier::pinned;
    std::shared_ptr<BlockQuota> quota = {};
    bool fetches = true;
    std::chrono::milliseconds patience{0};  // as in Look
    // Makes room for blocks before they are fetched, and returns how many of the first have it. If
    // others remain, the blocks of a shorter prefix are tried. Empty: any number has room.
    std::function<std::size_t(std::span<const BlockKey>)> make_room = {};
  };
  void probe_groups(const GroupLook& look, UniqueFunction<void(Beyond)> done);
  // Which of the keys the store has. Fetches nothing, and is no use of a block. Asks in parts, one
  // after another. The keys of a part without an answer, and those after it, count as absent.
  void ask(std::vector<BlockKey> keys, UniqueFunction<void(std::vector<bool>)> done);
  // Stores these blocks of the cache in the shared tier, whatever RemoteTierConfig::write says, or
  // announces that they are here. Returns how many: the rest finds the queue full.
  std::uint64_t share(std::span<const BlockKey> keys);
  // A match found these keys in the cache.
  void matched(std::span<const KeyView> keys);
  // The cache has stored a copy of the block.
  void stored(const BlockKey& key, const std::optional<BlockKey>& parent);
  // A copy of the block is gone.
  void removed(const BlockKey& key);
  // Starts to listen to the cache. Call it once, before all others.
  void begin();
  // Call every few tens of milliseconds.
  void look();
  // Nothing starts from now on.
  void end();

  const Cache& cache() const { return *context_->cache; }
  Tier default_tier() const;  // default_tier_of(cache())
  RemoteTierStats stats() const;

 private:
  struct Waiting {
    BlockKey key;
    std::optional<BlockKey> parent;
  };
  // A name that is in the store, or soon will be, and when the store last heard of it.
  struct Known {
    TimePoint touched;

    // Returns true, and resets the time, if more than `interval` has passed.
    bool falls_due(TimePoint now, std::chrono::milliseconds interval);
  };
  using KnownNames = boost::unordered_flat_map<std::uint64_t, Known>;

  // What a look-up found for each key.
  struct Found {
    std::vector<BlockKey> keys;
    std::vector<RemoteStore::Presence> there = {};
    std::vector<BlockSources> sources = {};  // empty: the store has the blocks
  };
  static RemoteEvents events_of(const Cache& cache, bool tells_events);
  struct Lookup;
  void look_up(const std::shared_ptr<Lookup>& lookup);
  std::chrono::microseconds longest_question() const;
  void looked(Found found, const Look& look, UniqueFunction<void(Beyond)>& done);
  struct GroupProbe;
  struct GroupReach;
  struct GroupsFound;
  Beyond groups_looked(GroupProbe& probe, std::span<const RemoteStore::Presence> there);
  // Returns false if the key was absent a moment ago, or nothing starts any more. Otherwise the
  // caller leaves context_->under_way when it has the answer.
  bool begin_probe(KeyView first);
  std::vector<bool> are_here(std::span<const BlockKey> keys) const;
  std::vector<TransferId> fetch(Found found, const std::vector<bool>& here, const Look& look);
  void fetched(const std::vector<BlockKey>& keys, std::size_t arrived);
  // Returns false if the queue is full.
  bool offer(const BlockKey& key, const std::optional<BlockKey>& parent);
  // Tells the store that the block is in use. REQUIRES: the caller entered context_->under_way.
  void touch(const BlockKey& key);
  // The store has lost the block, which is in use here.
  void store_again(const BlockKey& key);
  void departed(const BlockKey& key, const Result<>& result);
  void store_next();
  void store_ended(const BlockKey& key, const Result<>& result);
  Known* known(std::uint64_t hash) CAIRN_REQUIRES(mutex_);
  void remember(std::uint64_t hash) CAIRN_REQUIRES(mutex_);
  void spare(std::uint64_t hash, std::chrono::milliseconds for_so_long) CAIRN_REQUIRES(mutex_);
  bool forget(std::uint64_t hash) CAIRN_REQUIRES(mutex_);  // false: it was not known
  // A look-up found the block in this part's store.
  void note_there(const BlockKey& key);

  const std::shared_ptr<RemoteContext> context_;
  const std::shared_ptr<RemoteTier> far_;  // null: one store
  const Clock& clock_;
  const RemoteTierOptions options_;
  std::shared_ptr<EvictionUploads> evictions_;  // null: blocks are not stored on eviction
  std::shared_ptr<RemoteHolders> holders_;      // null: the store has the blocks themselves
  mutable Mutex mutex_;
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::array<KnownNames, 2> known_ CAIRN_GUARDED_BY(mutex_);  // newer and older names
  boost::unordered_flat_map<std::uint64_t, TimePoint> absent_ CAIRN_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, TransferId> fetching_ CAIRN_GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t storing_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
