#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "blockmgr/block_manager.hpp"
#include "server/codec/document.hpp"

namespace cairn {

// The caches with a disk tier and those of the configuration, remembered in the data directory (a
// file each: their whole body, what the configuration said of them then, and a checksum) and once
// more in the labels of their slot files, so that they are there again at the next start as they
// were changed. Used by one thread at a time, but for damaged().
class CacheCatalog {
 public:
  // Borrows the manager and the log, which must outlive it.
  CacheCatalog(const std::filesystem::path& data_dir, BlockManager& manager, Logger& log)
      : folder_(data_dir / "caches"), manager_(manager), log_(log) {}

  struct Remembered {
    CacheConfig cache;
    // What the configuration said of it, null where it did not name it; nothing: that is unknown.
    std::optional<json> configured;
  };
  // By name. A damaged file is made up for by the label of the cache's slot file; where that cannot
  // be had either it is left as it is. Both are logged and counted.
  Result<std::vector<Remembered>> remembered();
  // What the configuration says of that cache; kept beside what is remembered of it from now on.
  void configure(const CacheConfig& cache);
  // Durable when it returns; what is there already is not written again. Nothing where the cache
  // has no disk tier and the configuration does not name it. What was remembered stays after an
  // error. REQUIRES: the manager has it.
  Result<> remember(const CacheConfig& cache);
  Result<> forget(const std::string& name);

  // Files that remembered() could not read, or that did not have their checksum.
  std::uint64_t damaged() const { return damaged_.load(std::memory_order_relaxed); }

 private:
  std::filesystem::path file_of(const std::string& name) const {
    return folder_ / (name + ".json");
  }
  Result<CacheConfig> read_body(json body, const std::string& name) const;
  Result<Remembered> read_file(const std::string& name) const;
  Result<CacheConfig> from_slot_file(const std::string& name) const;

  const std::filesystem::path folder_;
  BlockManager& manager_;
  Logger& log_;
  std::map<std::string, json> configured_;
  std::atomic<std::uint64_t> damaged_{0};
};

}  // namespace cairn
