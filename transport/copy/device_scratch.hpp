#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "memory/alloc/caching_allocator.hpp"

namespace cairn {

// Memory on devices that a movement needs for a moment, from one caching allocator a device.
// Thread-safe.
class DeviceScratch {
 public:
  // Borrows the runtime, which must outlive it.
  explicit DeviceScratch(DeviceRuntime& runtime);

  // For work on `stream`, which is of that device; it may be freed as soon as the work is issued.
  // out_of_range for an unknown device; CachingAllocator::allocate's errors.
  Result<CachingAllocator::Buffer> allocate(int device_id, std::uint64_t size_bytes,
                                            Stream& stream);
  // Every stream that memory was allocated for ends here: its memory is then the next one's.
  void end_stream(int device_id, std::unique_ptr<Stream> stream);

  // CachingAllocator::empty_cache(), and how many bytes went back; CachingAllocator::reset_peak().
  // REQUIRES: such a device.
  Result<std::uint64_t> empty_cache(int device_id);
  void reset_peaks(int device_id) { by_device_.at(device_id).reset_peak(); }

  std::vector<NamedAllocator> statistics() const;

 private:
  std::map<int, CachingAllocator> by_device_;  // not changed once made
};

}  // namespace cairn
