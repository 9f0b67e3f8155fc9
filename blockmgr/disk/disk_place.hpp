#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "transport/io/slot_file_label.hpp"

namespace cairn {

// The place of a cache's disk tier: root/path. prepare_disk_place() creates the folders above it,
// and removes folders without files at the path itself. Errors: impossible if `path` is absolute or
// empty, contains "..", "." or kBesideSlotFile, lies below a file, is a folder with files in it, or
// leaves the root through a link; io_error; those of check_root.
struct DiskPlace {
  std::filesystem::path root;
  std::string path;
  // Called before anything is created. An error refuses the place.
  std::function<Result<>(const std::filesystem::path& root)> check_root = {};
};
Result<std::filesystem::path> prepare_disk_place(const DiskPlace& place);

// A slot file below a root, and its label.
struct LabelledFile {
  std::string path;  // relative to the root
  SlotFileLabel label;
};
std::vector<LabelledFile> find_labelled_files(const std::filesystem::path& root);

// Removes unfinished slot files that a killed server left below a root; they take the space of
// finished ones. Keeps files that a server is still making, and everything else. Returns the paths
// removed.
std::vector<std::filesystem::path> remove_unfinished(const std::filesystem::path& root);

}  // namespace cairn
