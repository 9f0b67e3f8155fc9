#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "memory/storage_kind.hpp"

namespace cairn {

// The kind of memory at an address, among the memory that the CUDA runtime allocated: a copy takes
// bare addresses, and how it must be issued depends on them. All other memory counts as pageable
// host memory. Thread-safe.
class CudaAddressMap {
 public:
  struct Range {
    const std::byte* begin = nullptr;
    std::uint64_t size_bytes = 0;
    StorageKind kind = StorageKind::system;
    int device_id = -1;
    // Pinned memory is registered in pieces of this size, and no copy may cross from one to the
    // next; otherwise the size of the range.
    std::uint64_t piece_bytes = 0;
  };
  // REQUIRES: overlaps no other range.
  void insert(const Range& range);
  void erase(const std::byte* begin);

  // The memory at an address, and the number of bytes from there that one operation may reach.
  struct Extent {
    StorageKind kind = StorageKind::system;
    int device_id = -1;
    std::uint64_t reach_bytes = 0;         // within one piece
    std::uint64_t to_range_end_bytes = 0;  // within the allocation
  };

  // Looks addresses up, fastest in one of its two latest ranges. Blocks insert() and erase(): keep
  // it for one operation only, and one per thread.
  class Reader {
   public:
    explicit Reader(const CudaAddressMap& map) : map_(map), lock_(map.mutex_) {}
    Extent at(const std::byte* address);

   private:
    const CudaAddressMap& map_;
    std::shared_lock<std::shared_mutex> lock_;
    std::array<std::size_t, 2> latest_{};  // the two sides of a copy alternate
  };

 private:
  mutable std::shared_mutex mutex_;
  std::vector<Range> ranges_;  // by address
};

}  // namespace cairn
