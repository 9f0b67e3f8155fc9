#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "blockmgr/block_manager.hpp"
#include "blockmgr/remote_tier/remote_tiers.hpp"
#include "server/config/cache_catalog.hpp"
#include "server/config/unmade_caches.hpp"

namespace cairn {

// Makes the caches of a starting server: those of its configuration and those it remembers. If a
// cache cannot be made now (disk full, file system not mounted), the others are still made and this
// one is retried. Not thread-safe; use it on the thread that makes and drops caches.
class CacheStart {
 public:
  struct Services {
    BlockManager& manager;
    CacheCatalog& catalog;
    UnmadeCaches& unmade;
    RemoteTiers* shared = nullptr;  // null: there is no shared store
    Logger& log;
  };
  explicit CacheStart(const Services& services) : services_(services) {}

  // Makes all caches. A change made while serving overrides the configuration, unless the
  // configuration was edited since. Returns an error if a configured cache is impossible.
  Result<> make_all(const std::vector<CacheConfig>& configured);
  // Retries what could not be made, resized or written. While attempts fail they get rarer: from
  // every call to every kMaxPause-th. Returns false if nothing is left to do.
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
  std::map<std::string, CacheConfig> wanted_;  // not made yet
  std::map<std::string, Sizes> resizing_;      // the disk tier does not have its size yet
  std::set<std::string> unwritten_;            // the description is not written yet
  std::uint32_t pause_ = 1;
  std::uint32_t waited_ = 0;
};

}  // namespace cairn
