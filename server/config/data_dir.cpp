#include "server/config/data_dir.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace cairn {

Result<> DataDir::check(const std::filesystem::path& path) {
  std::error_code error;
  auto there = std::filesystem::absolute(path, error);
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  const bool is_usable =
      std::filesystem::is_directory(there, error) && ::access(there.c_str(), W_OK | X_OK) == 0;
  if (is_usable) return {};
  return Error{ErrorCode::io_error, "the data directory '" + path.string() +
                                        "' cannot be made or written to: '" + there.string() +
                                        "' is no folder, or not this user's to write to"};
}

Result<DataDir> DataDir::open(const std::filesystem::path& path) {
  const auto failed = [&path](const char* what, const std::error_code& why) {
    std::string detail = "the data directory '" + path.string() + "' ";
    return Error{ErrorCode::io_error, detail.append(what).append(": ").append(why.message())};
  };
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return failed("cannot be made", error);
  const auto file = path / "lock";
  FileDescriptor lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return failed("cannot be written to", {errno, std::generic_category()});
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return Error{ErrorCode::state_conflict, "the data directory '" + path.string() +
                                                  "' is in use by another server (it holds '" +
                                                  file.string() + "')"};
    }
    return failed("cannot be locked", {errno, std::generic_category()});
  }
  return DataDir(std::move(lock));
}

}  // namespace cairn
