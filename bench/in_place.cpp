// A tier that is mapped by another process, against memory of that process's own: how fast the
// blocks of both are read, turn by turn. Prints a line of JSON.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "bench/bench_rig.hpp"

namespace cairn {
namespace {

constexpr std::uint64_t kTotalBytes = 256ull << 20;
constexpr int kTurns = 15;
constexpr std::uint64_t kBlockBytes[] = {64ull << 10, 512ull << 10, 2ull << 20};

void check(bool fine, const char* what) {
  if (fine) return;
  std::perror(what);
  std::abort();
}

// Zeroed, and no page of it shared.
std::byte* own_memory(std::uint64_t size_bytes) {
  void* const data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  check(data != MAP_FAILED, "mmap");
  return static_cast<std::byte*>(data);
}

std::byte* mapped_memory(const ExportedMemory& memory) {
  const int file = ::open(memory.path.c_str(), O_RDWR | O_CLOEXEC);
  check(file >= 0, "open");
  void* const data = ::mmap(nullptr, memory.size_bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_POPULATE, file, 0);
  check(data != MAP_FAILED, "mmap");
  ::close(file);
  return static_cast<std::byte*>(data);
}

// As fast as one thread reads: four sums, so that no addition waits for the one before it.
std::uint64_t read_all(std::span<const std::byte> bytes) {
  const auto* const words = reinterpret_cast<const std::uint64_t*>(bytes.data());
  std::uint64_t sums[4] = {};
  for (std::size_t i = 0; i + 4 <= bytes.size() / sizeof(std::uint64_t); i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) sums[lane] += words[i + lane];
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}

struct Turn {
  double own_s = 0;
  double shared_s = 0;
};

// Every block of both once, in an order that no prefetcher knows, block by block in turn: what else
// the machine does meets both alike.
Turn read_both(const std::byte* shared, const std::byte* own, std::uint64_t block_bytes,
               std::uint64_t& sum) {
  const std::uint64_t blocks = kTotalBytes / block_bytes;
  const auto read = [&](const std::byte* base, std::uint64_t block, double& seconds) {
    const auto start = std::chrono::steady_clock::now();
    sum += read_all({base + block * block_bytes, block_bytes});
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Turn turn;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    // 40503 is odd: every block has its turn where their number is a power of two.
    const std::uint64_t block = (i * 40503) % blocks;
    if (i % 2 == 0) read(own, block, turn.own_s);
    read(shared, block, turn.shared_s);
    if (i % 2 != 0) read(own, block, turn.own_s);
  }
  return turn;
}

struct Measured {
  double ratio = 0;  // the median turn's
  double gb_per_s = 0;
};

Measured measure(const std::byte* shared, const std::byte* own, std::uint64_t block_bytes) {
  std::vector<double> ratios;
  double best_s = 1e9;
  std::uint64_t sum = 0;
  for (int turn = 0; turn <= kTurns; ++turn) {
    const Turn times = read_both(shared, own, block_bytes, sum);
    if (turn == 0) continue;  // every page is there before anything is timed
    ratios.push_back(times.own_s / times.shared_s);
    best_s = std::min(best_s, times.shared_s);
  }
  // Nobody needs the sum; but what nobody needs is not read.
  if (sum == 1) std::fputs("\n", stderr);
  std::ranges::sort(ratios);
  return {ratios[ratios.size() / 2], 1e-9 * static_cast<double>(kTotalBytes) / best_s};
}

// The engine's process. True where all went well.
void run_child(const TierMemory& tier) {
  std::byte* const shared = mapped_memory(tier.memory) + tier.regions.front().offset_bytes;
  std::byte* const own = own_memory(kTotalBytes);
  std::memset(own, 0x5A, kTotalBytes);
  std::memset(shared, 0x5A, kTotalBytes);
  std::string rows;
  for (const std::uint64_t block_bytes : kBlockBytes) {
    const Measured measured = measure(shared, own, block_bytes);
    char row[200];
    std::snprintf(row, sizeof row, "%s{\"block_bytes\": %llu, \"ratio\": %.4f, \"gb_per_s\": %.3f}",
                  rows.empty() ? "" : ", ", static_cast<unsigned long long>(block_bytes),
                  measured.ratio, measured.gb_per_s);
    rows += row;
  }
  std::printf("[%s]\n", rows.c_str());
  std::fflush(stdout);
}

// The server's process, as far as it takes part: a tier in memory that others may map.
int run() {
  BenchRig rig;
  CacheConfig config;
  config.name = "mapped";
  config.shape = {.num_layers = 1,
                  .outer_dim = 1,
                  .page_size = 16,
                  .inner_dim = 1024,
                  .dtype_width_bytes = 4,
                  .alignment = 4096};
  config.tiers[index_of(Tier::pinned)] =
      TierConfig{.num_blocks = static_cast<std::uint32_t>(kTotalBytes / (64ull << 10))};
  const auto cache = must(rig.manager.create_cache(config)).cache;
  const TierMemory tier = must(cache->export_tier(Tier::pinned, false));
  std::fflush(stdout);
  const pid_t pid = ::fork();
  check(pid >= 0, "fork");
  if (pid == 0) {
    run_child(tier);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cairn

int main() { return cairn::run(); }
