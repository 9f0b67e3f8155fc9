#include "base/huge_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace cairn {
namespace {

constexpr std::size_t kHugePageBytes = 2u << 20;

}  // namespace

void* allocate_in_huge_pages(std::size_t bytes, std::size_t alignment) {
  const bool huge = bytes >= kHugePageBytes;
  const std::size_t unit =
      huge ? std::max(alignment, kHugePageBytes) : std::max(alignment, alignof(std::max_align_t));
  if (bytes > std::numeric_limits<std::size_t>::max() - unit) throw std::bad_alloc();
  const std::size_t rounded = std::max(unit, (bytes + unit - 1) / unit * unit);
  void* memory = std::aligned_alloc(unit, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  if (huge) ::madvise(memory, rounded, MADV_HUGEPAGE);  // only a hint
  return memory;
}

void free_huge_pages(void* memory) noexcept { std::free(memory); }

}  // namespace cairn
