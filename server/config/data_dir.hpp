#pragma once

#include <filesystem>

#include "base/result.hpp"
#include "server/http/file_descriptor.hpp"

namespace cairn {

// A data directory in use by this process: locked until this is destroyed.
class DataDir {
 public:
  // Makes it where it is missing. state_conflict where another process has it; io_error.
  static Result<DataDir> open(const std::filesystem::path& path);

 private:
  explicit DataDir(http::FileDescriptor lock) : lock_(std::move(lock)) {}
  http::FileDescriptor lock_;
};

}  // namespace cairn
