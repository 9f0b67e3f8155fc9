#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "blockmgr/block_manager.hpp"

namespace cairn {

// The caches with a disk tier, remembered in the data directory (a file each: their whole body and
// its checksum) and once more in the labels of their slot files, so that they are there again at
// the next start. Used by one thread at a time, but for damaged().
class CacheCatalog {
 public:
  // Borrows the manager and the log, which must outlive it.
  CacheCatalog(const std::filesystem::path& data_dir, BlockManager& manager, Logger& log)
      : folder_(data_dir / "caches"), manager_(manager), log_(log) {}

  // By name. A damaged file is made up for by the label of the cache's slot file; where that cannot
  // be had either it is left as it is. Both are logged and counted.
  Result<std::vector<CacheConfig>> remembered();
  // Durable when it returns; what is there already is not written again. Nothing where the cache
  // has no disk tier. REQUIRES: the manager has it.
  Result<> remember(const CacheConfig& cache);
  Result<> forget(const std::string& name);

  // Files that remembered() could not read, or that did not have their checksum.
  std::uint64_t damaged() const { return damaged_.load(std::memory_order_relaxed); }

 private:
  std::filesystem::path file_of(const std::string& name) const {
    return folder_ / (name + ".json");
  }
  Result<CacheConfig> from_slot_file(const std::string& name) const;

  const std::filesystem::path folder_;
  BlockManager& manager_;
  Logger& log_;
  std::atomic<std::uint64_t> damaged_{0};
};

}  // namespace cairn
