#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "memory/alloc/caching_allocator.hpp"

namespace cairn {

// The memory of devices that this process has for itself, from one caching allocator a device: for
// a moment, on a stream (scratch memory of movements), and for good (tiers). Thread-safe.
class DeviceMemory {
 public:
  // Borrows the runtime, which must outlive it. `kept_bytes`: of each device, as
  // CachingAllocator::Options::idle_limit_bytes.
  explicit DeviceMemory(DeviceRuntime& runtime, std::uint64_t kept_bytes = 0);

  // For work on `stream`, which is of that device; it may be freed as soon as the work is issued.
  // out_of_range for an unknown device; CachingAllocator::allocate's errors.
  Result<CachingAllocator::Buffer> allocate(int device_id, std::uint64_t size_bytes,
                                            Stream& stream);
  // As CachingAllocator::allocate_whole(), of the device of the options.
  Result<Region> allocate_whole(std::uint64_t size_bytes, DeviceRuntime::DeviceOptions options);
  // Every stream that memory was allocated for ends here: its memory is then the next one's.
  void end_stream(int device_id, std::unique_ptr<Stream> stream);

  // CachingAllocator::empty_cache(), and how many bytes went back; CachingAllocator::reset_peak().
  // REQUIRES: such a device.
  Result<std::uint64_t> empty_cache(int device_id);
  void reset_peaks(int device_id) { by_device_.at(device_id).reset_peak(); }

  std::vector<NamedAllocator> statistics() const;  // "device0", "device1", …

 private:
  Result<CachingAllocator*> of(int device_id);

  std::map<int, CachingAllocator> by_device_;  // not changed once made
};

}  // namespace cairn
