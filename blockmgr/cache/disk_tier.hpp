#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "blockmgr/cache/cache_core.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {

// The files of a cache's disk tier and of its index, from their making to their removal. All but
// the first two block on I/O.

std::string disk_path(const CacheConfig& config);  // empty without a disk tier
// One file, however it is written, or one that is a folder of the other.
bool overlap(const std::filesystem::path& a, const std::filesystem::path& b);

// The folders that slots are dealt out over.
std::vector<std::filesystem::path> disk_roots(const BlockManagerOptions& options);

struct DiskTier {
  std::vector<std::filesystem::path> files;
  SlotFile slots;
};
// Finds the slot files, or makes them. Files with more slots than are asked for have those still,
// and files with fewer keep theirs where the disk has no room for more. What
// DiskOptions::check_folder, prepare_disk_place and open_slot_file refuse.
Result<DiskTier> open_disk_tier(const CacheConfig& config, const CacheServices& services);

// The pinned tier is what moves to and from disk.
std::vector<PreparedMemory> prepare_for_disk(const BlockLayout& pinned, const std::string& cache,
                                             const CacheServices& services);

// Gives the blocks back that an earlier run left, and notes what changes from here on. Answers what
// of that run's index was damaged.
Result<DiskDamageStats> start_disk_tier(CacheCore& core, bool is_new);

bool checkpoint_disk_tier(CacheCore& core);  // false where it failed, which is logged

// Of none without a disk tier.
void remove_disk_tier(const std::vector<std::filesystem::path>& files);

// A disk tier that was made goes again where the cache that it was made for does not come to be.
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
