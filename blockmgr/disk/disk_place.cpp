#include "blockmgr/disk/disk_place.hpp"

#include <algorithm>
#include <string>
#include <system_error>

#include "transport/io/slot_file.hpp"

namespace cairn {
namespace {

namespace fs = std::filesystem;

Error impossible(const std::string& path, const std::string& why) {
  return {ErrorCode::impossible, "the disk tier's path \"" + path + "\" " + why};
}

bool lies_within(const fs::path& inner, const fs::path& outer) {
  const auto [at, unused] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return at == outer.end() && inner != outer;
}

// Removes a folder that dropped caches left behind. Returns false if it has files.
bool remove_if_without_files(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> folders = {folder};
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (at->symlink_status(error).type() != fs::file_type::directory) return false;
    folders.push_back(at->path());
  }
  // Inner folders come last in the list. A folder is not removed if it got a file meanwhile, or if
  // a file system is mounted on it.
  for (auto last = folders.rbegin(); !error && last != folders.rend(); ++last) {
    fs::remove(*last, error);
  }
  return !error;
}

}  // namespace

Result<fs::path> prepare_disk_place(const DiskPlace& place) {
  const fs::path relative(place.path);
  if (relative.empty() || relative.is_absolute() || !relative.has_filename() ||
      relative.native().find('\0') != std::string::npos) {
    return impossible(place.path, "is not a file below the data directory");
  }
  if (place.path.find(kBesideSlotFile) != std::string::npos) {
    return impossible(place.path, std::string("must not have a ") + kBesideSlotFile +
                                      ": it marks the files beside a slot file");
  }
  for (const fs::path& part : relative) {
    if (part == ".." || part == ".") return impossible(place.path, "must not have . or ..");
  }
  std::error_code error;
  const auto failed = [&](const std::string& what) {
    return Error{ErrorCode::io_error, what + " for the disk tier: " + error.message()};
  };
  const fs::path root = place.root;
  if (place.check_root) CAIRN_TRY(place.check_root(root));
  fs::create_directories(root, error);
  if (error) return failed("cannot make " + root.string());
  const fs::path real_root = fs::canonical(root, error);
  if (error) return failed("cannot resolve " + root.string());

  // Resolves links before creating folders, so that none is created outside the root.
  const fs::path target = fs::weakly_canonical(real_root / relative, error);
  if (error) return failed("cannot resolve " + (real_root / relative).string());
  if (!lies_within(target, real_root)) {
    return impossible(place.path, "leaves the data directory");
  }
  fs::create_directories(target.parent_path(), error);
  if (error == std::errc::not_a_directory || error == std::errc::file_exists) {
    return impossible(place.path, "lies below a file");
  }
  if (error) return failed("cannot make " + target.parent_path().string());
  if (fs::is_directory(target, error) && !remove_if_without_files(target)) {
    return impossible(place.path, "is a folder with files in it; choose another path");
  }
  return target;
}

std::vector<LabelledFile> find_labelled_files(const fs::path& root) {
  std::vector<LabelledFile> found;
  std::error_code error;
  for (fs::recursive_directory_iterator at(root, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    if (!at->is_regular_file(ignored)) continue;
    if (at->path().filename().native().find(kBesideSlotFile) != std::string::npos) continue;
    auto label = find_slot_file_label(at->path());
    if (!label || !*label) continue;
    found.push_back({.path = at->path().lexically_relative(root).string(),
                     .label = std::move((*label)->label)});
  }
  return found;
}

std::vector<fs::path> remove_unfinished(const fs::path& root) {
  std::error_code error;
  const std::string ending = unfinished_ending();
  std::vector<fs::path> found;
  for (fs::recursive_directory_iterator at(root, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    // A slot file's name has one mark. An index that is being written has two, and is kept.
    if (name.ends_with(ending) && name.find(kBesideSlotFile) + ending.size() == name.size()) {
      found.push_back(at->path());
    }
  }
  std::erase_if(found, [](const fs::path& path) { return !remove_unfinished_file(path); });
  return found;
}

}  // namespace cairn
