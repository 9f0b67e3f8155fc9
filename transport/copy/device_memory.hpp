#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <variant>
#include <vector>

#include "memory/alloc/caching_allocator.hpp"
#include "memory/alloc/slab_pool.hpp"

namespace cairn {

// Device memory that no stream orders: the CPU writes it, or a library does. Freed by the
// destructor, and reused when the recorded stream is done with it. Move-only; not thread-safe.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(SlabPool::Buffer buffer) : buffer_(std::move(buffer)) {}
  explicit DeviceBuffer(CachingAllocator::Buffer buffer) : buffer_(std::move(buffer)) {}

  std::byte* data() const {
    return std::visit([](const auto& buffer) { return buffer.data(); }, buffer_);
  }
  RegionView view() const {
    return std::visit([](const auto& buffer) { return buffer.view(); }, buffer_);
  }
  // Work on `stream`, issued before the buffer is freed, uses it. The stream must outlive the
  // buffer. REQUIRES: no other stream does. Error: too_many streams.
  Result<> record_stream(Stream& stream);

 private:
  std::variant<SlabPool::Buffer, CachingAllocator::Buffer> buffer_;
};

// Device memory of this process, on every runtime: one caching allocator per device, and a pool of
// slabs from it for small buffers. Serves short-lived memory (scratch memory, lists of a stream's
// copies, numbers to reduce) and long-lived memory (tiers). Thread-safe.
class DeviceMemory {
 public:
  // Up to this size, buffers come from slabs: constant time, and no neighbours to merge. That is a
  // list of 85 copies. Longer ones are rare, and differ in size: a slab of 256 KiB for each size
  // would hold far more than is ever in use.
  static constexpr std::uint64_t kMostSmallBytes = 2ull << 10;
  // Of one device's slabs; beyond it, small buffers come from the allocator itself.
  static constexpr std::uint64_t kSlabLimitBytes = 16ull << 20;

  // Borrows the runtime, which must outlive it. `kept_bytes` per device: see
  // CachingAllocator::Options::idle_limit_bytes.
  explicit DeviceMemory(DeviceRuntime& runtime, std::uint64_t kept_bytes = 0);

  // Allocates memory for work on `stream`, which must be of that device. The caller may free it as
  // soon as the work is issued. Errors: out_of_range for an unknown device; those of
  // CachingAllocator::allocate().
  Result<CachingAllocator::Buffer> allocate(int device_id, std::uint64_t size_bytes,
                                            Stream& stream);
  // Memory of no stream. Errors: the same.
  Result<DeviceBuffer> allocate(int device_id, std::uint64_t size_bytes);
  // CachingAllocator::allocate_whole() on the device in `options`.
  Result<Region> allocate_whole(std::uint64_t size_bytes, DeviceRuntime::DeviceOptions options);
  // Ends a stream that memory was allocated for, so that other streams can reuse the memory. Call
  // it for every such stream.
  void end_stream(int device_id, std::unique_ptr<Stream> stream);

  // empty_cache() returns the number of bytes freed. REQUIRES: the device exists.
  Result<std::uint64_t> empty_cache(int device_id);
  void reset_peaks(int device_id) { by_device_.at(device_id).allocator.reset_peak(); }

  // "device0", "device1", … and the slabs of each, "device_slabs".
  std::vector<NamedAllocator> statistics();
  // Empties the cache of the allocator of that name. False if there is none.
  bool give_back_cached(std::string_view allocator);

 private:
  struct OfDevice {
    OfDevice(DeviceRuntime& runtime, CachingAllocator::Options options);
    CachingAllocator allocator;
    SlabPool slabs;  // of its memory
  };
  Result<OfDevice*> of(int device_id);
  // Repeats what failed for lack of memory once the unused slabs are back.
  template <class Allocate>
  static auto with_room(OfDevice& device, Allocate allocate) -> decltype(allocate());

  std::map<int, OfDevice> by_device_;  // constant after construction
};

}  // namespace cairn
