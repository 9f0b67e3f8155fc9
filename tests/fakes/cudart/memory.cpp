#include "tests/fakes/cudart/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

namespace cairn::fakes {
namespace {

constexpr std::size_t kPageBytes = 4096;
// Like in CUDA, small allocations are cut from larger ones and only have this alignment.
constexpr std::size_t kSmallAlignmentBytes = 512;
constexpr std::size_t kSmallBytes = std::size_t{1} << 20;

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

std::byte* map(std::size_t size_bytes, int access) {
  void* const data = ::mmap(nullptr, size_bytes, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

std::byte* map_file(std::size_t size_bytes, int file) {
  void* const data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

// The content of a handle.
struct ExportedBlock {
  std::uint64_t mark;
  ::pid_t process;
  int file;
  std::size_t size_bytes;
};
constexpr std::uint64_t kBlockMark = 0xCA12'4E19'C0DA'0001;
static_assert(sizeof(ExportedBlock) <= sizeof(cudaIpcMemHandle_t));

}  // namespace

std::size_t device_bytes() {
  static const std::size_t bytes = [] {
    const char* const wanted = std::getenv("CAIRN_FAKE_CUDA_DEVICE_BYTES");
    return wanted == nullptr ? std::size_t{1} << 30 : std::strtoull(wanted, nullptr, 10);
  }();
  return bytes;
}

cudaError_t Memory::allocate(Kind kind, int device, std::size_t size_bytes, void** address) {
  if (address == nullptr || size_bytes == 0) return cudaErrorInvalidValue;
  const std::lock_guard lock(mutex_);
  std::size_t used = 0;
  for (const auto& [begin, range] : ranges_) {
    if (range.kind == kind && range.device == device) used += range.size_bytes;
  }
  const std::size_t most = (kind == Kind::managed ? 32 : 1) * device_bytes();
  if (size_bytes > most - used) return cudaErrorMemoryAllocation;
  const std::size_t skip = size_bytes < kSmallBytes ? kSmallAlignmentBytes : 0;
  const std::size_t mapping_bytes = skip + (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const bool trap = kind == Kind::device;
  Range range{.kind = kind, .device = device, .size_bytes = size_bytes};
  range.mapping_bytes = mapping_bytes;
  range.mapping = map(mapping_bytes, trap ? PROT_NONE : PROT_READ | PROT_WRITE);
  if (trap) {
    range.file = ::memfd_create("fake-device", MFD_CLOEXEC);
    if (range.file < 0 || ::ftruncate(range.file, static_cast<::off_t>(mapping_bytes)) != 0) {
      return cudaErrorMemoryAllocation;
    }
  }
  std::byte* const store = trap ? map_file(mapping_bytes, range.file) : range.mapping;
  if (range.mapping == nullptr || store == nullptr) return cudaErrorMemoryAllocation;
  range.bytes = store + skip;
  std::memset(range.bytes, kStale, size_bytes);
  *address = range.mapping + skip;
  ranges_.emplace(number(*address), range);
  return cudaSuccess;
}

cudaError_t Memory::free(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(number(address));
  if (found == ranges_.end() || found->second.mapping == nullptr) return cudaErrorInvalidValue;
  const Range& range = found->second;
  const auto skip = static_cast<std::size_t>(static_cast<std::byte*>(address) - range.mapping);
  if (range.kind == Kind::device) ::munmap(range.bytes - skip, range.mapping_bytes);
  ::munmap(range.mapping, range.mapping_bytes);
  if (range.file >= 0) ::close(range.file);
  ranges_.erase(found);
  return cudaSuccess;
}

const Memory::Range* Memory::block_at(const void* address) const {
  const auto after = ranges_.upper_bound(number(address));
  for (auto at = after; at != ranges_.end(); ++at) {
    if (at->second.mapping == nullptr) break;
    // The block may begin before the first byte of the allocation.
    const auto begin = number(at->second.mapping);
    if (begin <= number(address) && number(address) < at->first) return &at->second;
    break;
  }
  if (after == ranges_.begin()) return nullptr;
  const auto& [begin, range] = *std::prev(after);
  return number(address) - begin < range.size_bytes ? &range : nullptr;
}

cudaError_t Memory::block_of(const void* address, std::uintptr_t* begin,
                             std::size_t* size_bytes) const {
  const std::lock_guard lock(mutex_);
  const Range* const range = block_at(address);
  if (range == nullptr || range->mapping == nullptr) return cudaErrorInvalidValue;
  *begin = number(range->mapping);
  *size_bytes = range->mapping_bytes;
  return cudaSuccess;
}

cudaError_t Memory::export_block(const void* address, cudaIpcMemHandle_t* handle) const {
  const std::lock_guard lock(mutex_);
  const Range* const range = block_at(address);
  if (range == nullptr || range->file < 0) return cudaErrorInvalidValue;
  const ExportedBlock block{kBlockMark, ::getpid(), range->file, range->mapping_bytes};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &block, sizeof block);
  return cudaSuccess;
}

cudaError_t Memory::open_block(const cudaIpcMemHandle_t& handle, int device, void** address) {
  ExportedBlock block;
  std::memcpy(&block, &handle, sizeof block);
  if (block.mark != kBlockMark) return cudaErrorInvalidValue;
  if (block.process == ::getpid()) return cudaErrorDeviceUninitialized;
  const std::string path =
      "/proc/" + std::to_string(block.process) + "/fd/" + std::to_string(block.file);
  Range range{.kind = Kind::device,
              .device = device,
              .size_bytes = block.size_bytes,
              .mapping_bytes = block.size_bytes,
              .file = ::open(path.c_str(), O_RDWR | O_CLOEXEC)};
  if (range.file < 0) return cudaErrorMapBufferObjectFailed;
  range.mapping = map(block.size_bytes, PROT_NONE);
  range.bytes = map_file(block.size_bytes, range.file);
  if (range.mapping == nullptr || range.bytes == nullptr) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(mutex_);
  *address = range.mapping;
  ranges_.emplace(number(*address), range);
  return cudaSuccess;
}

cudaError_t Memory::add_registration(void* address, std::size_t size_bytes) {
  if (address == nullptr || size_bytes == 0) return cudaErrorInvalidValue;
  const std::lock_guard lock(mutex_);
  if (overlaps(number(address), size_bytes)) return cudaErrorHostMemoryAlreadyRegistered;
  ranges_.emplace(number(address), Range{.kind = Kind::registered,
                                         .size_bytes = size_bytes,
                                         .bytes = static_cast<std::byte*>(address)});
  return cudaSuccess;
}

cudaError_t Memory::remove_registration(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(number(address));
  if (found == ranges_.end() || found->second.kind != Kind::registered) {
    return cudaErrorHostMemoryNotRegistered;
  }
  ranges_.erase(found);
  return cudaSuccess;
}

std::optional<Memory::Side> Memory::find(const void* address, std::size_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t begin = number(address);
  const auto after = ranges_.upper_bound(begin);
  if (after != ranges_.begin()) {
    const auto& [range_begin, range] = *std::prev(after);
    const std::size_t offset = begin - range_begin;
    if (offset < range.size_bytes) {
      if (size_bytes > range.size_bytes - offset) return std::nullopt;
      if (range.reached_by == 0) return std::nullopt;
      return Side{range.kind, range.device, range.bytes + offset, range.reached_by};
    }
  }
  if (after != ranges_.end() && size_bytes > after->first - begin) return std::nullopt;
  return Side{.bytes = const_cast<std::byte*>(static_cast<const std::byte*>(address))};
}

void Memory::add_mapped(void* address, int device, std::size_t size_bytes, std::byte* bytes) {
  const std::lock_guard lock(mutex_);
  ranges_.emplace(number(address), Range{.kind = Kind::device,
                                         .device = device,
                                         .size_bytes = size_bytes,
                                         .bytes = bytes,
                                         .reached_by = 0});
}

bool Memory::set_access(const void* address, std::size_t size_bytes, std::uint64_t devices) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(number(address));
  if (found == ranges_.end() || found->second.size_bytes != size_bytes) return false;
  found->second.reached_by = devices;
  return true;
}

void Memory::remove_mapped(const void* address) {
  const std::lock_guard lock(mutex_);
  ranges_.erase(number(address));
}

std::size_t Memory::alive(Kind kind) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::ranges::count_if(ranges_, [kind](const auto& entry) {
    // VirtualMemory counts the memory that it maps.
    const bool is_own = entry.second.mapping != nullptr || kind == Kind::registered;
    return entry.second.kind == kind && is_own;
  }));
}

bool Memory::overlaps(std::uintptr_t begin, std::size_t size_bytes) const {
  const auto after = ranges_.upper_bound(begin);
  if (after != ranges_.end() && after->first - begin < size_bytes) return true;
  if (after == ranges_.begin()) return false;
  const auto& [before, range] = *std::prev(after);
  return begin - before < range.size_bytes;
}

}  // namespace cairn::fakes
