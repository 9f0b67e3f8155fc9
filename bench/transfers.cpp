// What the transfer scheduler adds to the copy itself: the same bytes by one thread's memcpy and by
// a transfer, turn by turn, so that both see the same machine.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "bench/must.hpp"
#include "layouts/builder.hpp"
#include "memory/host/host_runtime.hpp"
#include "transport/transfer/transfer_scheduler.hpp"

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

TransferJob copy_of(const BlockLayout& from, const BlockLayout& to, std::uint32_t blocks) {
  TransferJob job;
  job.source = &from;
  job.destination = &to;
  for (std::uint32_t i = 0; i < blocks; ++i) job.pairs.push_back({i, i});
  return job;
}

void run(TransferScheduler& scheduler, TransferJob job) {
  std::latch ended(1);
  job.on_complete = [&](JobOutcome outcome) {
    if (outcome.state != JobState::done) std::abort();
    ended.count_down();
  };
  must(scheduler.submit(std::move(job)));
  ended.wait();
}

void transfer(TransferScheduler& scheduler, const BlockLayout& from, const BlockLayout& to) {
  run(scheduler, copy_of(from, to, kShape.num_blocks));
}

enum class Way : std::uint8_t { load, store };

void TransferOfMemcpy(benchmark::State& state, Way way) {
  SystemClock clock;
  const auto runtime = must(make_host_runtime({}));
  const auto disk = make_positional_disk_io();
  TransferScheduler scheduler(*runtime, *disk, clock, {});
  const BlockLayout pinned =
      must(LayoutBuilder().config(kShape).fully_contiguous().allocate_pinned(*runtime, {}).build());
  const BlockLayout device =
      must(LayoutBuilder().config(kShape).fully_contiguous().allocate_device(*runtime, {}).build());
  const BlockLayout& from = way == Way::load ? pinned : device;
  const BlockLayout& to = way == Way::load ? device : pinned;
  const std::uint64_t bytes = kShape.num_blocks * block_bytes(kShape);

  transfer(scheduler, pinned, device);  // every page is there before anything is timed
  transfer(scheduler, device, pinned);
  Duration by_memcpy{};
  Duration by_engine{};
  for (auto _ : state) {
    const TimePoint start = clock.now();
    std::memcpy(to.address({}), from.address({}), bytes);
    benchmark::ClobberMemory();
    const TimePoint middle = clock.now();
    transfer(scheduler, from, to);
    by_memcpy += middle - start;
    by_engine += clock.now() - middle;
  }
  state.counters["figure"] =
      static_cast<double>(by_memcpy.count()) / static_cast<double>(by_engine.count());
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}
BENCHMARK_CAPTURE(TransferOfMemcpy, load, Way::load)->Iterations(30)->UseRealTime();
BENCHMARK_CAPTURE(TransferOfMemcpy, store, Way::store)->Iterations(30)->UseRealTime();

// Copies 2 MiB again and again in memory of its own, as a stream of the host runtime does. It has
// begun when the constructor returns.
class Copier {
 public:
  Copier() {
    std::latch begun(1);
    thread_ = std::jthread([&begun](const std::stop_token& ended) {
      std::vector<std::byte> from(2 << 20), to(2 << 20);
      begun.count_down();
      while (!ended.stop_requested()) {
        std::memcpy(to.data(), from.data(), from.size());
        benchmark::ClobberMemory();
      }
    });
    begun.wait();
  }

 private:
  std::jthread thread_;
};

enum class Yardstick { idle, busy };

// What a client waits for one block while 8 GiB leave the device, of what it waits otherwise: alone
// on the machine, or beside a thread that copies as much and has nothing to do with the engine. The
// host's streams move bytes by the CPU, so the second says what the engine's own queues cost, and
// the first also what the system's scheduler makes of threads that never wait.
void LoadWhileOffloading(benchmark::State& state, Yardstick yardstick) {
  constexpr int kLoads = 400;
  constexpr int kJobs = 64;  // of 128 MiB
  SystemClock clock;
  const auto runtime = must(make_host_runtime({}));
  const auto disk = make_positional_disk_io();
  TransferScheduler scheduler(*runtime, *disk, clock, {});
  const auto make = [&](bool on_device) {
    auto placed = LayoutBuilder().config(kShape).fully_contiguous();
    return must(on_device ? std::move(placed).allocate_device(*runtime, {}).build()
                          : std::move(placed).allocate_pinned(*runtime, {}).build());
  };
  const BlockLayout leaving = make(true);
  const BlockLayout room = make(false);
  const BlockLayout wanted = make(false);
  const BlockLayout loaded = make(true);
  transfer(scheduler, leaving, room);
  transfer(scheduler, wanted, loaded);
  const auto slowest_of_100 = [&] {
    std::vector<Duration> waits;
    for (int i = 0; i < kLoads; ++i) {
      const TimePoint start = clock.now();
      run(scheduler, copy_of(wanted, loaded, 1));
      waits.push_back(clock.now() - start);
    }
    std::ranges::sort(waits);
    return std::chrono::duration<double>(waits[kLoads * 99 / 100]).count();
  };
  std::vector<double> ratios;
  for (auto _ : state) {
    std::optional<Copier> beside;
    if (yardstick == Yardstick::busy) beside.emplace();
    const double otherwise = slowest_of_100();
    beside.reset();
    std::latch offloaded(kJobs);
    for (int left = kJobs; left > 0; --left) {
      TransferJob job = copy_of(leaving, room, kShape.num_blocks);
      job.urgency = Urgency::allocation;
      job.on_complete = [&](const JobOutcome&) { offloaded.count_down(); };
      must(scheduler.submit(std::move(job)));
    }
    ratios.push_back(slowest_of_100() / otherwise);
    offloaded.wait();
  }
  std::ranges::sort(ratios);
  state.counters["figure"] = ratios[ratios.size() / 2];
}
BENCHMARK_CAPTURE(LoadWhileOffloading, of_idle, Yardstick::idle)->Iterations(5)->UseRealTime();
BENCHMARK_CAPTURE(LoadWhileOffloading, of_busy, Yardstick::busy)->Iterations(5)->UseRealTime();

}  // namespace
}  // namespace cairn
