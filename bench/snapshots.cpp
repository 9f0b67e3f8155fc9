// What a snapshot costs, as a ratio to what the disk does with as many bytes in the same run.

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "bench/must.hpp"
#include "blockmgr/block_manager.hpp"

namespace cairn {
namespace {

constexpr std::uint32_t kBlocks = 128;  // of 2 MiB

// A cache full of committed blocks, over a folder of the working directory: /tmp may be memory.
class Snapped {
 public:
  Snapped()
      : folder_(std::filesystem::absolute("bench-snapshots")),
        log_(clock_, 2, LogLevel::error),
        runtime_(must(make_host_runtime({}))),
        disk_(make_positional_disk_io()),
        engine_(*runtime_, *disk_, clock_, {}),
        manager_(*runtime_, engine_, clock_, log_, options()) {
    std::filesystem::create_directories(folder_);
    CacheConfig config;
    config.name = "bench";
    config.shape = {.num_blocks = 1,
                    .num_layers = 32,
                    .outer_dim = 2,
                    .page_size = 16,
                    .inner_dim = 1024,
                    .dtype_width_bytes = 2,
                    .alignment = 4096};
    config.tiers[index_of(Tier::pinned)].emplace().num_blocks = kBlocks;
    cache_ = must(manager_.create_cache(config)).cache;
    auto allocated = std::make_shared<std::promise<Allocation>>();
    cache_->allocate({.count = kBlocks, .tier = Tier::pinned, .lease_ms = {}, .priority = 50},
                     [allocated](auto result) { allocated->set_value(must(std::move(result))); });
    const Allocation slots = allocated->get_future().get();
    std::vector<CommitBlock> blocks;
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      CommitBlock& block = blocks.emplace_back();
      block.handle = slots.blocks[i];
      block.key = BlockKey(std::as_bytes(std::span(&i, 1)));
    }
    auto committed = std::make_shared<std::promise<void>>();
    cache_->commit(slots.lease, std::move(blocks), [committed](auto result) {
      must(std::move(result));
      committed->set_value();
    });
    committed->get_future().get();
    must(cache_->release(slots.lease, {}));
  }
  ~Snapped() { std::filesystem::remove_all(folder_); }

  void make() { finish(must(manager_.snapshots().make(cache_, {.name = "s", .compress = false}))); }
  void restore() {
    const auto file = must(manager_.snapshots().file_of("bench", "s"));
    finish(must(manager_.snapshots().restore(cache_, {.file = file, .partial = false})));
  }
  void remove() { must(manager_.snapshots().remove("bench", "s")); }
  void clear() { must(cache_->clear({})); }
  std::uint64_t bytes() const { return kBlocks * cache_->block_bytes(); }

  // As many bytes by write(2) and fsync(2).
  void write_plain() const {
    static const std::vector<char> block(2 << 20);
    const auto path = folder_ / "plain";
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      if (::write(fd, block.data(), block.size()) != static_cast<::ssize_t>(block.size())) {
        std::abort();
      }
    }
    if (::fsync(fd) != 0) std::abort();
    ::close(fd);
    std::filesystem::remove(path);
  }

 private:
  BlockManagerOptions options() const {
    BlockManagerOptions options;
    options.data_dir = folder_;
    return options;
  }
  void finish(TransferId id) {
    // Shared: who tells of the end may still be busy with it when this goes on.
    auto ended = std::make_shared<std::promise<bool>>();
    must(manager_.watch_transfer(id, [ended](const TransferStatus& status) {
      ended->set_value(status.state == TransferState::done);
    }));
    if (!ended->get_future().get()) std::abort();
  }

  const std::filesystem::path folder_;
  SystemClock clock_;
  Logger log_;
  std::unique_ptr<DeviceRuntime> runtime_;
  std::unique_ptr<DiskIo> disk_;
  TransferEngine engine_;
  BlockManager manager_;
  std::shared_ptr<Cache> cache_;
};

template <class Work>
double seconds_of(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void SnapshotMake(benchmark::State& state) {
  Snapped snapped;
  double made = 0;
  double plain = 0;
  for (auto _ : state) {
    plain += seconds_of([&] { snapped.write_plain(); });
    made += seconds_of([&] { snapped.make(); });
    snapped.remove();
  }
  state.counters["figure"] = plain / made;
}
BENCHMARK(SnapshotMake)->Iterations(4)->UseRealTime();

// Both passes over the file, the bytes in the page cache.
void SnapshotRestore(benchmark::State& state) {
  Snapped snapped;
  snapped.make();
  double seconds = 0;
  for (auto _ : state) {
    snapped.clear();
    seconds += seconds_of([&] { snapped.restore(); });
  }
  state.counters["figure"] = static_cast<double>(snapped.bytes()) *
                             static_cast<double>(state.iterations()) / seconds / 1e9;
}
BENCHMARK(SnapshotRestore)->Iterations(8)->UseRealTime();

}  // namespace
}  // namespace cairn
