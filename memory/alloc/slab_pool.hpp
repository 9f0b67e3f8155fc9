#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/cache_line.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "memory/alloc/statistics.hpp"
#include "memory/device_runtime.hpp"
#include "memory/region.hpp"

namespace cairn {

// Memory for objects of any size up to 8 GiB, by size classes: of the host, or of a device, whose
// streams may still use an object that was freed. Each class divides slabs into
// objects of its size, so nothing fragments and freeing takes constant time. Four classes per
// doubling: at most a fifth of an object is wasted. Slabs are kept for the next user until trim(),
// or until another class needs their room. Thread-safe.
class alignas(kCacheLineBytes) SlabPool {
 public:
  static constexpr std::uint64_t kLeastBytes = 256;
  static constexpr std::uint64_t kMaxBytes = 8ull << 30;
  static constexpr std::uint64_t kAlignment = 64;  // of every buffer
  // Number of objects in a slab, within the bounds of a slab's size: enough that one miss serves
  // many, small enough that a class with a single user costs little.
  static constexpr std::uint64_t kObjectsPerSlab = 8;
  static constexpr std::uint64_t kLeastSlabBytes = 256ull << 10;
  static constexpr std::uint64_t kMaxSlabBytes = 8ull << 20;  // of one object if that is larger

  // Where slabs come from: &Region::system, a runtime's pinned memory, or a device's allocator.
  using Source = UniqueFunction<Result<Region>(std::uint64_t size_bytes)>;
  struct Options {
    std::uint64_t limit_bytes = 256ull << 20;  // of all slabs together
  };
  SlabPool(Source source, Options options);
  // REQUIRES: every buffer has been returned.
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  struct Slab;

  // Memory of one user; the destructor returns it, on any thread. Holds the last user's bytes,
  // aligned to 64 bytes. Move-only; not thread-safe.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      Buffer(std::move(other)).swap(*this);
      return *this;
    }
    ~Buffer();

    bool empty() const { return pool_ == nullptr; }
    std::byte* data() const { return data_; }
    std::uint64_t size_bytes() const { return size_bytes_; }  // as requested
    std::uint64_t capacity_bytes() const;
    std::span<std::byte> bytes() const { return {data_, size_bytes_}; }
    RegionView view() const;
    // Work on `stream`, issued before the buffer is freed, uses it: it is reused when that work has
    // ended, and never if nobody can tell. REQUIRES: no other stream does. The stream must outlive
    // the buffer.
    void record_stream(Stream& stream) { stream_ = &stream; }

   private:
    friend class SlabPool;
    void swap(Buffer& other) noexcept;
    SlabPool* pool_ = nullptr;
    Slab* slab_ = nullptr;
    std::byte* data_ = nullptr;
    std::uint64_t size_bytes_ = 0;
    Stream* stream_ = nullptr;
  };

  // out_of_range: 0 bytes or more than kMaxBytes; no_capacity: the limit is reached; the source's.
  Result<Buffer> allocate(std::uint64_t size_bytes);
  // Records that an allocation was for `objects` objects of a type, for statistics().
  void count_typed(std::uint64_t objects);
  // Frees the slabs without an object in use.
  void trim();

  // Takes note of work that has ended, so that `pending` is what streams still use.
  AllocatorStatistics statistics();

  // The size of the objects that serve a request. REQUIRES: 0 < size_bytes <= kMaxBytes.
  static std::uint64_t class_bytes(std::uint64_t size_bytes);

 private:
  // 256 B to 8 GiB are 25 doublings.
  static constexpr std::size_t kClasses = 25 * 4 + 1;
  static std::size_t class_of(std::uint64_t size_bytes);

  struct SizeClass {
    std::list<Slab> with_room;
    std::list<Slab> full;
  };
  Buffer take(Slab& slab, std::uint64_t size_bytes) CAIRN_REQUIRES(mutex_);
  std::list<Slab> take_unused() CAIRN_REQUIRES(mutex_);
  void give_back(Slab& slab, std::byte* data);
  void give_back_after(Slab& slab, std::byte* data, Stream& stream);
  void put(Slab& slab, std::byte* data) CAIRN_REQUIRES(mutex_);
  void poll() CAIRN_REQUIRES(mutex_);

  // A freed object and the end of the work that uses it. Without an event nobody can tell the end.
  struct Pending {
    std::unique_ptr<Event> event;
    Slab* slab = nullptr;
    std::byte* data = nullptr;
  };

  const Options options_;
  Mutex mutex_;
  Source source_ CAIRN_GUARDED_BY(mutex_);
  std::array<SizeClass, kClasses> classes_ CAIRN_GUARDED_BY(mutex_);
  std::vector<Pending> pending_ CAIRN_GUARDED_BY(mutex_);
  AllocatorStatistics counts_ CAIRN_GUARDED_BY(mutex_);
};

// Objects of one size in one region.
struct SlabPool::Slab {
  Region region;
  std::size_t size_class = 0;
  std::uint64_t object_bytes = 0;
  std::uint32_t objects = 0;
  std::vector<std::uint32_t> free;  // the last is the next
  std::list<Slab>::iterator self;
};

}  // namespace cairn
