#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "base/result.hpp"
#include "memory/alloc/slab_pool.hpp"

namespace cairn {

// The buffers of one request: allocated one by one or in advance, and freed all at once when the
// request ends, however it ends. Memory that must not fail halfway is preallocated. Not
// thread-safe: one thread at a time works on a request.
class AllocationScope {
 public:
  // Borrows the pool, which must outlive it. `limit_bytes` is the limit of one request.
  AllocationScope(SlabPool& pool, std::uint64_t limit_bytes)
      : pool_(pool), limit_bytes_(limit_bytes) {}
  ~AllocationScope() = default;
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;

  // Memory for the request until release() or the scope's end: the smallest preallocated buffer
  // that is large enough, else from the pool. no_capacity: the limit, which includes preallocated
  // buffers; the pool's errors.
  Result<std::span<std::byte>> allocate(std::uint64_t size_bytes);
  // Room for `count` objects of a type without a destructor; they are not constructed.
  // out_of_range: more than possible; else as above.
  template <class T>
  requires std::is_trivially_destructible_v<T> && std::is_trivially_copyable_v<T>
      Result<std::span<T>> allocate(std::uint64_t count) {
    static_assert(alignof(T) <= SlabPool::kAlignment);
    if (count > SlabPool::kMaxBytes / sizeof(T))
      return too_many({.count = count, .each = sizeof(T)});
    auto bytes = allocate(count * sizeof(T));
    if (!bytes) return std::move(bytes).error();
    pool_.count_typed(count);
    return std::span<T>(reinterpret_cast<T*>(bytes->data()), count);
  }
  struct Buffers {
    std::uint64_t size_bytes = 0;
    std::uint32_t count = 0;
  };
  // Takes buffers from which later allocations of up to that size are served without fail. All or
  // none; errors as allocate().
  Result<> preallocate(Buffers buffers);
  // Makes a buffer available for the request's next allocation. REQUIRES: it came from allocate().
  void release(std::span<std::byte> bytes);
  // Returns all buffers to the pool; the scope can be used again.
  void release_all();

  // For allocated buffers, including rounding.
  std::uint64_t current_bytes() const { return current_bytes_; }
  std::uint64_t peak_bytes() const { return peak_bytes_; }
  // These, and preallocated or released ones.
  std::uint64_t held_bytes() const { return held_bytes_; }

 private:
  struct Objects {
    std::uint64_t count = 0;
    std::uint64_t each = 0;  // bytes
  };
  static Error too_many(const Objects& objects);
  Result<> take_from_pool(std::uint64_t size_bytes);

  SlabPool& pool_;
  const std::uint64_t limit_bytes_;
  std::vector<SlabPool::Buffer> ready_;
  std::vector<SlabPool::Buffer> in_use_;
  std::uint64_t current_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
  std::uint64_t held_bytes_ = 0;
};

}  // namespace cairn
