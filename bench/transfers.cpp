// What the transfer engine adds to the copy itself: the same bytes by one thread's memcpy and by a
// transfer, turn by turn, so that both see the same machine.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <latch>

#include "base/clock.hpp"
#include "bench/must.hpp"
#include "layouts/builder.hpp"
#include "transport/engine/transfer_engine.hpp"

namespace cairn {
namespace {

// 64 blocks of a Llama-3-8B page of 16 tokens: 128 MiB, far beyond any cache.
constexpr LayoutConfig kShape = {.num_blocks = 64,
                                 .num_layers = 32,
                                 .outer_dim = 2,
                                 .page_size = 16,
                                 .inner_dim = 1024,
                                 .dtype_width_bytes = 2,
                                 .alignment = 4096};

void transfer(TransferEngine& engine, const BlockLayout& from, const BlockLayout& to) {
  TransferJob job;
  job.source = &from;
  job.destination = &to;
  for (std::uint32_t i = 0; i < kShape.num_blocks; ++i) job.pairs.push_back({i, i});
  std::latch ended(1);
  job.on_complete = [&](JobOutcome outcome) {
    if (outcome.state != JobState::done) std::abort();
    ended.count_down();
  };
  must(engine.submit(std::move(job)));
  ended.wait();
}

enum class Way : std::uint8_t { load, store };

void TransferOfMemcpy(benchmark::State& state, Way way) {
  SystemClock clock;
  const auto runtime = must(make_host_runtime({}));
  const auto disk = make_positional_disk_io();
  TransferEngine engine(*runtime, *disk, clock, {});
  const BlockLayout pinned =
      must(LayoutBuilder().config(kShape).fully_contiguous().allocate_pinned(*runtime, {}).build());
  const BlockLayout device =
      must(LayoutBuilder().config(kShape).fully_contiguous().allocate_device(*runtime, {}).build());
  const BlockLayout& from = way == Way::load ? pinned : device;
  const BlockLayout& to = way == Way::load ? device : pinned;
  const std::uint64_t bytes = kShape.num_blocks * block_bytes(kShape);

  transfer(engine, pinned, device);  // every page is there before anything is timed
  transfer(engine, device, pinned);
  Duration by_memcpy{};
  Duration by_engine{};
  for (auto _ : state) {
    const TimePoint start = clock.now();
    std::memcpy(to.address({}), from.address({}), bytes);
    benchmark::ClobberMemory();
    const TimePoint middle = clock.now();
    transfer(engine, from, to);
    by_memcpy += middle - start;
    by_engine += clock.now() - middle;
  }
  state.counters["figure"] =
      static_cast<double>(by_memcpy.count()) / static_cast<double>(by_engine.count());
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}
BENCHMARK_CAPTURE(TransferOfMemcpy, load, Way::load)->Iterations(30)->UseRealTime();
BENCHMARK_CAPTURE(TransferOfMemcpy, store, Way::store)->Iterations(30)->UseRealTime();

}  // namespace
}  // namespace cairn
