#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "memory/alloc/caching_allocator.hpp"

namespace cairn {

// Device memory of this process, one caching allocator per device. Serves short-lived memory on a
// stream (scratch memory) and long-lived memory (tiers). Thread-safe.
class DeviceMemory {
 public:
  // Borrows the runtime, which must outlive it. `kept_bytes` per device: see
  // CachingAllocator::Options::idle_limit_bytes.
  explicit DeviceMemory(DeviceRuntime& runtime, std::uint64_t kept_bytes = 0);

  // Allocates memory for work on `stream`, which must be of that device. The caller may free it as
  // soon as the work is issued. Errors: out_of_range for an unknown device; those of
  // CachingAllocator::allocate().
  Result<CachingAllocator::Buffer> allocate(int device_id, std::uint64_t size_bytes,
                                            Stream& stream);
  // CachingAllocator::allocate_whole() on the device in `options`.
  Result<Region> allocate_whole(std::uint64_t size_bytes, DeviceRuntime::DeviceOptions options);
  // Ends a stream that memory was allocated for, so that other streams can reuse the memory. Call
  // it for every such stream.
  void end_stream(int device_id, std::unique_ptr<Stream> stream);

  // empty_cache() returns the number of bytes freed. REQUIRES: the device exists.
  Result<std::uint64_t> empty_cache(int device_id);
  void reset_peaks(int device_id) { by_device_.at(device_id).reset_peak(); }

  std::vector<NamedAllocator> statistics() const;  // "device0", "device1", …

 private:
  Result<CachingAllocator*> of(int device_id);

  std::map<int, CachingAllocator> by_device_;  // constant after construction
};

}  // namespace cairn
