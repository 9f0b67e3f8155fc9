#pragma once

#include <filesystem>
#include <string>

#include "base/result.hpp"

namespace cairn {

// Where the disk tier of a cache lies: data_dir/disk/path. Makes the folders above it and removes
// a file that an earlier run left there. impossible where `path` is absolute, empty, has "..", is
// a folder, or leaves the data directory through a link; io_error.
struct DiskPlace {
  std::filesystem::path data_dir;
  std::string path;
};
Result<std::filesystem::path> prepare_disk_place(const DiskPlace& place);

}  // namespace cairn
