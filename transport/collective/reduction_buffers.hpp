#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/mutex.hpp"
#include "memory/alloc/statistics.hpp"
#include "transport/collective/communicator.hpp"

namespace cairn {

// The allocator's name in statistics.
inline constexpr std::string_view kReductionAllocator = "reductions";

// Counts the reduction buffers of one device, or of the host. A buffer in use counts as allocated,
// one kept for reuse as cached. Thread-safe.
class ReductionCounts {
 public:
  void made(std::uint64_t size_bytes) {
    MutexLock lock(mutex_);
    ++now_.cache_misses;
    now_.reserved_bytes += size_bytes;
    now_.peak_reserved_bytes = std::max(now_.peak_reserved_bytes, now_.reserved_bytes);
    begin_use(size_bytes);
  }
  void taken(std::uint64_t size_bytes) {
    MutexLock lock(mutex_);
    ++now_.cache_hits;
    idle_bytes_.erase(idle_bytes_.find(size_bytes));
    begin_use(size_bytes);
  }
  void rests(std::uint64_t size_bytes) {
    MutexLock lock(mutex_);
    idle_bytes_.insert(size_bytes);
    now_.allocated_bytes -= size_bytes;
  }
  // REQUIRES: rests() was called for it.
  void dropped(std::uint64_t size_bytes) {
    MutexLock lock(mutex_);
    idle_bytes_.erase(idle_bytes_.find(size_bytes));
    now_.reserved_bytes -= size_bytes;
    ++now_.frees;
  }
  AllocatorStatistics now() const {
    MutexLock lock(mutex_);
    AllocatorStatistics all = now_;
    all.cached_bytes = all.reserved_bytes - all.allocated_bytes;
    all.largest_free_bytes = idle_bytes_.empty() ? 0 : *idle_bytes_.rbegin();
    all.allocations = all.cache_hits + all.cache_misses;
    all.segments = now_.cache_misses - now_.frees;
    return all;
  }

 private:
  void begin_use(std::uint64_t size_bytes) CAIRN_REQUIRES(mutex_) {
    now_.allocated_bytes += size_bytes;
    now_.peak_allocated_bytes = std::max(now_.peak_allocated_bytes, now_.allocated_bytes);
  }

  mutable Mutex mutex_;
  AllocatorStatistics now_ CAIRN_GUARDED_BY(mutex_);  // the other fields are derived
  std::multiset<std::uint64_t> idle_bytes_ CAIRN_GUARDED_BY(mutex_);
};

// A communicator's reduction buffers, kept for reuse by (count, type, reduction) because ranks
// repeat the same few calls. Evicts the least recently used. Not thread-safe.
template <class Buffer>
class ReductionBuffers {
 public:
  // An engine repeats a handful of reductions, over HTTP of at most 32 KiB each. A buffer above
  // kMaxBytes evicts all others and is kept alone.
  static constexpr std::size_t kMaxBuffers = 16;
  static constexpr std::uint64_t kMaxBytes = 4ull << 20;

  struct Key {
    std::uint64_t count = 0;
    DataType type = DataType::uint8;
    Reduction reduction = Reduction::sum;

    static Key of(const Communicator::AllReduce& call) {
      return {call.elements.count, call.elements.type, call.reduction};
    }
    friend bool operator==(const Key&, const Key&) = default;
  };

  explicit ReductionBuffers(std::shared_ptr<ReductionCounts> counts) : counts_(std::move(counts)) {}
  ~ReductionBuffers() { clear(); }
  ReductionBuffers(const ReductionBuffers&) = delete;
  ReductionBuffers& operator=(const ReductionBuffers&) = delete;

  // Returns the buffer for this reduction, in use until rest(). If there is none, `make` creates
  // one as a Result<Buffer>. REQUIRES: no buffer is in use.
  template <class Make>
  Result<Buffer*> take(const Key& key, std::uint64_t size_bytes, Make make) {
    const auto at =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.key == key; });
    if (at != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, at);
      return use_first(&ReductionCounts::taken);
    }
    while (!kept_.empty() &&
           (kept_.size() >= kMaxBuffers || held_bytes_ + size_bytes > kMaxBytes)) {
      drop_last();
    }
    Result<Buffer> made = make(size_bytes);
    if (!made) return std::move(made).error();
    kept_.push_front({key, size_bytes, std::move(*made)});
    held_bytes_ += size_bytes;
    return use_first(&ReductionCounts::made);
  }
  // Ends the use of the buffer; a no-op if none is in use.
  void rest() {
    if (std::exchange(in_use_, false)) counts_->rests(kept_.front().size_bytes);
  }
  void clear() {
    rest();
    while (!kept_.empty()) drop_last();
  }

 private:
  struct Kept {
    Key key;
    std::uint64_t size_bytes;
    Buffer buffer;
  };
  Buffer* use_first(void (ReductionCounts::*counted)(std::uint64_t)) {
    ((*counts_).*counted)(kept_.front().size_bytes);
    in_use_ = true;
    return &kept_.front().buffer;
  }
  void drop_last() {
    const std::uint64_t size_bytes = kept_.back().size_bytes;
    kept_.pop_back();
    held_bytes_ -= size_bytes;
    counts_->dropped(size_bytes);
  }

  const std::shared_ptr<ReductionCounts> counts_;
  std::list<Kept> kept_;  // most recently used first
  bool in_use_ = false;   // the first one
  std::uint64_t held_bytes_ = 0;
};

}  // namespace cairn
