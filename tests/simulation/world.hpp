#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "blockmgr/block_manager.hpp"
#include "blockmgr/remote_tier/remote_tiers.hpp"
#include "tests/simulation/clients.hpp"
#include "tests/simulation/device.hpp"
#include "tests/simulation/disk.hpp"
#include "tests/simulation/simulation_oracle.hpp"
#include "tests/simulation/store.hpp"

namespace cairn::sim {

// A tier's size for about as many blocks of several sizes: see TierConfig::num_blocks.
std::uint32_t units_for(const CacheConfig& config, Tier tier, std::uint32_t blocks);

// The settings of a run, fixed from beginning to end.
struct Setup {
  explicit Setup(std::uint64_t seed);
  CacheConfig config;
  bool pins = false;           // clients pin, prefetch and demote
  Store::Faults store_faults;  // only of a cache with a shared tier
  TransferSchedulerOptions scheduler;
  BlockManagerOptions manager;
  Device::Options device;
  bool faulty = false;
  Disk::Faults faults;

 private:
  void add_shared_tier(Random& random);
};

// One run of a server: a simulated device and disk, and the real code above them.
class World {
 public:
  struct Parts {
    Queue& queue;
    Oracle& oracle;
    const Setup& setup;
    CacheConfig config;  // the setup's, with later changes
    std::filesystem::path folder;
    Store::Values& store;
    Store::Values& far_store;
    // Called at each place of BlockManagerOptions::failpoint.
    std::function<void(std::string_view)> failpoint;
  };
  explicit World(Parts parts);
  // Stops as a server does.
  ~World();

  Device& device() { return device_; }
  Disk& disk() { return disk_; }
  BlockManager& manager() { return *manager_; }
  Cache& cache() { return *cache_; }
  Clients& clients() { return *clients_; }
  void end_clients();
  // Does what the end of a call leaves to the next one: a tier that is under pressure because of
  // that end becomes smaller. Its blocks go down a tier, which may be under pressure then.
  void settle();
  // Does the work that a server does every few tens of milliseconds.
  void tick();
  // Removes the cache under its clients and creates an empty one with its name.
  void make_anew(const CacheConfig& config);
  bool started() const { return cache_ != nullptr; }
  // Checks that evictions for room since the last call began at the tail. Skips tiers that offload:
  // their blocks leave when their copies have arrived, in any order.
  void check_evictions();
  // Checks that all counts are at rest. REQUIRES: no call is under way.
  void check_at_rest();
  // Reads each present key and checks its bytes. The keys in `must` must be readable.
  void check_all_bytes(const std::set<KeyNumber>& must);

 private:
  // Checks that the slot file takes no more room than that.
  void check_file(std::uint64_t room_bytes) const;
  void make_cache(const CacheConfig& config);

  const Parts parts_;
  Device device_;
  Disk disk_;
  Logger log_;
  std::unique_ptr<TransferScheduler> scheduler_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<RemoteTiers> remote_tiers_;
  std::shared_ptr<Cache> cache_;
  std::unique_ptr<Clients> clients_;
  CacheStats before_ = {};  // the last check_evictions()
  // The blocks that were not held then, and their slots.
  using Unheld = std::map<KeyNumber, BlockHandle>;
  Unheld unheld(Tier tier) const;
  std::array<Unheld, kNumTiers> unheld_before_;
};

}  // namespace cairn::sim
