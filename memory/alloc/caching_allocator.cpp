#include "memory/alloc/caching_allocator.hpp"

#include <algorithm>
#include <bit>
#include <boost/container/static_vector.hpp>
#include <string>

#include "base/assert.hpp"

namespace cairn {

CachingAllocator::CachingAllocator(DeviceRuntime& runtime, Options options)
    : runtime_(runtime),
      options_(options),
      wholes_(std::make_shared<WholeMemory>(options.idle_limit_bytes)) {}

CachingAllocator::~CachingAllocator() {
  wholes_->empty(/*for_good=*/true);
  wait_for_pending();
  MutexLock lock(mutex_);
  CAIRN_ASSERT(counts_.allocated_bytes == 0, "memory would be freed under its user");
}

RegionView CachingAllocator::Buffer::view() const {
  if (block_ == nullptr) return {};
  const Region& region = block_->segment->region;
  const auto offset_bytes = static_cast<std::uint64_t>(block_->data - region.data());
  return region.view({.offset_bytes = offset_bytes, .size_bytes = size_bytes_}).value();
}

Result<> CachingAllocator::Buffer::record_stream(Stream& stream) {
  CAIRN_ASSERT(block_ != nullptr, "nothing can use an empty buffer");
  return allocator_->record(*block_, stream);
}

void CachingAllocator::Buffer::reset() {
  if (block_ == nullptr) return;
  std::exchange(allocator_, nullptr)->free(*std::exchange(block_, nullptr));
  size_bytes_ = 0;
}

Result<CachingAllocator::Buffer> CachingAllocator::allocate(std::uint64_t size_bytes,
                                                            Stream& stream) {
  return allocate_for(size_bytes, &stream);
}

Result<CachingAllocator::Buffer> CachingAllocator::allocate(std::uint64_t size_bytes) {
  return allocate_for(size_bytes, nullptr);
}

Result<CachingAllocator::Buffer> CachingAllocator::allocate_for(std::uint64_t size_bytes,
                                                                Stream* stream) {
  if (size_bytes == 0 || size_bytes > BlockHeap::kMaxBytes) {
    return Error{ErrorCode::out_of_range, "an allocation has 1 to " +
                                              std::to_string(BlockHeap::kMaxBytes) +
                                              " bytes; this one " + std::to_string(size_bytes)};
  }
  const std::uint64_t block_bytes = BlockHeap::round_to_block(size_bytes);
  std::uint32_t lane = kNoStream;
  {
    MutexLock lock(mutex_);
    if (waiting_events_ > 0) poll();
    if (stream != nullptr) {
      const auto number = number_of(*stream);
      if (!number) return number.error();
      lane = *number;
    }
    // Counted now; otherwise the number could belong to another stream after the call to the
    // driver.
    ++states_[lane].buffers;
    if (HeapBlock* const block = heap_.take(lane, block_bytes)) {
      ++counts_.cache_hits;
      return hand_out(*block, size_bytes);
    }
  }
  auto region = reserve(block_bytes);
  MutexLock lock(mutex_);
  if (!region) {
    --states_[lane].buffers;
    return std::move(region).error();
  }
  ++counts_.cache_misses;
  HeapBlock& block = *heap_.take_from_new(lane, std::move(*region), block_bytes);
  return hand_out(block, size_bytes);
}

Result<Region> CachingAllocator::reserve(std::uint64_t block_bytes) {
  return ask_driver(BlockHeap::segment_for(block_bytes), false);
}

// Without the lock: a device can take a millisecond to respond.
Result<Region> CachingAllocator::ask_driver(std::uint64_t size_bytes, bool by_descriptor) {
  const DeviceRuntime::DeviceOptions options{.device_id = options_.device_id,
                                             .by_descriptor = by_descriptor};
  {
    MutexLock giving_back(giving_back_);
    // If it fails, more is reserved than intended, and nothing else happens.
    (void)return_segments(options_.idle_limit_bytes - wholes_->now().idle_bytes).has_value();
  }
  auto region = runtime_.allocate_device(size_bytes, options);
  if (region || region.error().code != ErrorCode::no_capacity) return region;
  // If some of the cache cannot be freed, the rest may still be enough.
  (void)empty_cache().has_value();
  {
    MutexLock lock(mutex_);
    ++counts_.retries;
  }
  return runtime_.allocate_device(size_bytes, options);
}

Result<Region> CachingAllocator::allocate_whole(std::uint64_t size_bytes, bool by_descriptor) {
  const WholeMemory::Kind kind{size_bytes, by_descriptor};
  Region region = wholes_->take_idle(kind);
  const bool hit = !region.empty();
  if (hit) {
    CAIRN_TRY(clear(region));
  } else {
    auto reserved = ask_driver(size_bytes, by_descriptor);
    if (!reserved) return reserved;
    region = std::move(*reserved);
  }
  Region whole = WholeMemory::lend(wholes_, std::move(region), kind);
  MutexLock lock(mutex_);
  ++(hit ? counts_.cache_hits : counts_.cache_misses);
  raise_peaks();
  return whole;
}

// Its former user has left bytes in it, but no work: a tier is destroyed after its transfers.
Result<> CachingAllocator::clear(const Region& region) {
  auto stream = runtime_.create_stream(options_.device_id);
  if (!stream) return std::move(stream).error();
  CAIRN_TRY((*stream)->zero(region.data(), region.size_bytes()));
  return (*stream)->synchronize();
}

std::uint64_t CachingAllocator::allocated_bytes() const {
  return counts_.allocated_bytes + wholes_->now().used_bytes;
}

std::uint64_t CachingAllocator::reserved_bytes() const {
  const WholeMemory::Now wholes = wholes_->now();
  return heap_.reserved_bytes() + wholes.used_bytes + wholes.idle_bytes;
}

void CachingAllocator::raise_peaks() {
  counts_.peak_allocated_bytes = std::max(counts_.peak_allocated_bytes, allocated_bytes());
  counts_.peak_reserved_bytes = std::max(counts_.peak_reserved_bytes, reserved_bytes());
}

CachingAllocator::Buffer CachingAllocator::hand_out(HeapBlock& block, std::uint64_t size_bytes) {
  counts_.allocated_bytes += block.size_bytes;
  raise_peaks();
  return Buffer(*this, block, size_bytes);
}

Result<> CachingAllocator::record(HeapBlock& block, Stream& stream) {
  MutexLock lock(mutex_);
  const auto number = number_of(stream);
  if (!number) return number.error();
  const std::uint64_t bit = 1ull << *number;
  if (*number == block.segment->lane || (block.recorded_streams & bit) != 0) return {};
  block.recorded_streams |= bit;
  ++states_[*number].buffers;
  return {};
}
static_assert(BlockHeap::kMaxLanes <= 64, "a set of streams is one word");

void CachingAllocator::free(HeapBlock& block) {
  {
    MutexLock lock(mutex_);
    ++counts_.frees;
    counts_.allocated_bytes -= block.size_bytes;
    if (block.recorded_streams == 0) {
      --states_[block.segment->lane].buffers;
      heap_.put(block);
      return;
    }
    counts_.pending_bytes += block.size_bytes;
  }
  free_after_events(block);
}

// Events are recorded without the lock, because a stream with a full queue blocks its caller. No
// other thread has the block meanwhile, and its streams remain, because it still counts as theirs.
void CachingAllocator::free_after_events(HeapBlock& block) {
  struct Recorded {
    std::uint32_t number;
    Stream* stream;
    std::unique_ptr<Event> event;
  };
  boost::container::static_vector<Recorded, kMaxStreams> all;
  {
    MutexLock lock(mutex_);
    for (std::uint64_t left = block.recorded_streams; left != 0; left &= left - 1) {
      const auto number = static_cast<std::uint32_t>(std::countr_zero(left));
      all.push_back({number, streams_[number], nullptr});
    }
  }
  for (Recorded& one : all) {
    if (auto event = one.stream->record()) one.event = std::move(*event);
  }
  MutexLock lock(mutex_);
  --states_[block.segment->lane].buffers;
  // One more than there are, so that none of them can be the last before all are recorded.
  block.events = static_cast<std::uint32_t>(all.size()) + 1;
  for (Recorded& one : all) {
    StreamState& state = states_[one.number];
    --state.buffers;
    if (one.event == nullptr) {
      end_event(block, false);
      continue;
    }
    state.pending.push_back({std::move(one.event), &block});
    ++waiting_events_;
  }
  end_event(block, true);
}

// One of the ends that a block waits for is known. If it is an error instead of the end of the
// work, the block is never reused: memory is lost, but nothing writes into another user's memory.
void CachingAllocator::end_event(HeapBlock& block, bool reached) {
  block.lost = block.lost || !reached;
  if (--block.events > 0 || block.lost) return;
  block.recorded_streams = 0;
  counts_.pending_bytes -= block.size_bytes;
  heap_.put(block);
}

// A stream's events are reached in their order: the first that is not reached ends the search.
void CachingAllocator::poll() {
  for (std::uint32_t number = 0; number < used_numbers_; ++number) {
    std::deque<Pending>& pending = states_[number].pending;
    while (!pending.empty()) {
      const auto ready = pending.front().event->ready();
      if (ready && !*ready) break;
      end_event(*pending.front().block, ready.has_value());
      pending.pop_front();
      --waiting_events_;
    }
  }
}

void CachingAllocator::wait_for_pending() {
  std::vector<Pending> all;
  {
    MutexLock lock(mutex_);
    for (StreamState& state : states_) {
      std::move(state.pending.begin(), state.pending.end(), std::back_inserter(all));
      state.pending.clear();
    }
    waiting_events_ -= all.size();
  }
  for (Pending& one : all) {
    const bool reached = one.event->wait().has_value();
    MutexLock lock(mutex_);
    end_event(*one.block, reached);
  }
}

Result<> CachingAllocator::empty_cache() {
  MutexLock giving_back(giving_back_);
  wait_for_pending();
  wholes_->empty(/*for_good=*/false);
  return return_segments(0);
}

Result<> CachingAllocator::return_segments(std::uint64_t keep_bytes) {
  std::list<HeapSegment> segments;
  {
    MutexLock lock(mutex_);
    segments = heap_.take_free_segments(keep_bytes);
  }
  segments.sort([](const HeapSegment& a, const HeapSegment& b) { return a.lane < b.lane; });
  Result<> outcome;
  while (!segments.empty()) {
    const std::uint32_t lane = segments.front().lane;
    std::list<HeapSegment> of_stream;
    const auto end =
        std::ranges::find_if(segments, [&](const HeapSegment& one) { return one.lane != lane; });
    of_stream.splice(of_stream.end(), segments, segments.begin(), end);
    if (auto waited = wait_for_stream(lane); !waited) {
      outcome = std::move(waited);
      MutexLock lock(mutex_);
      heap_.put_back(std::move(of_stream));
    }
  }
  return outcome;
}

// Work issued for a block before it was freed may still be running on its own stream.
Result<> CachingAllocator::wait_for_stream(std::uint32_t number) {
  Stream* stream = nullptr;
  {
    MutexLock lock(mutex_);
    stream = streams_[number];
  }
  // Memory of no stream is free only when all its users are done, and the work of a stream had
  // ended when it was forgotten.
  if (stream == nullptr) return {};
  auto event = stream->record();
  if (!event) return std::move(event).error();
  return (*event)->wait();
}

Result<std::uint32_t> CachingAllocator::number_of(Stream& stream) {
  std::uint32_t unused = used_numbers_;
  for (std::uint32_t number = kNoStream + 1; number < used_numbers_; ++number) {
    if (streams_[number] == &stream) return number;
    if (streams_[number] == nullptr) unused = std::min(unused, number);
  }
  if (unused == BlockHeap::kMaxLanes) {
    return Error{ErrorCode::too_many, "memory is cached for " + std::to_string(kMaxStreams) +
                                          " streams already; forget one"};
  }
  used_numbers_ = std::max(used_numbers_, unused + 1);
  streams_[unused] = &stream;
  return unused;
}

void CachingAllocator::forget(const Stream& stream) {
  MutexLock giving_back(giving_back_);
  strike_out(&stream);
}

void CachingAllocator::end_stream(std::unique_ptr<Stream> stream) {
  // No thread uses the stream meanwhile, and its memory has no other user before its end.
  MutexLock giving_back(giving_back_);
  const Stream* const gone = stream.get();
  stream.reset();
  strike_out(gone);
}

void CachingAllocator::strike_out(const Stream* stream) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(streams_, stream);
  if (found == streams_.end()) return;
  CAIRN_ASSERT(states_[static_cast<std::size_t>(found - streams_.begin())].buffers == 0,
               "a buffer would be freed by a stream that is gone");
  *found = nullptr;
}

AllocatorStatistics CachingAllocator::statistics() {
  MutexLock lock(mutex_);
  if (waiting_events_ > 0) poll();
  AllocatorStatistics now = counts_;
  const WholeMemory::Now wholes = wholes_->now();
  now.allocations = now.cache_hits + now.cache_misses;
  now.frees += wholes.frees;
  now.allocated_bytes += wholes.used_bytes;
  now.cached_bytes = heap_.free_bytes() + now.pending_bytes + wholes.idle_bytes;
  now.reserved_bytes = heap_.reserved_bytes() + wholes.used_bytes + wholes.idle_bytes;
  now.largest_free_bytes = std::max(heap_.largest_free_bytes(), wholes.largest_idle_bytes);
  now.segments = heap_.segments() + wholes.used + wholes.idle;
  now.splits = heap_.splits();
  now.merges = heap_.merges();
  return now;
}

void CachingAllocator::reset_peak() {
  MutexLock lock(mutex_);
  counts_.peak_allocated_bytes = allocated_bytes();
  counts_.peak_reserved_bytes = reserved_bytes();
}

}  // namespace cairn
