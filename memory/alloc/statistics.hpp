#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cairn {

// The statistics of every allocator; plain numbers for export. Bytes are those of blocks including
// rounding, so at least the requested ones.
//   reserved = allocated + cached, always
struct AllocatorStatistics {
  std::uint64_t allocated_bytes = 0;  // in use
  std::uint64_t cached_bytes = 0;     // kept for reuse
  std::uint64_t reserved_bytes = 0;   // that the allocator got from its source
  std::uint64_t pending_bytes = 0;    // the part of `cached` that cannot be reused yet
  std::uint64_t peak_allocated_bytes = 0;
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t largest_free_bytes = 0;  // the largest allocation possible without reserving more
  std::uint64_t limit_bytes = 0;  // of reserved bytes; 0: the memory of the machine or device
  std::uint64_t segments = 0;     // pieces in which it was reserved; for slots, tiers

  // Since the start; they never fall. Successful ones: cache_hits + cache_misses, except for slots,
  // which come with their tier and are neither.
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t cache_hits = 0;    // served from cached memory
  std::uint64_t cache_misses = 0;  // had to reserve more
  std::uint64_t retries = 0;       // requests repeated after cached memory was returned
  std::uint64_t splits = 0;
  std::uint64_t merges = 0;
  std::uint64_t typed_allocations = 0;  // for objects of a type
  std::uint64_t typed_objects = 0;      // and their number of objects

  // The share of reusable bytes that the largest allocation cannot get: 0 is one whole piece.
  double fragmentation() const {
    const std::uint64_t reusable_bytes = cached_bytes - pending_bytes;
    if (reusable_bytes == 0) return 0;
    return 1.0 - static_cast<double>(largest_free_bytes) / static_cast<double>(reusable_bytes);
  }
};

// Buffers of one size.
struct BucketStatistics {
  std::uint64_t buffer_bytes = 0;
  std::uint64_t in_use = 0;      // buffers
  std::uint64_t hits = 0;        // of this size, served from here
  std::uint64_t misses = 0;      // not served from here: by a larger bucket, or not at all
  std::uint64_t upgrades = 0;    // buffers moved here from a smaller bucket
  std::uint64_t downgrades = 0;  // or from a larger one
};

// One of the allocators in the service.
struct NamedAllocator {
  std::string allocator;  // one of a few: it is a metric's label
  std::string device;     // its number; "host" or "disk"
  AllocatorStatistics now;
  std::vector<BucketStatistics> buckets = {};  // for allocators with buffers of a few sizes
  // Its bytes also belong to another allocator, or to an engine: a sum over allocators leaves it
  // out.
  bool from_others = false;
};

}  // namespace cairn
