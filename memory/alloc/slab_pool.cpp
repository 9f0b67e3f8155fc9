#include "memory/alloc/slab_pool.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "base/assert.hpp"

namespace cairn {

// A class is a doubling and one of the four quarters up to the next: 256, 320, 384, 448, 512, 640,
// …
std::size_t SlabPool::class_of(std::uint64_t size_bytes) {
  if (size_bytes <= kLeastBytes) return 0;
  // Of the last byte, so that a size equal to a class is in it.
  const std::uint64_t last = size_bytes - 1;
  const auto doubling = static_cast<std::size_t>(std::bit_width(last) - 1);
  const auto quarter = static_cast<std::size_t>(last >> (doubling - 2)) & 3;
  constexpr auto kFirst = static_cast<std::size_t>(std::bit_width(kLeastBytes) - 1);
  return (doubling - kFirst) * 4 + quarter + 1;
}

std::uint64_t SlabPool::class_bytes(std::uint64_t size_bytes) {
  if (size_bytes <= kLeastBytes) return kLeastBytes;
  const std::uint64_t quarter_bytes = std::bit_floor(size_bytes - 1) / 4;
  return (size_bytes + quarter_bytes - 1) / quarter_bytes * quarter_bytes;
}

SlabPool::SlabPool(Source source, Options options)
    : options_(options), source_(std::move(source)) {}

SlabPool::~SlabPool() {
  MutexLock lock(mutex_);
  for (Pending& one : pending_) {
    if (one.event != nullptr) static_cast<void>(one.event->wait());
  }
  CAIRN_ASSERT(counts_.allocated_bytes == 0, "memory would be freed under its user");
}

Result<SlabPool::Buffer> SlabPool::allocate(std::uint64_t size_bytes) {
  if (size_bytes == 0 || size_bytes > kMaxBytes) {
    return Error{ErrorCode::out_of_range, "an allocation has 1 to " + std::to_string(kMaxBytes) +
                                              " bytes; this one " + std::to_string(size_bytes)};
  }
  std::list<Slab> unused;  // destroyed after the lock
  MutexLock lock(mutex_);
  poll();
  const std::size_t number = class_of(size_bytes);
  SizeClass& size_class = classes_[number];
  if (!size_class.with_room.empty()) {
    ++counts_.cache_hits;
    return take(size_class.with_room.front(), size_bytes);
  }
  const std::uint64_t object_bytes = class_bytes(size_bytes);
  const std::uint64_t slab_bytes = std::max(
      object_bytes, std::clamp(kObjectsPerSlab * object_bytes, kLeastSlabBytes, kMaxSlabBytes));
  const auto fits = [&] {
    return slab_bytes <= options_.limit_bytes &&
           counts_.reserved_bytes <= options_.limit_bytes - slab_bytes;
  };
  if (!fits()) unused = take_unused();
  if (!fits()) {
    return Error{ErrorCode::no_capacity,
                 "a slab of " + std::to_string(slab_bytes) +
                     " bytes does not fit: " + std::to_string(counts_.reserved_bytes) + " of " +
                     std::to_string(options_.limit_bytes) + " are in use"};
  }
  // Under the lock: one miss serves every thread that waits for this class.
  auto region = source_(slab_bytes);
  if (!region) return std::move(region).error();
  Slab& slab = size_class.with_room.emplace_front();
  slab.region = std::move(*region);
  slab.size_class = number;
  slab.object_bytes = object_bytes;
  slab.objects = static_cast<std::uint32_t>(slab_bytes / object_bytes);
  for (std::uint32_t i = slab.objects; i-- > 0;) slab.free.push_back(i);
  slab.self = size_class.with_room.begin();
  ++counts_.cache_misses;
  counts_.reserved_bytes += slab_bytes;
  counts_.peak_reserved_bytes = std::max(counts_.peak_reserved_bytes, counts_.reserved_bytes);
  return take(slab, size_bytes);
}

SlabPool::Buffer SlabPool::take(Slab& slab, std::uint64_t size_bytes) {
  Buffer buffer;
  buffer.pool_ = this;
  buffer.slab_ = &slab;
  buffer.data_ = slab.region.data() + slab.free.back() * slab.object_bytes;
  buffer.size_bytes_ = size_bytes;
  slab.free.pop_back();
  if (slab.free.empty()) {
    SizeClass& size_class = classes_[slab.size_class];
    size_class.full.splice(size_class.full.begin(), size_class.with_room, slab.self);
  }
  counts_.allocated_bytes += slab.object_bytes;
  counts_.peak_allocated_bytes = std::max(counts_.peak_allocated_bytes, counts_.allocated_bytes);
  return buffer;
}

void SlabPool::give_back(Slab& slab, std::byte* data) {
  MutexLock lock(mutex_);
  ++counts_.frees;
  counts_.allocated_bytes -= slab.object_bytes;
  put(slab, data);
}

// The event is recorded without the lock: a stream with a full queue blocks its caller.
void SlabPool::give_back_after(Slab& slab, std::byte* data, Stream& stream) {
  auto event = stream.record();
  MutexLock lock(mutex_);
  ++counts_.frees;
  counts_.allocated_bytes -= slab.object_bytes;
  counts_.pending_bytes += slab.object_bytes;
  pending_.push_back({event ? std::move(*event) : nullptr, &slab, data});
}

// If the work failed, it may still be running: the object stays pending.
void SlabPool::poll() {
  for (std::size_t i = 0; i < pending_.size();) {
    Pending& one = pending_[i];
    const Result<bool> ready = one.event == nullptr ? false : one.event->ready();
    if (!ready) one.event.reset();
    if (!ready || !*ready) {
      ++i;
      continue;
    }
    counts_.pending_bytes -= one.slab->object_bytes;
    put(*one.slab, one.data);
    if (i + 1 < pending_.size()) one = std::move(pending_.back());
    pending_.pop_back();
  }
}

void SlabPool::put(Slab& slab, std::byte* data) {
  const auto offset_bytes = static_cast<std::uint64_t>(data - slab.region.data());
  CAIRN_ASSERT(slab.free.size() < slab.objects, "an object freed twice would be given out twice");
  if (slab.free.empty()) {
    SizeClass& size_class = classes_[slab.size_class];
    size_class.with_room.splice(size_class.with_room.begin(), size_class.full, slab.self);
  }
  slab.free.push_back(static_cast<std::uint32_t>(offset_bytes / slab.object_bytes));
}

std::list<SlabPool::Slab> SlabPool::take_unused() {
  std::list<Slab> unused;
  for (SizeClass& size_class : classes_) {
    for (auto next = size_class.with_room.begin(); next != size_class.with_room.end();) {
      const auto slab = next++;
      if (slab->free.size() < slab->objects) continue;
      counts_.reserved_bytes -= slab->region.size_bytes();
      unused.splice(unused.end(), size_class.with_room, slab);
    }
  }
  return unused;
}

void SlabPool::count_typed(std::uint64_t objects) {
  MutexLock lock(mutex_);
  ++counts_.typed_allocations;
  counts_.typed_objects += objects;
}

void SlabPool::trim() {
  std::list<Slab> unused;  // destroyed after the lock
  MutexLock lock(mutex_);
  poll();
  unused = take_unused();
}

AllocatorStatistics SlabPool::statistics() {
  MutexLock lock(mutex_);
  poll();
  AllocatorStatistics now = counts_;
  now.limit_bytes = options_.limit_bytes;
  now.allocations = now.cache_hits + now.cache_misses;
  now.cached_bytes = now.reserved_bytes - now.allocated_bytes;
  for (const SizeClass& size_class : classes_) {
    if (size_class.with_room.empty()) continue;
    now.largest_free_bytes = size_class.with_room.front().object_bytes;
  }
  return now;
}

SlabPool::Buffer::~Buffer() {
  if (pool_ == nullptr) return;
  if (stream_ != nullptr) {
    pool_->give_back_after(*slab_, data_, *stream_);
  } else {
    pool_->give_back(*slab_, data_);
  }
}

RegionView SlabPool::Buffer::view() const {
  if (pool_ == nullptr) return {};
  const Region& region = slab_->region;
  const auto offset_bytes = static_cast<std::uint64_t>(data_ - region.data());
  return region.view({.offset_bytes = offset_bytes, .size_bytes = size_bytes_}).value();
}

std::uint64_t SlabPool::Buffer::capacity_bytes() const {
  return pool_ == nullptr ? 0 : slab_->object_bytes;
}

void SlabPool::Buffer::swap(Buffer& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(slab_, other.slab_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(stream_, other.stream_);
}

}  // namespace cairn
