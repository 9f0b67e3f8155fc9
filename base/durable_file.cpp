#include "base/durable_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "base/file_error.hpp"

namespace cairn {
namespace {

Error failure(const std::filesystem::path& path, const char* what) {
  const int number = errno;
  return {file_error_code(number),
          path.string() + " cannot be " + what + ": " + std::generic_category().message(number)};
}

class Opened {
 public:
  Opened(const std::filesystem::path& path, int flags) : fd_(::open(path.c_str(), flags, 0600)) {}
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  const int fd_;
};

Result<> flush_folder_of(const std::filesystem::path& path) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const Opened opened(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened.fd() < 0 || ::fsync(opened.fd()) != 0) return failure(folder, "flushed");
  return {};
}

Result<> write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ::ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failure(path, "written");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (::fsync(fd) != 0) return failure(path, "flushed");
  return {};
}

}  // namespace

Result<> write_durably(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const std::filesystem::path beside = path.string() + ".new";
  {
    const Opened opened(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
    if (opened.fd() < 0) return failure(beside, "made");
    if (auto written = write_all(opened.fd(), bytes, beside); !written) {
      ::unlink(beside.c_str());
      return written;
    }
  }
  return rename_durably(beside, path);
}

Result<> rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return failure(from, "renamed");
  return flush_folder_of(to);
}

Result<> remove_durably(const std::filesystem::path& path) {
  if (::unlink(path.c_str()) != 0) {
    if (errno == ENOENT) return {};
    return failure(path, "removed");
  }
  return flush_folder_of(path);
}

}  // namespace cairn
