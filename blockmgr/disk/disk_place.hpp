#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "transport/io/slot_file_label.hpp"

namespace cairn {

// Where the disk tier of a cache lies: root/path. Makes the folders above it, and removes folders
// without a file that lie there. impossible where `path` is absolute, empty, has ".." or
// kBesideSlotFile, is a folder with files in it, or leaves the root through a link; io_error.
struct DiskPlace {
  std::filesystem::path root;
  std::string path;
  // Asked before anything is made; what it refuses is refused.
  std::function<Result<>(const std::filesystem::path& root)> check_root = {};
};
Result<std::filesystem::path> prepare_disk_place(const DiskPlace& place);

// A slot file below such a root, and what its label says.
struct LabelledFile {
  std::string path;  // relative to the root
  SlotFileLabel label;
};
std::vector<LabelledFile> find_labelled_files(const std::filesystem::path& root);

// Removes what a killed server left below such a root of slot files that it had not finished; they
// hold the room of whole ones. Nobody has those open, and nothing else is touched. Their paths.
std::vector<std::filesystem::path> remove_unfinished(const std::filesystem::path& root);

}  // namespace cairn
