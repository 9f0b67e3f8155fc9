#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cairn {

// What every allocator tells of itself; plain numbers, for whoever exports them. Bytes are those of
// blocks as they were cut, so at least what was asked for.
//   reserved = allocated + cached, always
struct AllocatorStatistics {
  std::uint64_t allocated_bytes = 0;  // in use
  std::uint64_t cached_bytes = 0;     // kept for the next user
  std::uint64_t reserved_bytes = 0;   // had from whoever gives memory to this allocator
  std::uint64_t pending_bytes = 0;    // the part of `cached` that may not be reused yet
  std::uint64_t peak_allocated_bytes = 0;
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t largest_free_bytes = 0;  // what one allocation can get without reserving more
  std::uint64_t limit_bytes = 0;  // of what may be reserved; 0: what the machine or device has
  std::uint64_t segments = 0;     // pieces in which it was reserved; of slots, tiers

  // Since the start; they never go back.
  // That succeeded: cache_hits + cache_misses, but of slots, which come with their tier and are
  // neither.
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t cache_hits = 0;    // served from what was cached
  std::uint64_t cache_misses = 0;  // more had to be reserved
  std::uint64_t retries = 0;       // asked for once more, after what was cached had gone back
  std::uint64_t splits = 0;
  std::uint64_t merges = 0;
  std::uint64_t typed_allocations = 0;  // those that were asked for as objects of a type
  std::uint64_t typed_objects = 0;      // and how many objects they were

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
  std::uint64_t hits = 0;        // of those that belong here, served from here
  std::uint64_t misses = 0;      // not served from here: by a larger bucket, or not at all
  std::uint64_t upgrades = 0;    // buffers that were moved here from a smaller bucket
  std::uint64_t downgrades = 0;  // or from a larger one
};

// One of the allocators that the service uses.
struct NamedAllocator {
  std::string allocator;  // one of few: it is a metric's label
  std::string device;     // its number; "host" or "disk"
  AllocatorStatistics now;
  std::vector<BucketStatistics> buckets = {};  // of those that have buffers of a few sizes
  // Its bytes are another allocator's too, or an engine's: a sum over allocators leaves it out.
  bool from_others = false;
};

}  // namespace cairn
