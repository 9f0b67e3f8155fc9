// A million random operations, checked against a model that does not know segments or blocks. It
// knows who owns each address, and which issued work may still touch it.

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <vector>

#include "memory/alloc/caching_allocator.hpp"
#include "tests/memory/alloc/sizes.hpp"
#include "tests/memory/alloc/stepped_runtime.hpp"

namespace cairn {
namespace {

using fakes::SteppedRuntime;
using fakes::StreamSteps;
using Random = std::mt19937_64;

constexpr std::size_t kStreams = 5;
constexpr std::size_t kMostBuffers = 1500;

// The last piece of work on each stream that touches a range of bytes; 0: none.
using LastWork = std::array<std::uint64_t, kStreams>;

class ChurnModel {
 public:
  // A range gets an owner. REQUIRES of the allocator: the range has no other owner, lies in a live
  // region, and work of earlier users has ended, except on the new owner's stream.
  void take(std::byte* data, std::uint64_t size_bytes, std::size_t stream, const LastWork& done) {
    std::byte* const end = data + size_bytes;
    const auto after = live_.lower_bound(end);
    if (after != live_.begin()) {
      ASSERT_LE(std::prev(after)->second, data) << "these bytes have an owner";
    }
    live_.emplace(data, end);
    for (const Left& left : cut(data, end)) {
      for (std::size_t i = 0; i < kStreams; ++i) {
        if (i == stream) continue;
        ASSERT_LE(left.work[i], done[i]) << "stream " << i << " is not done";
      }
    }
  }
  void give(std::byte* data, std::uint64_t size_bytes, const LastWork& work) {
    ASSERT_EQ(live_.erase(data), 1u);
    left_[data] = {data + size_bytes, work};
  }
  // Memory went back to the driver: it has no owner, and no work touches it.
  void gone(std::byte* data, std::uint64_t size_bytes, const LastWork& done) {
    std::byte* const end = data + size_bytes;
    const auto after = live_.lower_bound(end);
    if (after != live_.begin()) {
      ASSERT_LE(std::prev(after)->second, data) << "freed while in use";
    }
    for (const Left& left : cut(data, end)) {
      for (std::size_t i = 0; i < kStreams; ++i) ASSERT_LE(left.work[i], done[i]);
    }
  }

 private:
  struct Left {
    std::byte* end;
    LastWork work;
  };
  // Removes and returns the former users' work in a range.
  std::vector<Left> cut(std::byte* data, std::byte* end) {
    std::vector<Left> found;
    auto next = left_.lower_bound(data);
    if (next != left_.begin() && std::prev(next)->second.end > data) --next;
    while (next != left_.end() && next->first < end) {
      const auto [first, left] = *next;
      next = left_.erase(next);
      found.push_back(left);
      if (first < data) left_[first] = {data, left.work};
      if (left.end > end) left_[end] = left;
    }
    return found;
  }
  std::map<std::byte*, std::byte*> live_;  // first byte, end
  std::map<std::byte*, Left> left_;        // the last work on freed bytes
};

struct Held {
  CachingAllocator::Buffer buffer;
  std::size_t stream;
  LastWork work;
};

class CachingAllocatorChurnTest : public testing::TestWithParam<std::uint64_t> {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < kStreams; ++i) {
      streams_.push_back(runtime_.create_stream(0).value());
    }
  }
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  StreamSteps steps(std::size_t i) { return SteppedRuntime::steps(*streams_[i]); }
  LastWork done() {
    LastWork now{};
    for (std::size_t i = 0; i < kStreams; ++i) now[i] = steps(i).done;
    return now;
  }
  std::uint64_t use(std::size_t stream) {
    streams_[stream]->zero(nullptr, 0).value();
    return steps(stream).issued;
  }
  // From a byte to tens of MiB, every size about as often on a logarithmic scale.
  std::uint64_t random_size() { return 1 + below(1ull << (1 + below(25))); }

