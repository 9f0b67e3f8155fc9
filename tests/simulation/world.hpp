#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "blockmgr/block_manager.hpp"
#include "tests/simulation/clients.hpp"
#include "tests/simulation/device.hpp"
#include "tests/simulation/disk.hpp"
#include "tests/simulation/simulation_oracle.hpp"

namespace cairn::sim {

// What a run has from its beginning to its end.
struct Setup {
  explicit Setup(std::uint64_t seed);
  CacheConfig config;
  TransferSchedulerOptions scheduler;
  BlockManagerOptions manager;
  Device::Options device;
  bool faulty = false;
  Disk::Faults faults;
};

// One life of a server: simulated device and disk, and all that is real above them.
class World {
 public:
  struct Parts {
    Queue& queue;
    Oracle& oracle;
    const Setup& setup;
    CacheConfig config;  // what the setup's is by now
    std::filesystem::path folder;
    // Told of the places of BlockManagerOptions::failpoint.
    std::function<void(std::string_view)> failpoint;
  };
  explicit World(Parts parts);
  // As a server stops.
  ~World();

  Device& device() { return device_; }
  Disk& disk() { return disk_; }
  BlockManager& manager() { return *manager_; }
  Cache& cache() { return *cache_; }
  Clients& clients() { return *clients_; }
  void end_clients();
  // The cache is removed under its clients, and there is an empty one of its name.
  void make_anew(const CacheConfig& config);
  bool started() const { return cache_ != nullptr; }
  // What went for want of room since the last call went from the tail. Where nothing is offloaded:
  // what leaves for a lower tier leaves when its copy is there, in any order.
  void check_evictions();
  // Nobody uses anything, nothing is under way: whether all counts say so.
  void check_at_rest();
  // Of each key that is there, by who reads it. `must`: those that have to be readable.
  void check_all_bytes(const std::set<KeyNumber>& must);

 private:
  void make_cache(const CacheConfig& config);

  const Parts parts_;
  Device device_;
  Disk disk_;
  Logger log_;
  std::unique_ptr<TransferScheduler> scheduler_;
  std::unique_ptr<BlockManager> manager_;
  std::shared_ptr<Cache> cache_;
  std::unique_ptr<Clients> clients_;
  CacheStats before_ = {};  // the last check_evictions()
  // Blocks that nobody held then, and the lives of their slots.
  using Unheld = std::map<KeyNumber, std::uint64_t>;
  Unheld unheld(Tier tier) const;
  std::array<Unheld, kNumTiers> unheld_before_;
};

}  // namespace cairn::sim
