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

// Device memory that is kept when it is freed, because a device's own allocation takes a hundred
// times as long and can stop all its streams. Ordered by streams, as PyTorch's: a freed block is
// reused at once by requests for its own stream, because their work comes after the work already on
// that stream. Use by other streams must be recorded; then the block is reused only when they are
// done. Thread-safe.
//
//   auto scratch = allocator.allocate(size_bytes, stream);      // use it on `stream`
//   scratch->record_stream(other);                              // and on another one
//
//   auto list = allocator.allocate(size_bytes);                 // the CPU writes it
//   list->record_stream(stream);                                // and `stream` reads it
//
// An allocation served from the cache does not wait. Any other asks the driver, and first waits for
// the streams of the segments that are returned.
class alignas(kCacheLineBytes) CachingAllocator {
 public:
  // Number of known streams: a set of them is then one machine word. One lane of the heap is for
  // memory of no stream.
  static constexpr std::size_t kMaxStreams = BlockHeap::kMaxLanes - 1;

  struct Options {
    int device_id = 0;
    // Before more is reserved, unused segments above this limit are returned to the driver. The
    // default returns all: idle memory here is missing elsewhere on the device, and asking the
    // driver means waiting anyway. If allocations come in waves of different sizes and must not
    // wait for streams, a limit trades memory for that. Unused whole memory above the limit is
    // returned at once.
    std::uint64_t idle_limit_bytes = 0;
  };

  // Borrows the runtime, which must outlive it.
  CachingAllocator(DeviceRuntime& runtime, Options options);
  // Whole memory may outlive it. REQUIRES: no buffer is left, and the work on their own streams has
  // ended (it waits for work on recorded ones).
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Device memory of one user; the destructor frees it, on any thread, without waiting for the
  // device. Holds the last user's bytes. Move-only; not thread-safe.
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
    std::uint64_t size_bytes() const { return size_bytes_; }  // as requested
    RegionView view() const;
    // Work on `stream`, issued before the buffer is freed, also uses it. The stream must outlive
    // the buffer. too_many: the allocator already knows kMaxStreams others.
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

  // Memory for use on `stream`, aligned to 512 bytes. If the driver has none left, the cache is
  // emptied and the driver asked once more. out_of_range: 0 bytes or more than
  // BlockHeap::kMaxBytes; too_many: the allocator already knows kMaxStreams others; no_capacity,
  // device_error: the driver's.
  Result<Buffer> allocate(std::uint64_t size_bytes, Stream& stream);
  // Memory of no stream, for what is not ordered by one: the CPU writes it, or several streams use
  // it. Each of them is recorded. Errors: as above.
  Result<Buffer> allocate(std::uint64_t size_bytes);

  // Memory in a separate segment, zeroed, until the Region is destroyed: for permanent memory, and
  // for memory that other processes map, because they see the whole segment. Kept for the next use
  // of that size, unless it was shared: other processes may still map it. Errors: the driver's; as
  // allocate() if it has none left.
  Result<Region> allocate_whole(std::uint64_t size_bytes, bool by_descriptor);

  // Returns unused memory to the driver, in whole segments; waits for the work issued on their
  // streams. device_error if that failed: those segments stay.
  Result<> empty_cache();
  // Call it before a stream is destroyed, so that another stream can use its memory. REQUIRES: its
  // work has ended, and no buffer was allocated for it or recorded on it.
  void forget(const Stream& stream);
  // The same for a stream whose work may still be running: destroys it, which waits for the work.
  // REQUIRES: no buffer was allocated for it or recorded on it.
  void end_stream(std::unique_ptr<Stream> stream);

  // Takes note of work that has ended, so that `pending` is what streams still use.
  AllocatorStatistics statistics();
  void reset_peak();  // sets both peaks to the current values

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

  // The lane of memory of no stream: `streams_` has none there.
  static constexpr std::uint32_t kNoStream = 0;
  Result<Buffer> allocate_for(std::uint64_t size_bytes, Stream* stream);
  Result<std::uint32_t> number_of(Stream& stream) CAIRN_REQUIRES(mutex_);
  void strike_out(const Stream* stream) CAIRN_REQUIRES(giving_back_);
  Result<Region> reserve(std::uint64_t block_bytes);
  // From the driver; idle segments are returned first, and all of them if the driver has none left.
  Result<Region> ask_driver(std::uint64_t size_bytes, bool by_descriptor);
  Result<> clear(const Region& region);
  // Including whole memory.
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

  // Held while segments are returned, so that no stream is destroyed meanwhile. Before mutex_.
  Mutex giving_back_;
  Mutex mutex_;
  BlockHeap heap_ CAIRN_GUARDED_BY(mutex_);
  // A stream's number is its lane in the heap. Null: the number is free, and so is its memory.
  std::array<Stream*, BlockHeap::kMaxLanes> streams_ CAIRN_GUARDED_BY(mutex_){};
  std::array<StreamState, BlockHeap::kMaxLanes> states_ CAIRN_GUARDED_BY(mutex_);
  // Lower numbers were assigned once.
  std::uint32_t used_numbers_ CAIRN_GUARDED_BY(mutex_) = kNoStream + 1;
  std::uint64_t waiting_events_ CAIRN_GUARDED_BY(mutex_) = 0;
  AllocatorStatistics counts_ CAIRN_GUARDED_BY(mutex_);  // without whole memory, except the peaks
  const std::shared_ptr<WholeMemory> wholes_;            // its lock is taken inside mutex_
};

static_assert(has_lines_of_its_own<CachingAllocator>);

}  // namespace cairn
