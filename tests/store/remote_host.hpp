#pragma once

#include <barrier>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "blockmgr/remote_tier/remote_tiers.hpp"
#include "tests/blockmgr/rig.hpp"
#include "tests/store/memory_peers.hpp"
#include "tests/store/memory_store.hpp"

namespace cairn::testing {

inline BlockManagerOptions with_store() {
  BlockManagerOptions options;
  options.has_remote_store = {true, true};
  options.is_advertised = true;
  return options;
}

// The peers among which the host serves its cache, and its URL there. null: it serves none.
struct ServedTo {
  MemoryPeers* peers = nullptr;
  std::string url = {};
  std::string instance = {};
};

// A second store below the first. null: there is none.
struct FarStore {
  MemoryStore* store = nullptr;
  RemoteTierConfig config = {};
};

// A separate server, with a cache over a store that other hosts share.
struct Host {
  // Forwards to a store that outlives this host.
  class Lent final : public RemoteStore {
   public:
    explicit Lent(MemoryStore& store) : store_(store) {}
    void probe(Probe probe, UniqueFunction<void(std::vector<Presence>)> done) override {
      store_.probe(std::move(probe), std::move(done));
    }
    void read(std::vector<Read> reads, ReadDone done) override {
      store_.read(std::move(reads), std::move(done));
    }
    void write(RemoteStore::Write write, UniqueFunction<void(Result<bool>)> done) override {
      store_.write(std::move(write), std::move(done));
    }
    void touch(Touch touch, UniqueFunction<void(Result<bool>)> done) override {
      store_.touch(std::move(touch), std::move(done));
    }
    void erase(std::string name) override { store_.erase(std::move(name)); }
    void announce(Announce announce, UniqueFunction<void(std::size_t)> done) override {
      store_.announce(std::move(announce), std::move(done));
    }
    void withdraw(Withdraw withdraw) override { store_.withdraw(std::move(withdraw)); }
    void find_holders(FindHolders find,
                      UniqueFunction<void(std::vector<std::optional<Holders>>)> done) override {
      store_.find_holders(std::move(find), std::move(done));
    }
    RemoteStoreStats stats() const override { return store_.stats(); }

   private:
    MemoryStore& store_;
  };

  static std::unique_ptr<BlockPeers> peers_of(const ServedTo& served) {
    return served.peers == nullptr ? nullptr : std::make_unique<LentPeers>(*served.peers);
  }

  static RemoteTiers::Beyond beyond(std::unique_ptr<RemoteStore> store,
                                    std::unique_ptr<BlockPeers> peers, const FarStore& far = {}) {
    RemoteTiers::Beyond made{.peers = std::move(peers)};
    made.stores[static_cast<std::size_t>(RemoteTierConfig::Store::redis)] = std::move(store);
    if (far.store != nullptr) {
      made.stores[static_cast<std::size_t>(RemoteTierConfig::Store::s3)] =
          std::make_unique<Lent>(*far.store);
    }
    return made;
  }

  explicit Host(MemoryStore& store, const RemoteTierConfig& shared = {},
                TierSizes sizes = {.pinned = 16}, const ServedTo& served = {},
                const std::optional<PressureConfig>& pressure = {},
                const BlockManagerOptions& options = with_store(),
                const std::optional<LayoutConfig>& shape = {}, const FarStore& far = {})
      : served_to(served),
        rig({.options = options}),
        tiers(*rig.manager, beyond(std::make_unique<Lent>(store), peers_of(served), far), rig.clock,
              rig.scheduler->executor(), {}) {
    CacheConfig config = small_cache(sizes);
    config.shared = shared;
    if (shape) config.shape = *shape;
    if (far.store != nullptr) {
      config.shared_far = far.config;
      config.shared_far->store = RemoteTierConfig::Store::s3;
    }
    config.pressure[index_of(Tier::pinned)] = pressure;
    if (served.peers != nullptr) tiers.advertise({.url = served.url, .instance = served.instance});
    cache = rig.cache(config);
    if (served.peers != nullptr) served.peers->servers[served.url] = {&rig, cache};
    tier = tiers.of(cache);
  }

  ~Host() {
    if (served_to.peers != nullptr) served_to.peers->servers.erase(served_to.url);
  }

  void put(const std::vector<BlockKey>& keys) {
    ASSERT_TRUE(rig.put(*cache, {.keys = keys}));
    settle();
  }
  // Waits until all work ends, except writes that the store holds.
  void settle() {
    tiers.poll();
    std::uint64_t before = 0;
    std::uint64_t waiting = 0;
    do {
      rig.scheduler->wait_idle();
      wait_for_tasks();
      rig.scheduler->wait_idle();
      before = std::exchange(waiting, tier->stats().waiting_blocks);
    } while (waiting != before);
  }
  // Waits for all posted tasks: each worker runs a task that waits for the others.
  void wait_for_tasks() {
    Executor& executor = rig.scheduler->executor();
    const std::uint32_t workers = executor.workers();
    auto all = std::make_shared<std::barrier<>>(workers + 1);
    for (std::uint32_t i = 0; i < workers; ++i) {
      executor.post([all] { all->arrive_and_wait(); });
    }
    all->arrive_and_wait();
  }
  RemoteTier::Beyond look(const std::vector<BlockKey>& keys) {
    RemoteTier::Beyond found;
    const auto asked = views(keys);
    tier->probe_remote({.keys = asked, .to = tier->default_tier()},
                       [&](RemoteTier::Beyond beyond) { found = beyond; });
    rig.scheduler->wait_idle();
    if (served_to.peers == nullptr) return found;
    for (const TransferId transfer : found.transfers) wait_for(transfer);
    return found;
  }
  // The scheduler's threads do part of a transfer.
  void wait_for(TransferId transfer) {
    auto ended = std::make_shared<std::promise<void>>();
    auto result = ended->get_future();
    ASSERT_TRUE(rig.manager->watch_transfer(
        transfer, [ended](const TransferStatus&) { ended->set_value(); }));
    result.wait();
  }
  std::size_t matched(const std::vector<BlockKey>& keys) {
    return rig.match(*cache, keys, 0).blocks.size();
  }

  const ServedTo served_to;
  Rig rig;
  RemoteTiers tiers;
  std::shared_ptr<Cache> cache;
  std::shared_ptr<RemoteTier> tier;
};

}  // namespace cairn::testing
