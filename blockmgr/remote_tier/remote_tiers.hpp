#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "blockmgr/block_manager.hpp"
#include "blockmgr/remote_tier/remote_tier.hpp"
#include "blockmgr/remote_tier/remote_url_watch.hpp"
#include "transport/store/remote_store.hpp"

namespace cairn {

// By RemoteTierConfig::Store; null: the server has none of that kind.
using RemoteStores = std::array<std::unique_ptr<RemoteStore>, kNumRemoteStores>;

// The shared tiers of a manager's caches, over the server's stores and the servers that they name.
// Thread-safe. The destructor ends it.
class RemoteTiers {
 public:
  struct Beyond {
    RemoteStores stores = {};
    std::unique_ptr<BlockPeers> peers = {};  // null: fetch no blocks from other servers

    bool is_empty() const { return stores == RemoteStores{}; }
  };
  // Borrows the manager, the clock and the executor; they must outlive it.
  RemoteTiers(BlockManager& manager, Beyond beyond, const Clock& clock, Executor& executor,
              RemoteTierOptions options);
  ~RemoteTiers();

  // Nothing starts from now on. Waits for what is in progress, which the store's time-outs bound.
  void end();

  // Sets how other servers reach this one. Call before the first cache is created.
  void advertise(RemoteAddress address);
  // Null if the cache has no shared tier, and after end().
  std::shared_ptr<RemoteTier> of(const std::shared_ptr<Cache>& cache);
  // Sends a request to another server, as BlockPeers::read does. Also `cancelled` after end().
  void ask_peer(BlockPeers::Read read, UniqueFunction<void(Result<std::size_t>)> done);
  // Handles new commits and removes the tiers of dropped caches. One thread must call it every few
  // tens of milliseconds.
  void poll();

  std::vector<RemoteTierStats> stats();
  bool has(RemoteTierConfig::Store kind) const {
    return stores_[static_cast<std::size_t>(kind)] != nullptr;
  }
  // Of all stores together.
  RemoteStoreStats store_stats() const;
  BlockPeers::Stats peer_stats() const {
    return peers_ == nullptr ? BlockPeers::Stats{} : peers_->stats();
  }
  // The names of other servers that advertise the same URL. Each of them withdraws what the others
  // announce. Only if a cache has placement `holders`.
  std::vector<std::string> same_url() const;
  // Events that were overwritten before poll() read them.
  std::uint64_t missed_events() const { return missed_events_.load(std::memory_order_relaxed); }

 private:
  // REQUIRES: has(kind).
  RemoteStore& store(RemoteTierConfig::Store kind) const {
    return *stores_[static_cast<std::size_t>(kind)];
  }
  void forget_dropped();
  void take_events();
  void watch_url();

  BlockManager& manager_;
  const Clock& clock_;
  Executor& executor_;
  const RemoteTierOptions options_;
  const RemoteStores stores_;
  const std::unique_ptr<BlockPeers> peers_;
  WaitGroup under_way_;
  std::uint64_t next_event_;  // only poll() uses it
  std::vector<BlockEvent> events_;
  std::atomic<std::uint64_t> missed_events_{0};
  mutable Mutex mutex_;
  std::shared_ptr<RemoteUrlWatch> url_watch_ CAIRN_GUARDED_BY(mutex_);  // null: not needed yet
  RemoteAddress own_address_ CAIRN_GUARDED_BY(mutex_);
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::shared_ptr<RemoteTier>, std::less<>> tiers_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
