#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "blockmgr/core/cache_core.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {

// The files of a cache's disk tier and of its index. All functions but the first two block on I/O.

std::string disk_path(const CacheConfig& config);  // empty without a disk tier
// Returns true if both are the same path, or one is a folder that contains the other.
bool overlap(const std::filesystem::path& a, const std::filesystem::path& b);

// The folders over which slots are distributed.
std::vector<std::filesystem::path> disk_roots(const BlockManagerOptions& options);

struct DiskTier {
  std::vector<std::filesystem::path> files;
  SlotFile slots;
};
// Opens the slot files, or creates them. Files with more slots than requested keep them. Files with
// fewer keep their size if the disk has no room to grow them. Errors: those of
// DiskOptions::check_folder, prepare_disk_place and open_slot_file.
Result<DiskTier> open_disk_tier(const CacheConfig& config, const CacheServices& services);

// Registers the pinned tier's memory for disk I/O: blocks move to and from disk through it.
std::vector<PreparedMemory> prepare_for_disk(const BlockLayout& pinned, const std::string& cache,
                                             const CacheServices& services);

// Restores the blocks of an earlier run, and starts logging changes. Returns the damage found in
// that run's index.
Result<DiskDamageStats> start_disk_tier(CacheCore& core, bool is_new);

bool checkpoint_disk_tier(CacheCore& core);  // false if it failed, which is logged

// No effect if `files` is empty.
void remove_disk_tier(const std::vector<std::filesystem::path>& files);

// Removes a new disk tier if creating its cache fails, that is, unless keep() is called.
class NewDiskTier {
 public:
  NewDiskTier() = default;
  NewDiskTier(const NewDiskTier&) = delete;
  NewDiskTier& operator=(const NewDiskTier&) = delete;
  ~NewDiskTier() { remove_disk_tier(files_); }
  void made(std::vector<std::filesystem::path> files) { files_ = std::move(files); }
  void keep() { files_.clear(); }

 private:
  std::vector<std::filesystem::path> files_;
};

}  // namespace cairn
