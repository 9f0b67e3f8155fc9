// What an allocation costs beside the driver's own, and how much of what is reserved is of use.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <vector>

#include "bench/must.hpp"
#include "memory/alloc/caching_allocator.hpp"
#include "memory/alloc/index_free_list.hpp"
#include "memory/alloc/pinned_pool.hpp"
#include "memory/alloc/size_bucket_pool.hpp"
#include "memory/alloc/slab_pool.hpp"
#include "memory/host/host_runtime.hpp"

namespace cairn {
namespace {

using Buffer = CachingAllocator::Buffer;

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;

// What a device tier asks for beside its slots, job after job: a list of addresses, a buffer for
// each of 1 to 16 blocks of one of three models (512 KiB, 2 MiB, 5 MiB: pages of 16 tokens with 1
// to 70 billion parameters) and scratch for part of a layer. Jobs end nearly in order.
class Job {
 public:
  Job(CachingAllocator& allocator, Stream& stream, std::mt19937_64& random) {
    constexpr std::array<std::uint64_t, 3> kBlockBytes = {512 * kKiB, 2 * kMiB, 5 * kMiB};
    const std::uint64_t block_bytes = kBlockBytes[random() % kBlockBytes.size()];
    const auto add = [&](std::uint64_t size_bytes) {
      buffers_.push_back(must(allocator.allocate(size_bytes, stream)));
      size_bytes_ += size_bytes;
    };
    add(1 + random() % (256 * kKiB));
    for (std::uint64_t left = 1 + random() % 16; left > 0; --left) add(block_bytes);
    add((1 + random() % 32) * 32 * kKiB);
  }
  std::uint64_t size_bytes() const { return size_bytes_; }
  std::vector<Buffer>& buffers() { return buffers_; }

 private:
  std::vector<Buffer> buffers_;
  std::uint64_t size_bytes_ = 0;
};

void DriverAllocation(benchmark::State& state) {
  const auto runtime = must(make_host_runtime({}));
  for (auto _ : state) benchmark::DoNotOptimize(must(runtime->allocate_device(2 * kMiB, {})));
}
BENCHMARK(DriverAllocation);

// One size, again and again, in a heap full of others: an allocation that hits, and its free.
void CachingHit(benchmark::State& state) {
  const auto runtime = must(make_host_runtime({}));
  const auto stream = must(runtime->create_stream(0));
  CachingAllocator allocator(*runtime, {});
  std::mt19937_64 random(1);
  std::vector<Buffer> held;
  for (int i = 0; i < 1000; ++i) {
    held.push_back(must(allocator.allocate(1 + random() % (4 * kMiB), *stream)));
  }
  for (std::size_t i = 0; i < held.size(); i += 2) held[i].reset();
  const auto size_bytes = static_cast<std::uint64_t>(state.range(0));
  must(allocator.allocate(size_bytes, *stream));
  for (auto _ : state) {
    const Buffer buffer = must(allocator.allocate(size_bytes, *stream));
    benchmark::DoNotOptimize(buffer.data());
  }
  state.counters["s_an_operation"] =
      benchmark::Counter(2.0 * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(CachingHit)->Arg(4 << 10)->Arg(512 << 10)->Arg(2 << 20)->Arg(32 << 20);

// Jobs about a working set of 4 GiB; with `events` every fourth job's buffers are used by a second
// stream too. `use` is the peak of what was allocated as a share of the peak of what was reserved,
// `use_of_asked` the same of the bytes that were asked for; with events both also tell how far the
// second stream, a thread of this machine, is behind. An operation is an allocation or a free.
void CachingMixed(benchmark::State& state) {
  constexpr std::uint64_t kWorkingSetBytes = 4096 * kMiB;
  const bool with_events = state.range(1) != 0;
  const auto runtime = must(make_host_runtime({.device_bytes = 1ull << 40}));
  const auto stream = must(runtime->create_stream(0));
  const auto other = must(runtime->create_stream(0));
  CachingAllocator::Options options;
  if (state.range(0) != 0) options.idle_limit_bytes = ~0ull;
  CachingAllocator allocator(*runtime, options);
  std::mt19937_64 random(2);
  std::deque<Job> jobs;
  std::uint64_t held_bytes = 0;
  std::uint64_t peak_bytes = 0;
  for (auto _ : state) {
    Job& job = jobs.emplace_back(allocator, *stream, random);
    if (with_events && random() % 4 == 0) {
      for (Buffer& buffer : job.buffers()) must(buffer.record_stream(*other));
    }
    held_bytes += job.size_bytes();
    peak_bytes = std::max(peak_bytes, held_bytes);
    while (held_bytes > kWorkingSetBytes) {
      const auto leaving = jobs.begin() + static_cast<std::ptrdiff_t>(
                                              random() % std::min<std::size_t>(jobs.size(), 8));
      held_bytes -= leaving->size_bytes();
      std::swap(*leaving, jobs.front());
      jobs.pop_front();
    }
  }
  const AllocatorStatistics now = allocator.statistics();
  const auto reserved_bytes = static_cast<double>(now.peak_reserved_bytes);
  const auto allocations = static_cast<double>(now.allocations);
  state.counters["use"] = static_cast<double>(now.peak_allocated_bytes) / reserved_bytes;
  state.counters["use_of_asked"] = static_cast<double>(peak_bytes) / reserved_bytes;
  state.counters["hits"] = static_cast<double>(now.cache_hits) / allocations;
  state.counters["s_an_operation"] =
      benchmark::Counter(static_cast<double>(now.allocations + now.frees),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(CachingMixed)
    ->ArgNames({"keep_idle", "events"})
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->Iterations(100'000);

// What serves requests on the host, each as an allocation and its free by 1 and by 2 threads.
void FreeListPair(benchmark::State& state) {
  static IndexFreeList list(1024);
  for (auto _ : state) list.push(*list.pop());
}
BENCHMARK(FreeListPair)->Threads(1)->Threads(2);

void SizeBucketPair(benchmark::State& state) {
  static const auto pool = must(SizeBucketPool::create({}));
  for (auto _ : state) benchmark::DoNotOptimize(must(pool->acquire(4000)).data());
}
BENCHMARK(SizeBucketPair)->Threads(1)->Threads(2);

void SlabPair(benchmark::State& state) {
  static SlabPool pool(&Region::system, {});
  for (auto _ : state) benchmark::DoNotOptimize(must(pool.allocate(4000)).data());
}
BENCHMARK(SlabPair)->Threads(1)->Threads(2);

void PinnedPair(benchmark::State& state) {
  const auto runtime = must(make_host_runtime({}));
  PinnedPool pool(*runtime, {.limit_bytes = 64 * kMiB});
  for (auto _ : state) {
    pool.acquire(2 * kMiB, [](Result<PinnedPool::Slot> slot) {
      benchmark::DoNotOptimize(must(std::move(slot)).data());
    });
  }
}
BENCHMARK(PinnedPair);

}  // namespace
}  // namespace cairn
