#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "base/cache_line.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "memory/alloc/block_heap.hpp"
#include "memory/alloc/statistics.hpp"
#include "memory/alloc/whole_memory.hpp"
#include "memory/device_runtime.hpp"

namespace cairn {

// Device memory that is kept when it is freed, since a device's own allocation takes a hundred
// times as long and may stop all its streams. Ordered by streams, as PyTorch's: a block that is
// freed is reused at once by requests for the stream it was allocated for, because what they issue
// comes after what is already on that stream. What other streams do with it must be recorded;
// then it is reused only when they are done. Thread-safe.
//
//   auto scratch = allocator.allocate(size_bytes, stream);      // use it on `stream`
//   scratch->record_stream(other);                              // and on another one
//
// An allocation that the cache serves waits for nothing; any other asks the driver, and before that
// waits for the streams of segments that go back.
class alignas(kCacheLineBytes) CachingAllocator {
 public:
  // Streams known at a time: a set of them is then one machine word.
  static constexpr std::size_t kMaxStreams = BlockHeap::kMaxLanes;

  struct Options {
    int device_id = 0;
    // Segments that nobody uses, beyond so many bytes, go back to the driver before more is
    // reserved. By default all of them: what lies idle here is missing elsewhere on the device, and
    // who asks the driver has to wait in any case. Where allocations come in waves of different
    // sizes and must not wait for streams, a limit trades memory for that. Whole memory that nobody
    // uses goes back at once where it is beyond the limit.
    std::uint64_t idle_limit_bytes = 0;
  };

  // Borrows the runtime, which must outlive it.
  CachingAllocator(DeviceRuntime& runtime, Options options);
  // Whole memory may outlive it. REQUIRES: no buffer is left, and the work on their own streams has
  // ended (that on recorded ones is waited for).
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Device memory of one user; freed when it goes, on any thread, without waiting for the device.
  // Its bytes are what the last user left. Move-only; not thread-safe.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept
        : allocator_(std::exchange(other.allocator_, nullptr)),
          block_(std::exchange(other.block_, nullptr)),
          size_bytes_(std::exchange(other.size_bytes_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
      if (this != &other) {
        reset();
        allocator_ = std::exchange(other.allocator_, nullptr);
        block_ = std::exchange(other.block_, nullptr);
        size_bytes_ = std::exchange(other.size_bytes_, 0);
      }
      return *this;
    }
    ~Buffer() { reset(); }

    bool empty() const { return block_ == nullptr; }
    std::byte* data() const { return block_ == nullptr ? nullptr : block_->data; }
    std::uint64_t size_bytes() const { return size_bytes_; }  // what was asked for
    RegionView view() const;
    // Work on `stream`, issued before the buffer is freed, uses it too. The stream must outlive the
    // buffer. too_many: the allocator knows kMaxStreams others.
    Result<> record_stream(Stream& stream);
    void reset();

   private:
    friend class CachingAllocator;
    Buffer(CachingAllocator& allocator, HeapBlock& block, std::uint64_t size_bytes)
        : allocator_(&allocator), block_(&block), size_bytes_(size_bytes) {}
    CachingAllocator* allocator_ = nullptr;
    HeapBlock* block_ = nullptr;
    std::uint64_t size_bytes_ = 0;
  };

  // Memory for use on `stream`, aligned to 512 bytes. Where the driver has none left the cache is
  // emptied and it is asked once more. out_of_range: 0 bytes or more than BlockHeap::kMaxBytes;
  // too_many: the allocator knows kMaxStreams others; no_capacity, device_error: the driver's.
  Result<Buffer> allocate(std::uint64_t size_bytes, Stream& stream);

  // Memory in a segment of its own, zeroed, until the Region goes: for what stays, and for what
  // others may map, who see all of a segment. Kept for the next of that size, but not where it was
  // shared: others may map it still. Errors: the driver's; as allocate() where it has none left.
  Result<Region> allocate_whole(std::uint64_t size_bytes, bool by_descriptor);

  // Returns to the driver what no buffer uses, in whole segments; waits for the work that was
  // issued on the streams concerned. device_error where that failed: what it was about stays.
  Result<> empty_cache();
  // To be called before a stream is destroyed, so that another one can have its memory.
  // REQUIRES: its work has ended, and no buffer was allocated for it or recorded on it.
  void forget(const Stream& stream);
  // The same for a stream whose work may still be running: destroys it, which waits for that.
  // REQUIRES: no buffer was allocated for it or recorded on it.
  void end_stream(std::unique_ptr<Stream> stream);

  AllocatorStatistics statistics() const;
  void reset_peak();  // both peaks, to what is now

 private:
  // The end of the recorded work of one freed block on one stream.
  struct Pending {
    std::unique_ptr<Event> event;
    HeapBlock* block;
  };
  struct StreamState {
    std::uint64_t buffers = 0;  // that were allocated for it or recorded on it
    std::deque<Pending> pending;
  };

  Result<std::uint32_t> number_of(Stream& stream) CAIRN_REQUIRES(mutex_);
  void strike_out(const Stream* stream) CAIRN_REQUIRES(giving_back_);
  Result<Region> reserve(std::uint64_t block_bytes);
  // From the driver; what lies idle goes back before, and all of it where there is none left.
  Result<Region> ask_driver(std::uint64_t size_bytes, bool by_descriptor);
  Result<> clear(const Region& region);
  // With whole memory.
  std::uint64_t allocated_bytes() const CAIRN_REQUIRES(mutex_);
  std::uint64_t reserved_bytes() const CAIRN_REQUIRES(mutex_);
  void raise_peaks() CAIRN_REQUIRES(mutex_);
  Buffer hand_out(HeapBlock& block, std::uint64_t size_bytes) CAIRN_REQUIRES(mutex_);
  Result<> record(HeapBlock& block, Stream& stream);
  void free(HeapBlock& block);
  void free_after_events(HeapBlock& block);
  void poll() CAIRN_REQUIRES(mutex_);
  void end_event(HeapBlock& block, bool reached) CAIRN_REQUIRES(mutex_);
  void wait_for_pending();
  Result<> return_segments(std::uint64_t keep_bytes) CAIRN_REQUIRES(giving_back_);
  Result<> wait_for_stream(std::uint32_t number);

  DeviceRuntime& runtime_;
  const Options options_;

  // Held while segments are given back, so that no stream goes meanwhile. Before mutex_.
  Mutex giving_back_;
  mutable Mutex mutex_;
  BlockHeap heap_ CAIRN_GUARDED_BY(mutex_);
  // A stream's number is its lane in the heap. Null: the number is free, its memory too.
  std::array<Stream*, kMaxStreams> streams_ CAIRN_GUARDED_BY(mutex_){};
  std::array<StreamState, kMaxStreams> states_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t used_numbers_ CAIRN_GUARDED_BY(mutex_) = 0;  // those below were given out once
  std::uint64_t waiting_events_ CAIRN_GUARDED_BY(mutex_) = 0;
  AllocatorStatistics counts_ CAIRN_GUARDED_BY(mutex_);  // without whole memory, but for the peaks
  const std::shared_ptr<WholeMemory> wholes_;            // its lock is taken inside mutex_
};

static_assert(has_lines_of_its_own<CachingAllocator>);

}  // namespace cairn
