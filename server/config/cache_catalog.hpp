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

// Remembers the caches that have a disk tier or are in the configuration, so that the next start
// makes them as they were last changed. Each has a file in the data directory: its body, its body
// in the configuration at that time, and a checksum. The label of its slot file holds a copy of its
// body. Not thread-safe, except damaged().
class CacheCatalog {
 public:
  // Borrows the manager and the log; both must outlive it.
  CacheCatalog(const std::filesystem::path& data_dir, BlockManager& manager, Logger& log)
      : folder_(data_dir / "caches"), manager_(manager), log_(log) {}

  struct Remembered {
    CacheConfig cache;
    // Its body in the configuration at that time; null if not named there, nullopt if unknown.
    std::optional<json> configured;
  };
  // Returns the caches, sorted by name. A damaged file is rebuilt from the label of the cache's
  // slot file. If this fails, the file stays and the cache is skipped. Both are logged and counted.
  Result<std::vector<Remembered>> remembered();
  // Sets the cache's body in the configuration; remember() stores it from now on.
  void configure(const CacheConfig& cache);
  // Stores the cache durably; skips the write if nothing changed. Does nothing if the cache has no
  // disk tier and is not configured. After an error, the previous content stays. REQUIRES: the
  // manager has the cache.
  Result<> remember(const CacheConfig& cache);
  Result<> forget(const std::string& name);

  // The number of files that remembered() could not read or whose checksum did not match.
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
