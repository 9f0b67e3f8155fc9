#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file_descriptor.hpp"
#include "base/result.hpp"
#include "memory/region.hpp"

namespace cairn {

// How a process describes its memory so that another can map it.
struct ExportedMemory {
  enum class Kind : std::uint8_t {
    shm,   // shared memory, opened by its path: /proc/PID/fd/N, or a file of a memory file system
    file,  // a file, mapped
    cuda_ipc,     // memory of a GPU: the argument of cudaIpcOpenMemHandle
    cuda_vmm_fd,  // memory of a GPU: the argument of cuMemImportFromShareableHandle, in `file`
  };
  Kind kind = Kind::shm;
  std::string path = {};    // shm, file
  std::string handle = {};  // cuda_ipc: kCudaIpcHandleBytes, not hex
  int device_id = -1;       // cuda_ipc: the device, in the exporter's numbers
  // shm, file: the file's inode; 0: unknown. The path may lead to another file meanwhile.
  std::uint64_t inode = 0;
  std::uint64_t offset_bytes = 0;  // where the memory begins in the opened file or memory
  std::uint64_t size_bytes = 0;    // from there on
  // The open file itself, which is passed beside the description (over a Unix socket). Required for
  // cuda_vmm_fd; for shm in addition to the path, or instead of it.
  std::shared_ptr<const FileDescriptor> file = {};

  // Compares the descriptions: two descriptors of one memory cannot be compared.
  bool operator==(const ExportedMemory& other) const;
};
inline constexpr std::size_t kCudaIpcHandleBytes = 64;

std::string_view to_string(ExportedMemory::Kind kind);

// not_found if a memory must be opened by a descriptor and none was passed: a stored description
// has no descriptor.
Result<> check_descriptor_is_here(const ExportedMemory& memory);

// Maps memory that another process exported as `shm` or `file`: memory of `kind`, on `device_id`.
// The last name of the path must be a regular file and no link, as large as described, and with the
// described inode if there is one. If `shm` has a descriptor, it is used instead of the path. It
// must be a memfd, open for reading and writing, with its size sealed against shrinking, because a
// process that truncates it would kill this one. It is opened again, so that claims belong to this
// mapping. not_found: there is no such file; impossible: it is another or too small;
// state_conflict: it was replaced; forbidden: it may not be opened; no_capacity; otherwise
// io_error.
struct MapRequest {
  const ExportedMemory& memory;
  StorageKind kind = StorageKind::pinned;
  int device_id = -1;
};
Result<Region> map_exported_memory(const MapRequest& request);

// Claims bytes of a mapped file for this mapping, until it is destroyed: state_conflict if another
// mapping has them, in this process or another. GPU memory has no locks, so this claims nothing.
Result<> claim_exported_memory(const ExportedMemory& memory, int mapped_fd,
                               std::span<const RegionView::Part> parts);

// Whether these are known to be one memory of a GPU: by the same handle, or by descriptors of one
// opening. False may also mean that the kernel does not say (kcmp(2) may be forbidden).
bool is_known_same(const ExportedMemory& one, const ExportedMemory& other);

// Checks whether the description still leads to the mapped memory: state_conflict if not, because a
// process that opens it now sees other memory. A file is compared by its path or its descriptor.
// For a handle of cuda_ipc the caller compares the descriptions. Two descriptors of GPU memory
// cannot be compared, so they count as different. `mapped_fd`: -1 for memory of a GPU.
Result<> check_still_exported(const ExportedMemory& memory, int mapped_fd);

}  // namespace cairn
