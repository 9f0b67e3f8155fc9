#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>

#include "base/file_descriptor.hpp"
#include "base/file_error.hpp"
#include "memory/mapping.hpp"
#include "memory/region.hpp"

namespace cairn {
namespace {

// Closing the descriptor also releases the lock.
struct OpenFile final : RegionBacking {
  explicit OpenFile(FileDescriptor opened) : file(std::move(opened)) {}
  FileDescriptor file;
};

Error file_error(const std::filesystem::path& path, std::string_view what, int error_number) {
  return Error{file_error_code(error_number), path.string() + ": " + std::string(what) + ": " +
                                                  std::generic_category().message(error_number)};
}

// Repeats a call that a signal may interrupt.
template <class Call>
int retried(Call call) {
  int answer = call();
  while (answer != 0 && errno == EINTR) answer = call();
  return answer;
}

// The rings of a killed process's io_uring release their files when the kernel gets to it. That can
// be after the process has gone (6 ms after one of 25 kills during writes), and its successor must
// not find them in use.
constexpr std::chrono::milliseconds kLockPatience{1'000};
constexpr std::chrono::milliseconds kLockLook{10};

// Returns false if another process has it; a file system without locks counts as locked.
bool locked(int fd) {
  const auto deadline = std::chrono::steady_clock::now() + kLockPatience;
  while (retried([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kLockLook);
  }
  return true;
}

// no_capacity if the file cannot grow to that size. Checked before anything is reserved, because a
// failed reservation may have filled the disk for everyone first.
Result<> check_room(const std::filesystem::path& path, int fd, const struct ::stat& file,
                    std::uint64_t size_bytes) {
  struct ::statvfs disk {};
  if (::fstatvfs(fd, &disk) != 0) return file_error(path, "cannot ask for free space", errno);
  constexpr std::uint64_t kStatBlockBytes = 512;  // the unit of st_blocks, on every disk
  const std::uint64_t held = static_cast<std::uint64_t>(file.st_blocks) * kStatBlockBytes;
  const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (size_bytes <= held || size_bytes - held <= free) return {};
  return Error{ErrorCode::no_capacity,
               path.string() + ": no room for " + std::to_string(size_bytes) + " bytes: it has " +
                   std::to_string(held) + ", and " + std::to_string(free) + " are free"};
}

struct Length {
  ::off_t size_bytes = 0;
  Region::FileRoom room = Region::FileRoom::reserved;
};

// Sets the file's length and, unless it is sparse, reserves its blocks.
Result<> resize(const std::filesystem::path& path, int fd, const Length& wanted) {
  const ::off_t size_bytes = wanted.size_bytes;
  const std::string length = std::to_string(size_bytes) + " bytes";
  if (retried([&] { return ::ftruncate(fd, size_bytes); }) != 0) {
    return file_error(path, "cannot be made " + length + " long", errno);
  }
  if (wanted.room == Region::FileRoom::sparse) return {};
  // Not posix_fallocate: if the file system cannot reserve, that one writes every block instead.
  if (retried([&] { return ::fallocate(fd, 0, 0, size_bytes); }) != 0 && errno != EOPNOTSUPP) {
    return file_error(path, "no room for " + length, errno);
  }
  return {};
}

}  // namespace

Result<Region> Region::disk_file(const std::filesystem::path& path, std::uint64_t size_bytes,
                                 FileRoom room) {
  CAIRN_TRY(check_region_size(path.string(), size_bytes));
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (file.get() < 0) return file_error(path, "cannot be opened", errno);
  const int fd = file.get();
  struct ::stat status {};
  if (::fstat(fd, &status) != 0) return file_error(path, "cannot be examined", errno);
  if (!S_ISREG(status.st_mode)) {
    return Error{ErrorCode::io_error, path.string() + ": is not a regular file"};
  }
  // Locked before anything changes: a second user would overwrite the first one's blocks.
  if (!locked(fd)) {
    return Error{ErrorCode::state_conflict, path.string() + ": is in use by another region"};
  }
  Result<> reserved;
  if (room == FileRoom::reserved) reserved = check_room(path, fd, status, size_bytes);
  if (reserved) reserved = resize(path, fd, {static_cast<::off_t>(size_bytes), room});
  if (!reserved) {
    // Another process took the room: the reservation is undone, the file's own bytes stay.
    [[maybe_unused]] const int undone = ::ftruncate(fd, status.st_size);
  }
  // A file of the right length counts as having its bytes, although it may have holes (a copy, a
  // file system that compresses): on a full disk a write into one of those fails by itself.
  const bool has_length = status.st_size >= static_cast<::off_t>(size_bytes);
  if (!reserved && !(has_length && reserved.error().code == ErrorCode::no_capacity)) {
    return std::move(reserved).error();
  }
  const Parts parts{.kind = StorageKind::disk, .fd = fd, .size_bytes = size_bytes};
  return adopt(parts, std::make_unique<OpenFile>(std::move(file)));
}

Result<RegionView> Region::resize_disk_file(const RegionView& whole, std::uint64_t size_bytes,
                                            FileRoom room) {
  const std::filesystem::path named = "the tier's file";
  CAIRN_TRY(check_region_size(named.string(), size_bytes));
  struct ::stat status {};
  if (::fstat(whole.fd(), &status) != 0) return file_error(named, "cannot be examined", errno);
  if (room == FileRoom::reserved) CAIRN_TRY(check_room(named, whole.fd(), status, size_bytes));
  const Length length{static_cast<::off_t>(size_bytes), room};
  if (auto resized = resize(named, whole.fd(), length); !resized) {
    [[maybe_unused]] const int undone = ::ftruncate(whole.fd(), status.st_size);
    return std::move(resized).error();
  }
  RegionView view = whole;
  view.size_bytes_ = size_bytes;
  return view;
}

}  // namespace cairn
