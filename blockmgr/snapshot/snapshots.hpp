#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/cache/cache.hpp"

namespace cairn {

struct CacheServices;

struct SnapshotInfo {
  std::string name;
  std::uint64_t file_bytes = 0;
  std::uint64_t blocks = 0;
  std::int64_t created_unix_ms = 0;
  bool compressed = false;
  std::optional<Error> broken = {};  // set if it cannot be read; all but the name is then 0
};

// The snapshots of caches: files data_dir/snapshots/CACHE/NAME.snapshot with every block of a
// cache, its key, parent, metadata, tiers and priority (blockmgr/snapshot/snapshot_format.hpp).
//
// A snapshot holds the blocks that are in the cache when it begins and still are when their turn
// comes, parents before children. The cache stays in use meanwhile; a few blocks are pinned at a
// time. The file gets its name once every byte is on disk. After a crash, the next start removes
// the unfinished file.
//
// A restore checks every byte of the file before it changes anything. It fills only free slots:
// blocks in the cache stay, and restored blocks are evicted before them. With `replace` it first
// drops all blocks of the cache at once, and the snapshot's take their slots.
//
// Both are transfers: BlockManager::transfer() and related calls report and cancel them.
// Thread-safe. The calls read and write files, so they block.
class Snapshots {
 public:
  explicit Snapshots(std::shared_ptr<CacheServices> services);
  // Cancels the running jobs and waits for them.
  ~Snapshots();

  // out_of_range unless the name is 1 to 64 letters, digits, '.', '_' or '-', and not . or ..
  Result<std::filesystem::path> file_of(std::string_view cache, std::string_view name) const;

  struct MakeRequest {
    std::string name;
    bool compress = false;
  };
  // Errors: state_conflict if the name is taken, or another job of the cache runs; too_many
  // snapshots; no_capacity if the disk has no room; queue_full if too many jobs run.
  Result<TransferId> make(const std::shared_ptr<Cache>& cache, const MakeRequest& request);

  struct RestoreRequest {
    std::filesystem::path file;
    bool partial = false;  // without room for all: loads what fits, whole prefixes
    // Drops the cache's blocks once the file is checked. Before that, an error or a cancellation
    // leaves them; after it, the job can no longer be cancelled.
    bool replace = false;
  };
  // Errors: unknown_snapshot; broken_snapshot; state_conflict for another shape, or if another job
  // of the cache runs; out_of_range for too long metadata; no_capacity; queue_full; with `replace`
  // leased if a lease holds a block.
  Result<TransferId> restore(const std::shared_ptr<Cache>& cache, const RestoreRequest& request);

  // Sorted by name. unknown_cache if there is no snapshot and `cache_exists` is false.
  Result<std::vector<SnapshotInfo>> list(std::string_view cache, bool cache_exists) const;
  // Errors: unknown_snapshot; state_conflict while it is being made or restored.
  Result<> remove(std::string_view cache, std::string_view name);
  // The configuration of the cache that a file was made from.
  Result<CacheConfig> configuration(const std::filesystem::path& file) const;

  // Returns true if it is one of these jobs.
  bool cancel(TransferId id);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
