#include "memory/exported_memory.hpp"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
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

// Its name in errors.
std::string name_of(const ExportedMemory& memory) {
  return memory.path.empty() ? "the file of the descriptor" : memory.path;
}

Error cannot_open(const ExportedMemory& memory, int error_number) {
  const std::string detail = name_of(memory) + " cannot be opened: " + reason(error_number);
  switch (error_number) {
    case ENOENT:
      return {ErrorCode::not_found, detail};
    case EACCES:
    case EPERM:
      return {ErrorCode::forbidden, detail};
    case ELOOP:
    case EISDIR:
    case ENXIO:
      return {ErrorCode::impossible, name_of(memory) + " is no regular file"};
    default:
      return {ErrorCode::io_error, detail};
  }
}

Result<> check_file(const ExportedMemory& memory, const struct stat& file) {
  if (!S_ISREG(file.st_mode)) {
    return Error{ErrorCode::impossible, name_of(memory) + " is no regular file"};
  }
  if (memory.inode != 0 && file.st_ino != memory.inode) {
    return Error{ErrorCode::state_conflict,
                 name_of(memory) + " is inode " + std::to_string(file.st_ino) + ", not " +
                     std::to_string(memory.inode) + ": it was made anew"};
  }
  const auto size_bytes = static_cast<std::uint64_t>(file.st_size);
  if (size_bytes < memory.size_bytes) {
    return Error{ErrorCode::impossible, name_of(memory) + " has " + std::to_string(size_bytes) +
                                            " bytes; size_bytes is " +
                                            std::to_string(memory.size_bytes)};
  }
  return {};
}

// Opens the file at the path. A pipe must not block the caller.
Result<FileDescriptor> open_path(const ExportedMemory& memory) {
  FileDescriptor file(
      ::open(memory.path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0) return cannot_open(memory, errno);
  CAIRN_TRY(check_file(memory, found));
  return file;
}

// Nobody may be able to truncate the bytes under this process, which would kill it at the next
// touch. Only memory files have seals; a memory file of huge pages can still lose bytes, by a hole.
Result<> check_stays(const FileDescriptor& file) {
  struct statfs where {};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || ::fstatfs(file.get(), &where) != 0 || where.f_type != TMPFS_MAGIC) {
    return Error{ErrorCode::impossible,
                 "the descriptor is none of memfd_create (without MFD_HUGETLB): a file is imported "
                 "by its path"};
  }
  if ((seals & F_SEAL_SHRINK) == 0) {
    return Error{ErrorCode::impossible,
                 "the memory of the descriptor can be cut off: seal it with F_SEAL_SHRINK"};
  }
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return Error{ErrorCode::impossible,
                 "the memory of the descriptor is sealed against writing: leave out F_SEAL_WRITE "
                 "and F_SEAL_FUTURE_WRITE"};
  }
  return {};
}

// Opens the descriptor's file again: locks belong to an opening, and the client shares its own. It
// must be open for both reading and writing, so that the client gains no rights through this
// process.
Result<FileDescriptor> open_given(const ExportedMemory& memory) {
  const FileDescriptor& given = *memory.file;
  struct stat found {};
  if (::fstat(given.get(), &found) != 0) return cannot_open(memory, errno);
  CAIRN_TRY(check_file(memory, found));
  const int flags = ::fcntl(given.get(), F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) != O_RDWR) {
    return Error{ErrorCode::impossible, "the descriptor is not open for reading and writing"};
  }
  CAIRN_TRY(check_stays(given));
  const std::string path = "/proc/self/fd/" + std::to_string(given.get());
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return cannot_open(memory, errno);
  return file;
}

Result<FileDescriptor> open_memory(const ExportedMemory& memory) {
  if (memory.kind == ExportedMemory::Kind::shm) {
    CAIRN_TRY(check_descriptor_is_here(memory));
    return memory.file ? open_given(memory) : open_path(memory);
  }
  if (memory.kind != ExportedMemory::Kind::file) {
    return Error{ErrorCode::impossible, "memory of a GPU is not mapped as a file"};
  }
  if (!memory.file) return open_path(memory);
  return Error{ErrorCode::impossible, "a file is imported by its path, not by a descriptor"};
}

