#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "blockmgr/shared/shared_context.hpp"
#include "blockmgr/shared/shared_departures.hpp"
#include "blockmgr/shared/shared_holders.hpp"

namespace cairn {

struct SharedTierOptions {
  // How long a match waits for what the store says of the keys behind its prefix.
  std::chrono::microseconds match_deadline{2'000};
  // How long a block that makes room waits for its turn to be stored, and who needs the room for
  // it: 250 MB at a GB/s.
  std::chrono::milliseconds evict_wait{250};
  // So often, at most, a store with values is told that a block is in use here; a quarter of its
  // time to live where that is shorter. A store that evicts what was used least lately would else
  // drop what every host has and uses.
  std::chrono::milliseconds touch_interval{60'000};
};

struct SharedTierStats {
  std::string cache;
  std::uint64_t fetched_blocks = 0;
  std::uint64_t fetched_bytes = 0;
  std::uint64_t stored_blocks = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t there_already = 0;
  std::uint64_t dropped_full = 0;
  std::uint64_t dropped_failed = 0;
  std::uint64_t waiting_blocks = 0;  // to be stored
  std::uint64_t absent = 0;
  std::uint64_t announced = 0;
  std::uint64_t withdrawn = 0;
  std::array<std::uint64_t, kNumWrongValues> wrong{};
  std::uint64_t probes = 0;
  std::uint64_t probes_spared = 0;
  std::uint64_t probes_late = 0;
};

// What a cache has beyond this host: which of its blocks go into the store that many servers share,
// and which come from there. What fails is a miss, or is not stored, and counted. Thread-safe.
class SharedTier : public std::enable_shared_from_this<SharedTier> {
 public:
  struct Services {
    SharedContext::Beyond beyond;
    const Clock& clock;
    SharedTierOptions options;
  };
  // REQUIRES: the cache's configuration has a shared tier.
  SharedTier(const std::shared_ptr<Cache>& cache, const Services& services);

  // Keys behind a match's prefix. As many of them as a look ahead has, those that the store has are
  // brought to `to`, once for all who ask, while the caller goes on.
  struct Look {
    std::span<const KeyView> keys;
    Tier to = Tier::pinned;
    std::shared_ptr<BlockQuota> quota = {};
    bool fetches = true;  // false: what is there is only told
  };
  struct Beyond {
    std::uint64_t blocks = 0;  // so many from the first on
    // So many of those are here by now: they came while the store was asked, for another match or
    // from an engine. Who found none of them is to look again.
    std::uint64_t here = 0;
    // That bring the others: each that another match began, then the one that this match did.
    std::vector<TransferId> transfers = {};
  };
  void look_beyond(const Look& look, UniqueFunction<void(Beyond)> done);
  // A match found these in the cache.
  void matched(std::span<const KeyView> keys);
  // The cache has a copy of it.
  void stored(const BlockKey& key, const std::optional<BlockKey>& parent);
  // A copy of it has gone.
  void removed(const BlockKey& key);
  // What has to be heard of from now on is heard of. Once, before all else.
  void begin();
  // Called every few tens of milliseconds.
  void look();
  // Nothing begins any more.
  void end();

  const Cache& cache() const { return *context_->cache; }
  // The highest tier that the CPU reaches, which is where blocks from the store are quickest.
  Tier default_tier() const;
  SharedTierStats stats() const;

 private:
  struct Waiting {
    BlockKey key;
    std::optional<BlockKey> parent;
  };
  // What the store is known to have, or will have, and when that was last said to it.
  struct Known {
    TimePoint told;

    // Whether it is to be said once more, which is done then.
    bool falls_due(TimePoint now, std::chrono::milliseconds interval);
  };
  using KnownNames = boost::unordered_flat_map<std::uint64_t, Known>;

  // What a look found out of each key, and for whom.
  struct Found {
    std::vector<BlockKey> keys;
    std::vector<SharedStore::Presence> there = {};
    std::vector<BlockSources> sources = {};  // empty: the store has them
  };
  static SharedEvents events_of(const Cache& cache);
  void looked(Found found, const Look& look, UniqueFunction<void(Beyond)>& done);
  std::vector<bool> are_here(std::span<const BlockKey> keys) const;
  std::vector<TransferId> fetch(Found found, const std::vector<bool>& here, const Look& look);
  void fetched(const std::vector<BlockKey>& keys, std::size_t arrived);
  void offer(const BlockKey& key, const std::optional<BlockKey>& parent);
  // Tells the store that it is in use. REQUIRES: context_->under_way was entered for it.
  void touch(const BlockKey& key);
  // The store has it no more, and it is in use here.
  void store_again(const BlockKey& key);
  void departed(const BlockKey& key, const Result<>& result);
  void store_next();
  void store_ended(const BlockKey& key, const Result<>& result);
  Known* known(std::uint64_t hash) CAIRN_REQUIRES(mutex_);
  void remember(std::uint64_t hash) CAIRN_REQUIRES(mutex_);
  void spare(std::uint64_t hash, std::chrono::milliseconds for_so_long) CAIRN_REQUIRES(mutex_);
  bool forget(std::uint64_t hash) CAIRN_REQUIRES(mutex_);  // false: it was not known

  const std::shared_ptr<SharedContext> context_;
  const SharedConfig config_;
  const Clock& clock_;
  const SharedTierOptions options_;
  std::shared_ptr<SharedDepartures> departures_;  // null: blocks are stored at another time
  std::shared_ptr<SharedHolders> holders_;        // null: the store has the blocks themselves
  mutable Mutex mutex_;
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::array<KnownNames, 2> known_ CAIRN_GUARDED_BY(mutex_);  // the newer ones, the older ones
  boost::unordered_flat_map<std::uint64_t, TimePoint> absent_ CAIRN_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, TransferId> fetching_ CAIRN_GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t storing_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
