#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "blockmgr/block_manager.hpp"
#include "blockmgr/shared/shared_tier.hpp"
#include "blockmgr/shared/shared_url_watch.hpp"
#include "transport/store/shared_store.hpp"

namespace cairn {

// The shared tiers of a manager's caches, over one store and the servers that it names.
// Thread-safe. The destructor waits for work in progress, which the store's time-outs bound.
class SharedTiers {
 public:
  struct Beyond {
    std::unique_ptr<SharedStore> store;
    std::unique_ptr<BlockPeers> peers = {};  // null: fetch no blocks from other servers
  };
  // Borrows the manager, the clock and the executor; they must outlive it.
  SharedTiers(BlockManager& manager, Beyond beyond, const Clock& clock, Executor& executor,
              SharedTierOptions options);
  ~SharedTiers();

  // Sets how other servers reach this one. Call before the first cache is created.
  void advertise(SharedAddress address);
  // Null if the cache has no shared tier.
  std::shared_ptr<SharedTier> of(const std::shared_ptr<Cache>& cache);
  // Handles new commits and removes the tiers of dropped caches. One thread must call it every few
  // tens of milliseconds.
  void poll();

  std::vector<SharedTierStats> stats();
  SharedStoreStats store_stats() const { return store_->stats(); }
  BlockPeers::Stats peer_stats() const {
    return peers_ == nullptr ? BlockPeers::Stats{} : peers_->stats();
  }
  // The names of other servers that advertise the same URL. Each of them withdraws what the others
  // announce. Only if a cache has placement `holders`.
  std::vector<std::string> same_url() const;
  // Events that were overwritten before poll() read them.
  std::uint64_t missed_events() const { return missed_events_.load(std::memory_order_relaxed); }

 private:
  void forget_dropped();
  void take_events();
  void watch_url();

  BlockManager& manager_;
  const Clock& clock_;
  Executor& executor_;
  const SharedTierOptions options_;
  const std::unique_ptr<SharedStore> store_;
  const std::unique_ptr<BlockPeers> peers_;
  WaitGroup under_way_;
  std::uint64_t next_event_;  // only poll() uses it
  std::vector<BlockEvent> events_;
  std::atomic<std::uint64_t> missed_events_{0};
  mutable Mutex mutex_;
  std::shared_ptr<SharedUrlWatch> url_watch_ CAIRN_GUARDED_BY(mutex_);  // null: not needed yet
  SharedAddress own_address_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<SharedTier>, std::less<>> tiers_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
