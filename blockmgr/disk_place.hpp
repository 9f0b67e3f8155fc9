#pragma once

#include <filesystem>
#include <string>

#include "base/result.hpp"

namespace cairn {

// Where the disk tier of a cache lies: root/path. Makes the folders above it. impossible where
// `path` is absolute, empty, has ".." or kBesideSlotFile, is a folder, or leaves the root through a
// link; io_error.
struct DiskPlace {
  std::filesystem::path root;
  std::string path;
};
Result<std::filesystem::path> prepare_disk_place(const DiskPlace& place);

}  // namespace cairn
