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
  std::optional<Error> broken = {};  // it could not be read; all but the name is then 0
};

// The snapshots of caches, in data_dir/snapshots/CACHE/NAME.snapshot: files that hold every block
// of a cache, its key, parent, metadata, tiers and priority
// (blockmgr/snapshot/snapshot_format.hpp).
//
// A snapshot holds the blocks that were there when it began and still are when their turn comes,
// parents before children, whatever goes on in the cache meanwhile; a few blocks are pinned at a
// time. It has its name once every byte is on disk: a crash leaves what the next start removes.
//
// A restore checks every byte of the file before it changes anything. It fills free slots only:
// what is in the cache stays, and what comes back is the first to be evicted again.
//
// Both are movements: BlockManager::transfer() and its like tell of them, and end them.
// Thread-safe; the calls read and write files, and so block.
class Snapshots {
 public:
  explicit Snapshots(std::shared_ptr<CacheServices> services);
  // Ends what runs, and waits for that.
  ~Snapshots();

  // out_of_range unless the name is 1 to 64 letters, digits, '.', '_' or '-', and no path.
  Result<std::filesystem::path> file_of(std::string_view cache, std::string_view name) const;

  struct MakeRequest {
    std::string name;
    bool compress = false;
  };
  // state_conflict where the name is taken, or another job of the cache runs; too_many snapshots;
  // no_capacity where the disk has no room for it; queue_full: too many jobs run.
  Result<TransferId> make(const std::shared_ptr<Cache>& cache, const MakeRequest& request);

  struct RestoreRequest {
    std::filesystem::path file;
    bool partial = false;  // where not all finds room: as much as does, whole prefixes
  };
  // unknown_snapshot; broken_snapshot; state_conflict for another shape, or where another job of
  // the cache runs; no_capacity; queue_full.
  Result<TransferId> restore(const std::shared_ptr<Cache>& cache, const RestoreRequest& request);

  // By name. unknown_cache where there is neither a snapshot nor, with `cache_exists`, a cache.
  Result<std::vector<SnapshotInfo>> list(std::string_view cache, bool cache_exists) const;
  // unknown_snapshot; state_conflict while it is being read.
  Result<> remove(std::string_view cache, std::string_view name);
  // Of the cache that a file was made of.
  Result<CacheConfig> configuration(const std::filesystem::path& file) const;

  // True where it is one of these jobs.
  bool cancel(TransferId id);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