bool is_on_gpu(ExportedMemory::Kind kind) {
  return kind == ExportedMemory::Kind::cuda_ipc || kind == ExportedMemory::Kind::cuda_vmm_fd;
}

bool is_same_file(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// Another process's memory, mapped here. share() returns the description it was made from.
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

Result<> check_descriptor_is_here(const ExportedMemory& memory) {
  const bool by_descriptor = memory.kind == ExportedMemory::Kind::cuda_vmm_fd ||
                             (memory.kind == ExportedMemory::Kind::shm && memory.path.empty());
  if (!by_descriptor || (memory.file && *memory.file)) return {};
  return Error{ErrorCode::not_found,
               "the descriptor of this memory is not here: it is passed over the Unix socket with "
               "each request"};
}

Result<Region> map_exported_memory(const MapRequest& request) {
  const ExportedMemory& memory = request.memory;
  CAIRN_TRY(check_region_size("imported memory", memory.size_bytes));
  auto file = open_memory(memory);
  if (!file) return std::move(file).error();
  void* const data =
      ::mmap(nullptr, memory.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
  if (data == MAP_FAILED) {
    return Error{errno == ENOMEM ? ErrorCode::no_capacity : ErrorCode::io_error,
                 name_of(memory) + " cannot be mapped: " + reason(errno)};
  }
  const Region::Parts parts{.kind = request.kind,
                            .device_id = request.device_id,
                            .fd = file->get(),
                            .data = static_cast<std::byte*>(data),
                            .size_bytes = memory.size_bytes};
  return Region::adopt(parts, std::make_unique<ImportedMapping>(memory, std::move(*file), data));
}

// By locks of the open file, which end with it, and which conflict with another opening of the same
// file also in this process.
Result<> claim_exported_memory(const ExportedMemory& memory, int mapped_fd,
                               std::span<const RegionView::Part> parts) {
  if (is_on_gpu(memory.kind)) return {};
  for (const RegionView::Part& part : parts) {
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = static_cast<::off_t>(part.offset_bytes);
    range.l_len = static_cast<::off_t>(part.size_bytes);
    if (::fcntl(mapped_fd, F_OFD_SETLK, &range) == 0) continue;
    if (errno != EAGAIN && errno != EACCES) {
      return Error{ErrorCode::io_error, name_of(memory) + " cannot be locked: " + reason(errno)};
    }
    return Error{ErrorCode::state_conflict, std::to_string(part.size_bytes) + " bytes at " +
                                                std::to_string(part.offset_bytes) + " of " +
                                                name_of(memory) +
                                                " are taken: another tier or agent lies in them"};
  }
  return {};
}

bool is_known_same(const ExportedMemory& one, const ExportedMemory& other) {
  if (one.kind != other.kind) return false;
  if (one.kind == ExportedMemory::Kind::cuda_ipc) return one.handle == other.handle;
  if (one.kind != ExportedMemory::Kind::cuda_vmm_fd || !one.file || !other.file) return false;
  const ::pid_t self = ::getpid();
  return ::syscall(SYS_kcmp, self, self, KCMP_FILE, one.file->get(), other.file->get()) == 0;
}

Result<> check_still_exported(const ExportedMemory& memory, int mapped_fd) {
  if (memory.kind == ExportedMemory::Kind::cuda_ipc) return {};
  CAIRN_TRY(check_descriptor_is_here(memory));
  if (memory.kind == ExportedMemory::Kind::cuda_vmm_fd) {
    return Error{ErrorCode::state_conflict,
                 "nobody can tell whether two descriptors of a GPU's memory lead to the same one: "
                 "drop the cache first"};
  }
  struct stat mapped {};
  struct stat named {};
  const int found =
      memory.file ? ::fstat(memory.file->get(), &named) : ::lstat(memory.path.c_str(), &named);
  if (found == 0 && ::fstat(mapped_fd, &mapped) == 0 && is_same_file(mapped, named)) return {};
  return Error{ErrorCode::state_conflict,
               name_of(memory) +
                   " is no longer the memory that the cache lies in: whoever exported it "
                   "has removed it or made it anew"};
}

}  // namespace cairn
