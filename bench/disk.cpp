// cairn-bench-disk FOLDER speed BLOCK_BYTES BLOCKS DEPTH PIECE_BYTES ENGINE CHECKS
//   pinned -> disk and disk -> pinned, in bytes a second.
// cairn-bench-disk FOLDER fill|start BLOCK_BYTES BLOCKS
//   fills every slot of a disk tier, and leaves; starts over it, in milliseconds until every block
//   can be matched.
// Prints JSON. bench/disk.py sets fio beside it.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <latch>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "bench/must.hpp"
#include "blockmgr/block_manager.hpp"
#include "layouts/builder.hpp"
#include "memory/host/host_runtime.hpp"
#include "transport/io/slot_file.hpp"
#include "transport/io/uring_disk_io.hpp"

namespace cairn {
namespace {

constexpr std::uint64_t kRounds = 3;

std::uint64_t number(const char* text) { return std::strtoull(text, nullptr, 10); }

LayoutConfig shape_of(std::uint64_t block_bytes, std::uint64_t blocks) {
  return {.num_blocks = blocks,
          .num_layers = 1,
          .outer_dim = 1,
          .page_size = 1,
          .inner_dim = block_bytes / 2,
          .dtype_width_bytes = 2,
          .alignment = 4096};
}

void move(TransferScheduler& scheduler, const BlockLayout& from, const BlockLayout& to,
          SlotContents& slots) {
  // Jobs of 32 MiB, two at a time, as the block manager submits them.
  const std::uint64_t count = from.config().num_blocks;
  const std::uint64_t step = std::max<std::uint64_t>(1, (32ull << 20) / block_bytes(from.config()));
  std::latch ended(static_cast<std::ptrdiff_t>((count + step - 1) / step));
  for (std::uint64_t first = 0; first < count; first += step) {
    TransferJob job;
    job.source = &from;
    job.destination = &to;
    job.slots = &slots;
    for (std::uint64_t i = first; i < std::min(count, first + step); ++i) {
      job.pairs.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i)});
    }
    job.on_complete = [&](JobOutcome outcome) {
      if (outcome.state != JobState::done) std::abort();
      ended.count_down();
    };
    must(scheduler.submit(std::move(job)));
  }
  ended.wait();
}

int speed(const std::filesystem::path& folder, char** argv) {
  const LayoutConfig shape = shape_of(number(argv[0]), number(argv[1]));
  const bool checks = std::string(argv[5]) == "checks";
  SystemClock clock;
  const auto runtime = must(make_host_runtime({}));
  const auto disk =
      std::string(argv[4]) == "io_uring"
          ? must(make_uring_disk_io({.depth = static_cast<std::uint32_t>(number(argv[2])),
                                     .piece_bytes = number(argv[3]),
                                     .ended = {}}))
          : make_positional_disk_io();
  TransferScheduler scheduler(*runtime, *disk, clock, {});
  const BlockLayout pinned =
      must(LayoutBuilder().config(shape).fully_contiguous().allocate_pinned(*runtime, {}).build());
  std::memset(pinned.address({}), 0x5a, pinned.regions()[0].size_bytes());
  SlotFile file = must(open_slot_file({.paths = {folder / "slots"},
                                       .owner = "bench",
                                       .shape = shape,
                                       .replace_other_shape = true,
                                       .check_every_read = checks}));
  move(scheduler, pinned, file.layout, *file.slots);  // the file's blocks are there from here on
  Duration writing{};
  Duration reading{};
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    const TimePoint start = clock.now();
    move(scheduler, pinned, file.layout, *file.slots);
    const TimePoint middle = clock.now();
    move(scheduler, file.layout, pinned, *file.slots);
    writing += middle - start;
    reading += clock.now() - middle;
  }
  const auto rate = [&](Duration took) {
    return static_cast<double>(shape.num_blocks * block_bytes(shape) * kRounds) /
           std::chrono::duration<double>(took).count();
  };
  std::printf("{\"write_bytes_per_s\": %.0f, \"read_bytes_per_s\": %.0f, \"direct\": %s}\n",
              rate(writing), rate(reading), file.not_direct.empty() ? "true" : "false");
  return 0;
}

BlockKey key_of(std::uint64_t n) {
  std::array<std::byte, 32> bytes{};
  std::memcpy(bytes.data(), &n, sizeof(n));
  return BlockKey(std::span<const std::byte>(bytes));
}

int over_manager(const std::filesystem::path& folder, bool fill, char** argv) {
  const std::uint64_t blocks = number(argv[1]);
  SystemClock clock;
  Logger log(clock, STDERR_FILENO, LogLevel::warning);
  const auto runtime = must(make_host_runtime({}));
  const auto disk = make_positional_disk_io();
  TransferScheduler scheduler(*runtime, *disk, clock, {});
  CacheConfig config;
  config.name = "bench";
  config.shape = shape_of(number(argv[0]), 0);
  config.tiers[index_of(Tier::disk)] = TierConfig{.num_blocks = static_cast<std::uint32_t>(blocks)};
  BlockManagerOptions options;
  options.data_dir = folder;
  const TimePoint start = clock.now();
  BlockManager manager(*runtime, scheduler, clock, log, options);
  const auto cache = must(manager.create_cache(config)).cache;
  if (!fill) {
    const double ms = std::chrono::duration<double, std::milli>(clock.now() - start).count();
    std::uint64_t there = 0;
    for (std::uint64_t n = 0; n < blocks; ++n) {
      const BlockKey key = key_of(n);
      const KeyView view = key;
      if (cache->contains(std::span(&view, 1))[0]) ++there;
    }
    std::printf("{\"start_ms\": %.1f, \"blocks\": %llu}\n", ms,
                static_cast<unsigned long long>(there));
    std::fflush(stdout);
    ::_exit(0);  // the folder stays as it is
  }
  constexpr std::uint64_t kStep = 16'384;
  for (std::uint64_t first = 0; first < blocks; first += kStep) {
    const auto count = static_cast<std::uint32_t>(std::min(kStep, blocks - first));
    std::latch ended(1);
    cache->allocate(
        {.count = count, .tier = Tier::disk, .lease_ms = 3'600'000},
        [&](Result<Allocation> allocation) {
          std::vector<CommitBlock> commits;
          for (std::uint32_t i = 0; i < count; ++i) {
            commits.push_back({.handle = allocation->blocks[i], .key = key_of(first + i)});
            if (i % 64 != 0) commits.back().parent = key_of(first + i - 1);
          }
          cache->commit(allocation->lease, std::move(commits),
                        [&, lease = allocation->lease](auto done) {
                          if (!done) std::abort();
                          must(cache->release(lease, {}));
                          ended.count_down();
                        });
        });
    ended.wait();
  }
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[2] : "";
  if (what == "speed" && argc == 9) return cairn::speed(argv[1], argv + 3);
  if ((what == "fill" || what == "start") && argc == 5) {
    return cairn::over_manager(argv[1], what == "fill", argv + 3);
  }
  std::fprintf(stderr, "cairn-bench-disk: see bench/disk.py\n");
  return 2;
}
