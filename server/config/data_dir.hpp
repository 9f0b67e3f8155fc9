#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "base/result.hpp"

namespace cairn {

// A data directory in use by this process. It is locked until this is destroyed.
//
// It has a random name in its file `identity`, which also lists its folders of slot files. Each of
// these has a mark with the owner's name. This detects an empty folder in place of one with blocks
// (a file system that is not mounted, a replaced drive), and a folder of another data directory. A
// moved data directory keeps its name. A copy, if the original still exists, gets a new name and
// does not own the folders outside of it.
//
// open() and check() may be called by any thread, the rest by one at a time.
class DataDir {
 public:
  struct Place {
    std::filesystem::path path;
    bool must_be_known = false;  // fail if it has no identity
  };
  // Creates it if missing. Errors: unavailable if another process uses it, or if it must be known
  // and is not; impossible if it is not a folder or access is denied; no_capacity; io_error.
  static Result<DataDir> open(const Place& place, Logger& log);
  // Checks whether it could be created or used, as far as possible without changing anything.
  // Error: io_error.
  static Result<> check(const std::filesystem::path& path);

  // Call before looking for or creating slot files in a folder. Creates and marks a new folder.
  // Error: unavailable if the folder has lost its mark or belongs to another data directory.
  // `may_be_new` treats a folder without its mark as new.
  struct Folder {
    std::filesystem::path path;
    bool may_be_new = false;
  };
  Result<> use_folder(const Folder& folder);

 private:
  struct Identity {
    std::string name;
    std::filesystem::path path;                       // its last path, absolute
    std::vector<std::filesystem::path> folders = {};  // relative if inside the data directory
  };
  DataDir(const std::filesystem::path& path, Logger& log) : path_(path), log_(&log) {}

  Result<> lock();
  Result<> find_identity();
  bool is_copy_of(const std::filesystem::path& other) const;
  Result<> save(const Identity& identity);
  std::filesystem::path listed(const std::filesystem::path& folder) const;

  std::filesystem::path path_;  // absolute
  Logger* log_;
  FileDescriptor folder_lock_;
  FileDescriptor file_lock_;
  Identity identity_;
  std::string copied_from_;  // the original's name if this is a copy, else empty
  bool takes_name_ = false;  // its name is lost: take it from the first folder's mark
  bool is_saved_ = false;    // if false, folders get no mark: the next start will not know the name
};

}  // namespace cairn
