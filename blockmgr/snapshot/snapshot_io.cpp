#include "blockmgr/snapshot/snapshot_io.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

#include "base/file_error.hpp"

namespace cairn {
namespace {

// Within what Linux moves in one call.
constexpr std::size_t kMaxCallBytes = 1u << 30;

Error failure(std::string what, int error_number) {
  return {file_error_code(error_number),
          std::move(what) + ": " + std::generic_category().message(error_number)};
}

Error failure(const SnapshotIo::Path& path, std::string_view what, int error_number) {
  return failure(path.string() + " " + std::string(what), error_number);
}

template <class Call>
auto retried(Call call) {
  auto answer = call();
  while (answer < 0 && errno == EINTR) answer = call();
  return answer;
}

}  // namespace

Result<> SnapshotIo::make_folders(const Path& below, const Path& folder) const {
  Path at = below;
  for (const Path& part : folder) {
    const Path parent = at;
    at /= part;
    int error = fails("mkdir");
    if (error == 0 && ::mkdir(at.c_str(), 0700) != 0) error = errno;
    if (error == EEXIST) continue;
    if (error != 0) return failure(at, "cannot be made", error);
    CAIRN_TRY(sync_folder(parent));
  }
  return {};
}

Result<FileDescriptor> SnapshotIo::create(const Path& path) const {
  int error = fails("create");
  if (error == 0) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) return FileDescriptor(fd);
    error = errno;
  }
  return failure(path, "cannot be made", error);
}

Result<std::optional<FileDescriptor>> SnapshotIo::open(const Path& path) const {
  int error = fails("open");
  if (error == 0) {
    // Non-blocking: a pipe at this path must not stop the server.
    FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.get() >= 0) {
      struct ::stat status {};
      if (::fstat(file.get(), &status) != 0) return failure(path, "cannot be examined", errno);
      if (S_ISREG(status.st_mode)) return std::optional<FileDescriptor>(std::move(file));
      return Error{ErrorCode::broken_snapshot, path.string() + " is no regular file"};
    }
    error = errno;
  }
  if (error == ENOENT) return std::optional<FileDescriptor>();
  return failure(path, "cannot be opened", error);
}

Result<std::uint64_t> SnapshotIo::size_bytes(const FileDescriptor& file) const {
  int error = fails("fstat");
  struct ::stat status {};
  if (error == 0 && ::fstat(file.get(), &status) != 0) error = errno;
  if (error != 0) return failure("the snapshot cannot be examined", error);
  return static_cast<std::uint64_t>(status.st_size);
}

Result<> SnapshotIo::append(const FileDescriptor& file, std::span<const std::byte> bytes) const {
  const int injected = fails("write");
  if (injected != 0) bytes = bytes.first(bytes.size() / 2);
  while (!bytes.empty()) {
    const ::ssize_t moved = retried(
        [&] { return ::write(file.get(), bytes.data(), std::min(bytes.size(), kMaxCallBytes)); });
    if (moved <= 0) return failure("the snapshot cannot be written", moved < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(moved));
  }
  if (injected != 0) return failure("the snapshot cannot be written", injected);
  return {};
}

Result<> SnapshotIo::read(const FileDescriptor& file, Piece piece) const {
  if (const int error = fails("read"); error != 0) {
    return failure("the snapshot cannot be read", error);
  }
  while (!piece.room.empty()) {
    const ::ssize_t moved = retried([&] {
      return ::pread(file.get(), piece.room.data(), std::min(piece.room.size(), kMaxCallBytes),
                     static_cast<::off_t>(piece.offset_bytes));
    });
    if (moved < 0) return failure("the snapshot cannot be read", errno);
    if (moved == 0) return Error{ErrorCode::broken_snapshot, "the snapshot was cut off"};
    piece.room = piece.room.subspan(static_cast<std::size_t>(moved));
    piece.offset_bytes += static_cast<std::uint64_t>(moved);
  }
  return {};
}

std::optional<MappedData> SnapshotIo::map(const FileDescriptor& file,
                                          std::uint64_t size_bytes) const {
  if (size_bytes == 0 || fails("mmap") != 0) return std::nullopt;
  auto mapped = MappedData::of(file, size_bytes, {.max_heap_bytes = 0, .counts = mapped_});
  if (!mapped) return std::nullopt;
  return std::move(*mapped);
}

bool SnapshotIo::copy_mapped(const MappedData& mapped, Piece piece) const {
  return fails("copy") == 0 && mapped.copy(piece.offset_bytes, piece.room);
}

Result<> SnapshotIo::sync(const FileDescriptor& file) const {
  int error = fails("fsync");
  if (error == 0 && retried([&] { return ::fsync(file.get()); }) != 0) error = errno;
  if (error != 0) return failure("the snapshot cannot be brought to disk", error);
  // It will not be read soon. Leaves the page cache to others.
  (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

Result<> SnapshotIo::rename(const Path& from, const Path& to) const {
  int error = fails("rename");
  if (error == 0 && ::rename(from.c_str(), to.c_str()) != 0) error = errno;
  if (error != 0) return failure(from, "cannot be renamed", error);
  return {};
}

Result<> SnapshotIo::sync_folder(const Path& folder) const {
  int error = fails("fsync folder");
  if (error == 0) {
    const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (file.get() < 0 || retried([&] { return ::fsync(file.get()); }) != 0) error = errno;
  }
  if (error != 0) return failure(folder, "cannot be brought to disk", error);
  return {};
}

Result<bool> SnapshotIo::remove(const Path& path) const {
  int error = fails("unlink");
  if (error == 0 && ::unlink(path.c_str()) != 0) error = errno;
  if (error == 0) return true;
  if (error == ENOENT) return false;
  return failure(path, "cannot be removed", error);
}

Result<std::uint64_t> SnapshotIo::free_bytes(const Path& folder) const {
  int error = fails("statvfs");
  struct ::statvfs disk {};
  if (error == 0 && ::statvfs(folder.c_str(), &disk) != 0) error = errno;
  if (error != 0) return failure(folder, "cannot be asked for free space", error);
  return std::uint64_t{disk.f_bavail} * disk.f_frsize;
}

Result<std::vector<std::string>> SnapshotIo::names(const Path& folder) const {
  std::error_code error(fails("readdir"), std::generic_category());
  std::vector<std::string> names;
  if (!error) {
    std::filesystem::directory_iterator at(folder, error);
    for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
      names.push_back(at->path().filename().string());
    }
  }
  if (error == std::errc::no_such_file_or_directory) return std::vector<std::string>();
  if (error) return failure(folder, "cannot be listed", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace cairn
