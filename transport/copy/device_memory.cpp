#include "transport/copy/device_memory.hpp"

#include <string>
#include <utility>

namespace cairn {
namespace {

constexpr std::string_view kSlabs = "device_slabs";

std::string name_of(int device_id) { return "device" + std::to_string(device_id); }

// A slab in a block of the device's allocator.
struct SlabBacking final : RegionBacking {
  explicit SlabBacking(CachingAllocator::Buffer taken) : buffer(std::move(taken)) {}
  CachingAllocator::Buffer buffer;
};

Result<Region> make_slab(CachingAllocator& allocator, int device_id, std::uint64_t size_bytes) {
  auto buffer = allocator.allocate(size_bytes);
  if (!buffer) return std::move(buffer).error();
  const Region::Parts parts{.kind = StorageKind::device,
                            .device_id = device_id,
                            .data = buffer->data(),
                            .size_bytes = size_bytes};
  return Region::adopt(parts, std::make_unique<SlabBacking>(std::move(*buffer)));
}

}  // namespace

Result<> DeviceBuffer::record_stream(Stream& stream) {
  if (auto* const of_slab = std::get_if<SlabPool::Buffer>(&buffer_)) {
    of_slab->record_stream(stream);
    return {};
  }
  return std::get<CachingAllocator::Buffer>(buffer_).record_stream(stream);
}

DeviceMemory::OfDevice::OfDevice(DeviceRuntime& runtime, CachingAllocator::Options options)
    : allocator(runtime, options),
      slabs([this, device_id = options.device_id](
                std::uint64_t size_bytes) { return make_slab(allocator, device_id, size_bytes); },
            {.limit_bytes = kSlabLimitBytes}) {}

DeviceMemory::DeviceMemory(DeviceRuntime& runtime, std::uint64_t kept_bytes) {
  for (const DeviceInfo& device : runtime.devices()) {
    by_device_.try_emplace(
        device.id, runtime,
        CachingAllocator::Options{.device_id = device.id, .idle_limit_bytes = kept_bytes});
  }
}

Result<DeviceMemory::OfDevice*> DeviceMemory::of(int device_id) {
  const auto found = by_device_.find(device_id);
  if (found != by_device_.end()) return &found->second;
  return Error{ErrorCode::out_of_range, "there is no device " + std::to_string(device_id)};
}

template <class Allocate>
auto DeviceMemory::with_room(OfDevice& device, Allocate allocate) -> decltype(allocate()) {
  auto made = allocate();
  if (made || made.error().code != ErrorCode::no_capacity) return made;
  device.slabs.trim();
  return allocate();
}

Result<CachingAllocator::Buffer> DeviceMemory::allocate(int device_id, std::uint64_t size_bytes,
                                                        Stream& stream) {
  const auto device = of(device_id);
  if (!device) return device.error();
  return with_room(**device, [&] { return (*device)->allocator.allocate(size_bytes, stream); });
}

Result<DeviceBuffer> DeviceMemory::allocate(int device_id, std::uint64_t size_bytes) {
  const auto device = of(device_id);
  if (!device) return device.error();
  if (size_bytes <= kMostSmallBytes) {
    if (auto small = (*device)->slabs.allocate(size_bytes)) return DeviceBuffer(std::move(*small));
  }
  auto large = (*device)->allocator.allocate(size_bytes);
  if (!large) return std::move(large).error();
  return DeviceBuffer(std::move(*large));
}

Result<Region> DeviceMemory::allocate_whole(std::uint64_t size_bytes,
                                            DeviceRuntime::DeviceOptions options) {
  const auto device = of(options.device_id);
  if (!device) return device.error();
  return with_room(**device, [&] {
    return (*device)->allocator.allocate_whole(size_bytes, options.by_descriptor);
  });
}

void DeviceMemory::end_stream(int device_id, std::unique_ptr<Stream> stream) {
  if (const auto device = of(device_id)) (*device)->allocator.end_stream(std::move(stream));
}

Result<std::uint64_t> DeviceMemory::empty_cache(int device_id) {
  OfDevice& device = by_device_.at(device_id);
  const std::uint64_t before = device.allocator.statistics().reserved_bytes;
  device.slabs.trim();
  CAIRN_TRY(device.allocator.empty_cache());
  const std::uint64_t after = device.allocator.statistics().reserved_bytes;
  return before > after ? before - after : 0;
}

std::vector<NamedAllocator> DeviceMemory::statistics() {
  std::vector<NamedAllocator> all;
  for (auto& [id, device] : by_device_) {
    const std::string number = std::to_string(id);
    all.push_back({name_of(id), number, device.allocator.statistics()});
    all.push_back({.allocator = std::string(kSlabs),
                   .device = number,
                   .now = device.slabs.statistics(),
                   .from_others = true});
  }
  return all;
}

bool DeviceMemory::give_back_cached(std::string_view allocator) {
  bool known = allocator == kSlabs;
  for (auto& [id, device] : by_device_) {
    if (allocator == kSlabs) device.slabs.trim();
    if (name_of(id) != allocator) continue;
    // After an error the device is lost, and its memory with it.
    static_cast<void>(empty_cache(id));
    known = true;
  }
  return known;
}

}  // namespace cairn
