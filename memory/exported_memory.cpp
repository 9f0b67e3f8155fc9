#include "memory/exported_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/assert.hpp"
#include "base/file_descriptor.hpp"
#include "memory/mapping.hpp"

namespace cairn {
namespace {

std::string reason(int error_number) { return std::generic_category().message(error_number); }

Error cannot_open(const ExportedMemory& memory, int error_number) {
  const std::string detail = memory.path + " cannot be opened: " + reason(error_number);
  switch (error_number) {
    case ENOENT:
      return {ErrorCode::not_found, detail};
    case EACCES:
    case EPERM:
      return {ErrorCode::forbidden, detail};
    case ELOOP:
    case EISDIR:
    case ENXIO:
      return {ErrorCode::impossible, memory.path + " is no regular file"};
    default:
      return {ErrorCode::io_error, detail};
  }
}

Result<> check_file(const ExportedMemory& memory, const struct stat& file) {
  if (!S_ISREG(file.st_mode)) {
    return Error{ErrorCode::impossible, memory.path + " is no regular file"};
  }
  if (memory.inode != 0 && file.st_ino != memory.inode) {
    return Error{ErrorCode::state_conflict,
                 memory.path + " is inode " + std::to_string(file.st_ino) + ", not " +
                     std::to_string(memory.inode) + ": it was made anew"};
  }
  const auto size_bytes = static_cast<std::uint64_t>(file.st_size);
  if (size_bytes < memory.size_bytes) {
    return Error{ErrorCode::impossible, memory.path + " has " + std::to_string(size_bytes) +
                                            " bytes; size_bytes is " +
                                            std::to_string(memory.size_bytes)};
  }
  return {};
}

// Another process's memory, mapped here. It tells others what it was told.
class ImportedMapping final : public RegionBacking {
 public:
  ImportedMapping(ExportedMemory memory, FileDescriptor file, void* data)
      : memory_(std::move(memory)), file_(std::move(file)), mapping_(data, memory_.size_bytes) {}
  Result<ExportedMemory> share(const Region&) const override { return memory_; }

 private:
  const ExportedMemory memory_;
  const FileDescriptor file_;
  const Mapping mapping_;
};

}  // namespace

bool ExportedMemory::operator==(const ExportedMemory& other) const {
  const auto words = [](const ExportedMemory& memory) {
    return std::tie(memory.kind, memory.path, memory.handle, memory.device_id, memory.inode,
                    memory.offset_bytes, memory.size_bytes);
  };
  return words(*this) == words(other);
}

std::string_view to_string(ExportedMemory::Kind kind) {
  switch (kind) {
    case ExportedMemory::Kind::shm:
      return "shm";
    case ExportedMemory::Kind::file:
      return "file";
    case ExportedMemory::Kind::cuda_ipc:
      return "cuda_ipc";
    case ExportedMemory::Kind::cuda_vmm_fd:
      return "cuda_vmm_fd";
  }
  invariant_broken("ExportedMemory::Kind", "a value outside the enumeration");
}

Result<Region> map_exported_memory(const MapRequest& request) {
  const ExportedMemory& memory = request.memory;
  CAIRN_TRY(check_region_size("imported memory", memory.size_bytes));
  // A pipe must not hold up the one who opens it.
  FileDescriptor file(
      ::open(memory.path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return cannot_open(memory, errno);
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) return cannot_open(memory, errno);
  CAIRN_TRY(check_file(memory, found));
  void* const data =
      ::mmap(nullptr, memory.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) {
    return Error{errno == ENOMEM ? ErrorCode::no_capacity : ErrorCode::io_error,
                 memory.path + " cannot be mapped: " + reason(errno)};
  }
  const Region::Parts parts{.kind = request.kind,
                            .device_id = request.device_id,
                            .fd = file.get(),
                            .data = static_cast<std::byte*>(data),
                            .size_bytes = memory.size_bytes};
  return Region::adopt(parts, std::make_unique<ImportedMapping>(memory, std::move(file), data));
}

// By locks of the open file, which go with it, and which another opening of the same file meets in
// this process too.
Result<> claim_exported_memory(const ExportedMemory& memory, int mapped_fd,
                               std::span<const RegionView::Part> parts) {
  for (const RegionView::Part& part : parts) {
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = static_cast<::off_t>(part.offset_bytes);
    range.l_len = static_cast<::off_t>(part.size_bytes);
    if (::fcntl(mapped_fd, F_OFD_SETLK, &range) == 0) continue;
    if (errno != EAGAIN && errno != EACCES) {
      return Error{ErrorCode::io_error, memory.path + " cannot be locked: " + reason(errno)};
    }
    return Error{ErrorCode::state_conflict, std::to_string(part.size_bytes) + " bytes at " +
                                                std::to_string(part.offset_bytes) + " of " +
                                                memory.path +
                                                " are taken: another tier lies in them"};
  }
  return {};
}

Result<> check_still_exported(const ExportedMemory& memory, int mapped_fd) {
  struct stat mapped {};
  struct stat named {};
  if (::fstat(mapped_fd, &mapped) == 0 && ::lstat(memory.path.c_str(), &named) == 0 &&
      mapped.st_dev == named.st_dev && mapped.st_ino == named.st_ino) {
    return {};
  }
  return Error{ErrorCode::state_conflict,
               memory.path +
                   " is no longer the memory that the cache lies in: whoever exported it "
                   "has removed it or made it anew"};
}

}  // namespace cairn
