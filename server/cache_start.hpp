#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "blockmgr/block_manager.hpp"
#include "blockmgr/shared/shared_tiers.hpp"
#include "server/config/cache_catalog.hpp"
#include "server/config/unmade_caches.hpp"

namespace cairn {

// The caches that a server begins with: those of its configuration, and those that it remembers.
// One that cannot be made for now (a full disk, a file system that is not mounted) keeps no other
// away: it is tried again. Used by one thread at a time, the one that makes and drops caches.
class CacheStart {
 public:
  struct Services {
    BlockManager& manager;
    CacheCatalog& catalog;
    UnmadeCaches& unmade;
    SharedTiers* shared = nullptr;  // null: there is no shared store
    Logger& log;
  };
  explicit CacheStart(const Services& services) : services_(services) {}

  // What the configuration says is the beginning of a cache; what was changed of it since counts,
  // unless that was edited in the configuration. An error where it asks for what cannot be.
  Result<> make_all(const std::vector<CacheConfig>& configured);
  // Tries again what could not be made, given its size, or written down. The tries become rarer
  // while they fail, from every call to every kMaxPause-th of them.
  // False where nothing is left of that.
  bool retry();
  bool has_work() const;

 private:
  static constexpr std::uint32_t kMaxPause = 30;
  struct Sizes {
    std::uint32_t had_blocks = 0;
    std::uint32_t wanted_blocks = 0;
  };

  Result<> make(const CacheConfig& cache);
  CacheConfig merge(const CacheConfig& wanted,
                    const std::vector<CacheCatalog::Remembered>& remembered);
  void note_unmade(const CacheConfig& cache, Error why);
  bool resize(const std::string& name, const Sizes& sizes);
  bool write(const std::string& name);

  const Services services_;
  std::map<std::string, CacheConfig> wanted_;  // those that are not made
  std::map<std::string, Sizes> resizing_;      // whose disk tier has not got its size
  std::set<std::string> unwritten_;            // whose description is not written
  std::uint32_t pause_ = 1;
  std::uint32_t waited_ = 0;
};

}  // namespace cairn
