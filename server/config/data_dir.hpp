#pragma once

#include <filesystem>

#include "base/file_descriptor.hpp"
#include "base/result.hpp"

namespace cairn {

// A data directory in use by this process: locked until this is destroyed.
class DataDir {
 public:
  // Makes it where it is missing. state_conflict where another process has it; io_error.
  static Result<DataDir> open(const std::filesystem::path& path);
  // Whether it could be made or used, as far as that is told without touching it. io_error.
  static Result<> check(const std::filesystem::path& path);

 private:
  explicit DataDir(FileDescriptor lock) : lock_(std::move(lock)) {}
  FileDescriptor lock_;
};

}  // namespace cairn
