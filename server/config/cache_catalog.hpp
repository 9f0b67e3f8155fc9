#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "blockmgr/config.hpp"

namespace cairn {

// The caches with a disk tier, remembered in the data directory (a file each, their whole body) so
// that they are there again at the next start. Used by one thread at a time.
class CacheCatalog {
 public:
  explicit CacheCatalog(const std::filesystem::path& data_dir) : folder_(data_dir / "caches") {}

  // By name. What cannot be read is told to the log and left as it is.
  Result<std::vector<CacheConfig>> remembered(Logger& log) const;
  // Durable when it returns. Nothing where the cache has no disk tier.
  Result<> remember(const CacheConfig& cache) const;
  Result<> forget(const std::string& name) const;

 private:
  std::filesystem::path file_of(const std::string& name) const {
    return folder_ / (name + ".json");
  }
  const std::filesystem::path folder_;
};

}  // namespace cairn
