#include "tests/fakes/cudart/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace cairn::fakes {
namespace {

constexpr std::size_t kPageBytes = 4096;
// As CUDA does, small allocations are cut from larger ones and aligned to this only.
constexpr std::size_t kSmallAlignmentBytes = 512;
constexpr std::size_t kSmallBytes = std::size_t{1} << 20;
// New memory holds whatever was there before, never zeros.
constexpr int kStale = 0xA5;

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

std::byte* map(std::size_t size_bytes, int access) {
  void* const data = ::mmap(nullptr, size_bytes, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

}  // namespace

cudaError_t Memory::allocate(Kind kind, int device, std::size_t size_bytes, void** address) {
  if (address == nullptr || size_bytes == 0) return cudaErrorInvalidValue;
  const std::lock_guard lock(mutex_);
  std::size_t used = 0;
  for (const auto& [begin, range] : ranges_) {
    if (range.kind == kind && range.device == device) used += range.size_bytes;
  }
  if (size_bytes > kDeviceBytes - used) return cudaErrorMemoryAllocation;
  const std::size_t skip = size_bytes < kSmallBytes ? kSmallAlignmentBytes : 0;
  const std::size_t mapping_bytes = skip + (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const bool trap = kind == Kind::device;
  Range range{.kind = kind, .device = device, .size_bytes = size_bytes};
  range.mapping_bytes = mapping_bytes;
  range.mapping = map(mapping_bytes, trap ? PROT_NONE : PROT_READ | PROT_WRITE);
  std::byte* const store = trap ? map(mapping_bytes, PROT_READ | PROT_WRITE) : range.mapping;
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
  ranges_.erase(found);
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
      return Side{range.kind, range.device, range.bytes + offset};
    }
  }
  if (after != ranges_.end() && size_bytes > after->first - begin) return std::nullopt;
  return Side{.bytes = const_cast<std::byte*>(static_cast<const std::byte*>(address))};
}

std::size_t Memory::alive(Kind kind) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::ranges::count_if(
      ranges_, [kind](const auto& entry) { return entry.second.kind == kind; }));
}

bool Memory::overlaps(std::uintptr_t begin, std::size_t size_bytes) const {
  const auto after = ranges_.upper_bound(begin);
  if (after != ranges_.end() && after->first - begin < size_bytes) return true;
  if (after == ranges_.begin()) return false;
  const auto& [before, range] = *std::prev(after);
  return begin - before < range.size_bytes;
}

}  // namespace cairn::fakes