  void allocate() {
    const std::size_t stream = below(kStreams);
    const std::uint64_t size_bytes = random_size();
    auto buffer = allocator_.allocate(size_bytes, *streams_[stream]);
    take_gone();
    if (!buffer) {
      ASSERT_EQ(buffer.error().code, ErrorCode::no_capacity);
      // Even with the cache emptied, less than a segment was free.
      ++refused_;
      if (!held_.empty()) free();
      return;
    }
    ++allocated_;
    model_.take(buffer->data(), size_bytes, stream, done());
    Held held{std::move(*buffer), stream, {}};
    held.work[stream] = use(stream);
    if (below(3) == 0) {
      const std::size_t other = below(kStreams);
      ASSERT_TRUE(held.buffer.record_stream(*streams_[other]).has_value());
      held.work[other] = use(other);
    }
    held_bytes_ += size_bytes;
    held_.push_back(std::move(held));
  }
  void free() {
    std::swap(held_[below(held_.size())], held_.back());
    Held held = std::move(held_.back());
    held_.pop_back();
    const std::uint64_t size_bytes = held.buffer.size_bytes();
    held_bytes_ -= size_bytes;
    model_.give(held.buffer.data(), size_bytes, held.work);
    held.buffer.reset();
    ++freed_;
  }
  void advance() {
    StreamSteps& of_stream = SteppedRuntime::steps(*streams_[below(kStreams)]);
    of_stream.done += below(of_stream.issued - of_stream.done + 1);
  }
  void take_gone() {
    for (const auto& [data, size_bytes] : std::exchange(runtime_.book().gone, {})) {
      ++segments_returned_;
      model_.gone(data, size_bytes, done());
    }
  }
  void check() {
    const AllocatorStatistics now = allocator_.statistics();
    ASSERT_EQ(now.reserved_bytes, now.allocated_bytes + now.cached_bytes);
    ASSERT_EQ(now.reserved_bytes, runtime_.book().live_bytes);
    ASSERT_GE(now.allocated_bytes, held_bytes_);
    ASSERT_LE(now.pending_bytes, now.cached_bytes);
    ASSERT_LE(now.largest_free_bytes, now.cached_bytes - now.pending_bytes);
    ASSERT_EQ(now.allocations, allocated_);
    ASSERT_EQ(now.frees, freed_);
    ASSERT_EQ(now.cache_hits + now.cache_misses, allocated_);
  }

  Random random_{GetParam()};
  SteppedRuntime runtime_{1024 * kMiB};
  std::vector<std::unique_ptr<Stream>> streams_;
  CachingAllocator allocator_{runtime_, {}};
  ChurnModel model_;
  std::vector<Held> held_;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t allocated_ = 0;
  std::uint64_t freed_ = 0;
  std::uint64_t refused_ = 0;
  std::uint64_t segments_returned_ = 0;
};

TEST_P(CachingAllocatorChurnTest, NeverSharesABlockOrReusesItEarlyAndTheSumsHold) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  for (std::uint64_t i = 0; i < CAIRN_CHURN_OPERATIONS; ++i) {
    // Waves: mostly growing, then mostly shrinking.
    const bool growing = i / 4096 % 2 == 0;
    const std::uint64_t dice = below(100);
    if (dice < 10) {
      advance();
    } else if (held_.empty() || (held_.size() < kMostBuffers && (dice < 40) != growing)) {
      allocate();
    } else {
      free();
    }
    if (below(20'000) == 0) {
      allocator_.empty_cache().value();
      take_gone();
    }
    check();
    if (HasFatalFailure()) FAIL() << "at operation " << i;
  }
  EXPECT_GT(segments_returned_, 0u);
  EXPECT_GT(refused_, 0u) << "the device was never full: the retry did not run";
  while (!held_.empty()) free();
  allocator_.empty_cache().value();
  take_gone();
  check();
  EXPECT_EQ(runtime_.book().live_bytes, 0u);
}
INSTANTIATE_TEST_SUITE_P(Seeds, CachingAllocatorChurnTest, testing::Values(1, 2, 20261));

}  // namespace
}  // namespace cairn
