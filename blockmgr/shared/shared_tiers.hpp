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
// Thread-safe. The destructor waits for
// what is under way, which the store's time-outs bound.
class SharedTiers {
 public:
  struct Beyond {
    std::unique_ptr<SharedStore> store;
    std::unique_ptr<BlockPeers> peers = {};  // null: none are asked
  };
  // Borrows the manager, the clock and the executor, which outlive it.
  SharedTiers(BlockManager& manager, Beyond beyond, const Clock& clock, Executor& executor,
              SharedTierOptions options);
  ~SharedTiers();

  // How others reach this server. Before the first cache.
  void advertise(SharedAddress address);
  // Null where the cache has none.
  std::shared_ptr<SharedTier> of(const std::shared_ptr<Cache>& cache);
  // Looks what was committed and which caches have gone. Called every few tens of milliseconds by
  // one thread.
  void poll();

  std::vector<SharedTierStats> stats();
  SharedStoreStats store_stats() const { return store_->stats(); }
  BlockPeers::Stats peer_stats() const {
    return peers_ == nullptr ? BlockPeers::Stats{} : peers_->stats();
  }
  // Servers that say that they are reached as this one is, by name: each takes back what the others
  // say of their blocks. Of servers with holders alone.
  std::vector<std::string> same_url() const;
  // Blocks whose commit nobody could see here, as too many came at once.
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
  std::uint64_t next_event_;  // poll()'s own
  std::vector<BlockEvent> events_;
  std::atomic<std::uint64_t> missed_events_{0};
  mutable Mutex mutex_;
  std::shared_ptr<SharedUrlWatch> url_watch_ CAIRN_GUARDED_BY(mutex_);  // null: none is needed yet
  SharedAddress own_address_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<SharedTier>, std::less<>> tiers_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
