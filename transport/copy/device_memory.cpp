#include "transport/copy/device_memory.hpp"

#include <string>
#include <utility>

namespace cairn {

DeviceMemory::DeviceMemory(DeviceRuntime& runtime, std::uint64_t kept_bytes) {
  for (const DeviceInfo& device : runtime.devices()) {
    by_device_.try_emplace(
        device.id, runtime,
        CachingAllocator::Options{.device_id = device.id, .idle_limit_bytes = kept_bytes});
  }
}

Result<CachingAllocator*> DeviceMemory::of(int device_id) {
  const auto found = by_device_.find(device_id);
  if (found != by_device_.end()) return &found->second;
  return Error{ErrorCode::out_of_range, "there is no device " + std::to_string(device_id)};
}

Result<CachingAllocator::Buffer> DeviceMemory::allocate(int device_id, std::uint64_t size_bytes,
                                                        Stream& stream) {
  const auto allocator = of(device_id);
  if (!allocator) return allocator.error();
  return (*allocator)->allocate(size_bytes, stream);
}

Result<Region> DeviceMemory::allocate_whole(std::uint64_t size_bytes,
                                            DeviceRuntime::DeviceOptions options) {
  const auto allocator = of(options.device_id);
  if (!allocator) return allocator.error();
  return (*allocator)->allocate_whole(size_bytes, options.by_descriptor);
}

void DeviceMemory::end_stream(int device_id, std::unique_ptr<Stream> stream) {
  if (const auto allocator = of(device_id)) (*allocator)->end_stream(std::move(stream));
}

Result<std::uint64_t> DeviceMemory::empty_cache(int device_id) {
  CachingAllocator& allocator = by_device_.at(device_id);
  const std::uint64_t before = allocator.statistics().reserved_bytes;
  CAIRN_TRY(allocator.empty_cache());
  const std::uint64_t after = allocator.statistics().reserved_bytes;
  return before > after ? before - after : 0;
}

std::vector<NamedAllocator> DeviceMemory::statistics() const {
  std::vector<NamedAllocator> all;
  for (const auto& [id, allocator] : by_device_) {
    all.push_back({"device" + std::to_string(id), std::to_string(id), allocator.statistics()});
  }
  return all;
}

}  // namespace cairn
