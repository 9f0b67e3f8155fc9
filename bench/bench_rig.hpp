#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "bench/must.hpp"
#include "blockmgr/block_manager.hpp"
#include "blockmgr/cache/awaited.hpp"
#include "memory/host/host_runtime.hpp"
#include "server/ticker.hpp"

namespace cairn {

// A block manager as a server has it, over the host runtime and the real disk.
struct BenchRig {
  // Without a disk tier.
  BenchRig() : BenchRig(std::filesystem::path("/nonexistent")) {}
  explicit BenchRig(const std::filesystem::path& data_dir)
      : manager(*runtime, scheduler, clock, log, options_over(data_dir)) {}

  static BlockManagerOptions options_over(const std::filesystem::path& data_dir) {
    BlockManagerOptions options;
    options.data_dir = data_dir;
    return options;
  }

  SystemClock clock;
  Logger log{clock, STDERR_FILENO, LogLevel::error};
  std::unique_ptr<DeviceRuntime> runtime = must(make_host_runtime({}));
  std::unique_ptr<DiskIo> disk = make_positional_disk_io();
  TransferScheduler scheduler{*runtime, *disk, clock, {}};
  BlockManager manager;
  Ticker reuse{"reuse", std::chrono::milliseconds(20), [this] { manager.follow_reuse(); }};
};

enum class Kinship { strangers, chain };

// What a commit of these slots names. Of a chain each key is the parent of the next.
inline std::vector<CommitBlock> named(const Allocation& slots, std::span<const BlockKey> keys,
                                      Kinship kinship) {
  std::vector<CommitBlock> blocks;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    CommitBlock& block = blocks.emplace_back();
    block.handle = slots.blocks[i];
    block.key = keys[i];
    if (kinship == Kinship::chain && i > 0) block.parent = keys[i - 1];
  }
  return blocks;
}

// Commits blocks of zeros under these keys in the pinned tier, and lets go of them.
inline void fill(Cache& cache, std::span<const BlockKey> keys, Kinship kinship) {
  Awaited<Allocation> allocated;
  cache.allocate({.count = static_cast<std::uint32_t>(keys.size()), .tier = Tier::pinned},
                 allocated.done());
  const Allocation slots = must(allocated.wait());
  Awaited<std::vector<CommitStatus>> committed;
  cache.commit(slots.lease, named(slots, keys, kinship), committed.done());
  must(committed.wait());
  must(cache.release(slots.lease, {}));
}

}  // namespace cairn
