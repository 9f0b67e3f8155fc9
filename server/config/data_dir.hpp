#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "base/result.hpp"

namespace cairn {

// A data directory in use by this process: locked until this is destroyed.
//
// It has a name of its own, in its file `identity`, and so does each folder of slot files that it
// uses, in a mark: whose it is. `identity` lists those folders. So an empty folder in the place of
// one with blocks (a file system that is not mounted, a drive that was replaced) is told from a new
// one, and so is a folder of another data directory. One that was moved goes on; one that was
// copied, while the other is still there, gets a name of its own, and has no part of the folders
// that lie outside of it.
//
// open() and check() may be called by anybody, the rest by one thread at a time.
class DataDir {
 public:
  struct Place {
    std::filesystem::path path;
    bool must_be_known = false;  // one without an identity is not made
  };
  // Makes it where it is missing. unavailable where another process has it, or it must be known and
  // is not; impossible where it is no folder or may not be used; no_capacity; io_error.
  static Result<DataDir> open(const Place& place, Logger& log);
  // Whether it could be made or used, as far as that is told without touching it. io_error.
  static Result<> check(const std::filesystem::path& path);

  // Before slot files in a folder are looked for or made: makes it and marks it where it is new.
  // unavailable where it is not the folder that it was, or is another data directory's.
  // `may_be_new`: a folder that has lost its mark is taken for a new one.
  struct Folder {
    std::filesystem::path path;
    bool may_be_new = false;
  };
  Result<> use_folder(const Folder& folder);

 private:
  struct Identity {
    std::string name;
    std::filesystem::path path;                       // where it was, absolute
    std::vector<std::filesystem::path> folders = {};  // those within it relative to it
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
  std::string copied_from_;  // the name of the one that this is a copy of; empty: of none
  bool takes_name_ = false;  // the first folder's, as its own is lost
  bool is_saved_ = false;    // a name that the next start would not know marks no folder
};

}  // namespace cairn
