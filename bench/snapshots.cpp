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

#include "bench/bench_rig.hpp"

namespace cairn {
namespace {

constexpr std::uint32_t kSnapshotBlocks = 128;  // of 2 MiB

// A cache full of committed blocks, over a folder of the working directory: /tmp may be memory.
class Snapped {
 public:
  Snapped() : folder_(std::filesystem::absolute("bench-snapshots")), rig_(folder_) {
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
    config.tiers[index_of(Tier::pinned)].emplace().num_blocks = kSnapshotBlocks;
    cache_ = must(rig_.manager.create_cache(config)).cache;
    std::vector<BlockKey> keys;
    for (std::uint32_t i = 0; i < kSnapshotBlocks; ++i) {
      keys.emplace_back(std::as_bytes(std::span(&i, 1)));
    }
    fill(*cache_, keys, Kinship::strangers);
  }
  ~Snapped() { std::filesystem::remove_all(folder_); }

  void make() {
    finish(must(rig_.manager.snapshots().make(cache_, {.name = "s", .compress = false})));
  }
  void restore() {
    const auto file = must(rig_.manager.snapshots().file_of("bench", "s"));
    finish(must(rig_.manager.snapshots().restore(cache_, {.file = file, .partial = false})));
  }
  void remove() { must(rig_.manager.snapshots().remove("bench", "s")); }
  void clear() { must(cache_->clear({})); }
  std::uint64_t bytes() const { return kSnapshotBlocks * cache_->block_bytes(); }

  // As many bytes by write(2) and fsync(2).
  void write_plain() const {
    static const std::vector<char> block(2 << 20);
    const auto path = folder_ / "plain";
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (std::uint32_t i = 0; i < kSnapshotBlocks; ++i) {
      if (::write(fd, block.data(), block.size()) != static_cast<::ssize_t>(block.size())) {
        std::abort();
      }
    }
    if (::fsync(fd) != 0) std::abort();
    ::close(fd);
    std::filesystem::remove(path);
  }

 private:
  void finish(TransferId id) {
    // Shared: who tells of the end may still be busy with it when this goes on.
    auto ended = std::make_shared<std::promise<bool>>();
    must(rig_.manager.watch_transfer(id, [ended](const TransferStatus& status) {
      ended->set_value(status.state == TransferState::done);
    }));
    if (!ended->get_future().get()) std::abort();
  }

  const std::filesystem::path folder_;
  BenchRig rig_;
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
