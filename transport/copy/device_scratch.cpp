#include "transport/copy/device_scratch.hpp"

#include <string>
#include <utility>

namespace cairn {

DeviceScratch::DeviceScratch(DeviceRuntime& runtime) {
  for (const DeviceInfo& device : runtime.devices()) {
    by_device_.try_emplace(device.id, runtime, CachingAllocator::Options{.device_id = device.id});
  }
}

Result<CachingAllocator::Buffer> DeviceScratch::allocate(int device_id, std::uint64_t size_bytes,
                                                         Stream& stream) {
  const auto found = by_device_.find(device_id);
  if (found != by_device_.end()) return found->second.allocate(size_bytes, stream);
  return Error{ErrorCode::out_of_range, "there is no device " + std::to_string(device_id)};
}

void DeviceScratch::end_stream(int device_id, std::unique_ptr<Stream> stream) {
  const auto found = by_device_.find(device_id);
  if (found != by_device_.end()) found->second.end_stream(std::move(stream));
}

Result<std::uint64_t> DeviceScratch::empty_cache(int device_id) {
  CachingAllocator& allocator = by_device_.at(device_id);
  const std::uint64_t before = allocator.statistics().reserved_bytes;
  CAIRN_TRY(allocator.empty_cache());
  const std::uint64_t after = allocator.statistics().reserved_bytes;
  return before > after ? before - after : 0;
}

std::vector<NamedAllocator> DeviceScratch::statistics() const {
  std::vector<NamedAllocator> all;
  for (const auto& [id, allocator] : by_device_) {
    all.push_back({"device_scratch", std::to_string(id), allocator.statistics()});
  }
  return all;
}

}  // namespace cairn
