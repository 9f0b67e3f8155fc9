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

// How one process says where memory of its own lies, so that another can map it.
struct ExportedMemory {
  enum class Kind : std::uint8_t {
    shm,   // shared memory, opened by its path: /proc/PID/fd/N, or a file of a memory file system
    file,  // a file, mapped
    cuda_ipc,     // memory of a GPU: what cudaIpcOpenMemHandle takes
    cuda_vmm_fd,  // memory of a GPU: what cuMemImportFromShareableHandle takes, in `file`
  };
  Kind kind = Kind::shm;
  std::string path = {};    // shm, file
  std::string handle = {};  // cuda_ipc: kCudaIpcHandleBytes, not hex
  int device_id = -1;       // cuda_ipc: whose memory, as the exporter counts
  // shm, file: which file it is; 0: not told. A path may lead to another one meanwhile.
  std::uint64_t inode = 0;
  std::uint64_t offset_bytes = 0;  // where the memory begins in what is opened
  std::uint64_t size_bytes = 0;    // from there on
  // The open file itself, which travels beside what is told in words (a Unix socket carries it):
  // cuda_vmm_fd is nothing without it; shm may have it beside its path, or in its place.
  std::shared_ptr<const FileDescriptor> file = {};

  // What is told in words: two descriptors of one memory cannot be compared.
  bool operator==(const ExportedMemory& other) const;
};
inline constexpr std::size_t kCudaIpcHandleBytes = 64;

std::string_view to_string(ExportedMemory::Kind kind);

// not_found where a memory is to be opened by a descriptor, and none came with it: descriptors are
// not kept by whoever writes down what was told in words.
Result<> check_descriptor_is_here(const ExportedMemory& memory);

// Maps what another process exported as `shm` or `file`: memory of `kind`, on `device_id`. The last
// name of the path must be a regular file and no link, as large as told, and the very one where its
// inode is told. A descriptor, where `shm` has one, leads to it instead of the path: it must be a
// memfd, open for reading and writing, whose size is sealed against shrinking, since whoever cuts
// it off would end this process. It is opened anew, so that claims are this mapping's own.
// not_found: there is no such file; impossible: it is another or too small; state_conflict: it was
// made anew; forbidden: it may not be opened; no_capacity; io_error else.
struct MapRequest {
  const ExportedMemory& memory;
  StorageKind kind = StorageKind::pinned;
  int device_id = -1;
};
Result<Region> map_exported_memory(const MapRequest& request);

// Takes bytes of a mapped file for this mapping, until it goes: state_conflict where they are
// another's, of this process or not. Memory of a GPU has no locks: nothing is taken.
Result<> claim_exported_memory(const ExportedMemory& memory, int mapped_fd,
                               std::span<const RegionView::Part> parts);

// Whether these are known to be one memory of a GPU: by the same handle, or by descriptors of one
// opening. False says nothing where the kernel does not tell (kcmp(2) may be forbidden).
bool is_known_same(const ExportedMemory& one, const ExportedMemory& other);

// Whether what is told still leads to the memory that was mapped: state_conflict where it does not,
// since whoever opens it now sees other memory. A file is compared by its path or its descriptor; a
// handle of cuda_ipc by its words, which is the caller's; two descriptors of a GPU's memory cannot
// be compared at all, so they are taken for different ones. `mapped_fd`: -1 for memory of a GPU.
Result<> check_still_exported(const ExportedMemory& memory, int mapped_fd);

}  // namespace cairn
