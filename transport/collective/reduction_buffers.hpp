#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string_view>
#include <utility>

#include "memory/alloc/statistics.hpp"
#include "transport/collective/communicator.hpp"

namespace cairn {

// Its name among the allocators.
inline constexpr std::string_view kReductionAllocator = "reductions";

// What the reductions of one device, or of the host, work in. Thread-safe.
class ReductionCounts {
 public:
  void hit() { hits_.fetch_add(1, kRelaxed); }
  void miss() { misses_.fetch_add(1, kRelaxed); }
  void holds(std::uint64_t more_bytes) { held_bytes_.fetch_add(more_bytes, kRelaxed); }
  void dropped(std::uint64_t size_bytes) {
    held_bytes_.fetch_sub(size_bytes, kRelaxed);
    drops_.fetch_add(1, kRelaxed);
  }
  AllocatorStatistics now() const {
    AllocatorStatistics all{.cached_bytes = held_bytes_.load(kRelaxed),
                            .reserved_bytes = held_bytes_.load(kRelaxed),
                            .frees = drops_.load(kRelaxed),
                            .cache_hits = hits_.load(kRelaxed),
                            .cache_misses = misses_.load(kRelaxed)};
    all.allocations = all.cache_hits + all.cache_misses;
    return all;
  }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  std::atomic<std::uint64_t> hits_ = 0;
  std::atomic<std::uint64_t> misses_ = 0;
  std::atomic<std::uint64_t> drops_ = 0;
  std::atomic<std::uint64_t> held_bytes_ = 0;
};

// The buffers that a communicator reduces in, kept by what was reduced: ranks agree on numbers by
// the same few calls again and again. The one that was used longest ago goes first. For one
// thread at a time.
template <class Buffer>
class ReductionBuffers {
 public:
  // An engine has a handful of reductions that it repeats, of 32 KiB each at most over HTTP. A
  // larger one has all the others go, and is kept as the only one.
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

  // The buffer of such a reduction, until the next call; `make` gives a new one of that size, as a
  // Result<Buffer>.
  template <class Make>
  Result<Buffer*> take(const Key& key, std::uint64_t size_bytes, Make make) {
    const auto at =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.key == key; });
    if (at != kept_.end()) {
      counts_->hit();
      kept_.splice(kept_.begin(), kept_, at);
      return &kept_.front().buffer;
    }
    counts_->miss();
    while (!kept_.empty() &&
           (kept_.size() >= kMaxBuffers || held_bytes_ + size_bytes > kMaxBytes)) {
      drop_last();
    }
    Result<Buffer> made = make(size_bytes);
    if (!made) return std::move(made).error();
    kept_.push_front({key, size_bytes, std::move(*made)});
    held_bytes_ += size_bytes;
    counts_->holds(size_bytes);
    return &kept_.front().buffer;
  }
  void clear() {
    while (!kept_.empty()) drop_last();
  }

 private:
  struct Kept {
    Key key;
    std::uint64_t size_bytes;
    Buffer buffer;
  };
  void drop_last() {
    const std::uint64_t size_bytes = kept_.back().size_bytes;
    kept_.pop_back();
    held_bytes_ -= size_bytes;
    counts_->dropped(size_bytes);
  }

  const std::shared_ptr<ReductionCounts> counts_;
  std::list<Kept> kept_;  // the latest first
  std::uint64_t held_bytes_ = 0;
};

}  // namespace cairn
