#pragma once

#include <cstddef>
#include <limits>
#include <new>
#include <vector>

namespace cairn {

// Allocates at least `bytes` bytes, aligned to `alignment`. From 2 MiB on, aligns to huge pages and
// asks the kernel for them. Throws std::bad_alloc.
void* allocate_in_huge_pages(std::size_t bytes, std::size_t alignment);
void free_huge_pages(void* memory) noexcept;

template <class T>
struct HugePageAllocator {
  using value_type = T;
  HugePageAllocator() = default;
  template <class U>
  HugePageAllocator(const HugePageAllocator<U>&) {}

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(allocate_in_huge_pages(count * sizeof(T), alignof(T)));
  }
  void deallocate(T* memory, std::size_t) noexcept { free_huge_pages(memory); }
  friend bool operator==(HugePageAllocator, HugePageAllocator) { return true; }
};

// For tables of hundreds of megabytes with random access. With small pages most reads also miss the
// TLB, which cost 12% of a long match in a cache of a million blocks.
template <class T>
using HugeVector = std::vector<T, HugePageAllocator<T>>;

}  // namespace cairn
