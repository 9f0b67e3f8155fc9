// How far a cache's curve (GET …/miss_ratio) is from caches of those sizes run side by side: of a
// trace, with several hashes of its keys, as the hash decides which blocks the curve follows. By
// hand: ninja -C build/release cairn-bench-curve. usage: cairn-bench-curve TRACE [CAPACITY_BLOCKS
// [HASHES]]; prints the errors in points of hit rate.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <vector>

#include "base/hash.hpp"
#include "bench/must.hpp"
#include "replay/simulation.hpp"
#include "replay/trace_reader.hpp"

namespace {

using namespace cairn;

constexpr std::array<double, 5> kSizes = {0.25, 0.5, 1, 2, 4};  // of the cache's
constexpr std::size_t kOwnSize = 2;                             // of those
constexpr std::uint32_t kBlockTokens = 512;  // of the traces that Mooncake publishes

// Hits of one cache, with counts that fade as the curve's do.
struct Beside {
  ShadowCaches cache;
  double hits = 0;
};

struct Errors {
  std::vector<double> points = {};

  void add(double told, double real) { points.push_back(100 * std::abs(told - real)); }
  void print(const char* name) {
    std::ranges::sort(points);
    const double mean =
        std::accumulate(points.begin(), points.end(), 0.0) / static_cast<double>(points.size());
    const auto over = std::ranges::count_if(points, [](double error) { return error > 1; });
    std::printf(
        "%-12s mean %.2f, of 20 the second worst %.2f, worst %.2f, beyond a point %td of %zu\n",
        name, mean, points[points.size() * 19 / 20], points.back(), over, points.size());
  }
};

class SideBySide {
 public:
  explicit SideBySide(std::uint32_t capacity_blocks)
      : capacity_blocks_(capacity_blocks),
        curve_({.eviction = EvictionKind::class_hazard, .capacity_blocks = capacity_blocks}),
        until_fade_(fade_blocks()) {
    for (const double size : kSizes) {
      const std::uint32_t blocks = of(size);
      lru_.push_back({ShadowCaches(replay::shadow_of(EvictionKind::lru, blocks))});
      learnt_.push_back({ShadowCaches(replay::shadow_of(EvictionKind::class_hazard, blocks))});
    }
  }

  void request(const ShadowRequest& request) {
    // Told before the caches have changed: a hub is one by what follows it already.
    replay::report_asked(curve_, learnt_[kOwnSize].cache, request);
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      lru_[i].hits += lru_[i].cache.request(request);
      learnt_[i].hits += learnt_[i].cache.request(request);
    }
    replay::report_ended(curve_, learnt_[kOwnSize].cache, request);
    asked_ += static_cast<double>(request.blocks.size());
    until_fade_ -= static_cast<std::int64_t>(request.blocks.size());
    if (until_fade_ > 0) return;
    until_fade_ = fade_blocks();
    asked_ *= StackDistances::kFade;
    for (std::vector<Beside>* caches : {&lru_, &learnt_}) {
      for (Beside& beside : *caches) beside.hits *= StackDistances::kFade;
    }
  }

  void add_errors(Errors& lru, Errors& learnt) const {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const CapacityCurve::Point told = curve_.at(of(kSizes[i]));
      lru.add(told.lru, lru_[i].hits / asked_);
      learnt.add(told.policy, learnt_[i].hits / asked_);
    }
  }
  std::uint64_t curve_bytes() const { return curve_.memory_bytes(); }

 private:
  std::uint32_t of(double size) const {
    return static_cast<std::uint32_t>(size * capacity_blocks_);
  }
  // See CapacityCurve: a half after 16 capacities, in 16 steps.
  std::int64_t fade_blocks() const {
    return std::max<std::int64_t>(262'144, 16 * std::int64_t{capacity_blocks_}) / 16;
  }

  std::uint32_t capacity_blocks_;
  CapacityCurve curve_;
  std::vector<Beside> lru_;
  std::vector<Beside> learnt_;
  double asked_ = 0;
  std::int64_t until_fade_;
};

std::vector<replay::PromptRequest> read(const char* path) {
  auto trace = must(replay::TraceReader::open(path));
  std::vector<replay::PromptRequest> prompts;
  while (auto prompt = must(trace->next())) prompts.push_back(std::move(*prompt));
  return prompts;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int argument, unsigned long otherwise) {
    return argument < argc ? std::strtoul(argv[argument], nullptr, 10) : otherwise;
  };
  const auto capacity_blocks = static_cast<std::uint32_t>(number(2, 3'000));
  const std::uint64_t hashes = number(3, 5);
  if (argc < 2 || capacity_blocks < 4 || hashes == 0) {
    std::fputs("usage: cairn-bench-curve TRACE [CAPACITY_BLOCKS [HASHES]]\n", stderr);
    return 2;
  }
  const std::vector<replay::PromptRequest> prompts = read(argv[1]);
  Errors lru;
  Errors learnt;
  std::uint64_t bytes = 0;
  for (std::uint64_t seed = 1; seed <= hashes; ++seed) {
    SideBySide caches(capacity_blocks);
    std::vector<std::uint64_t> blocks;
    for (const replay::PromptRequest& prompt : prompts) {
      blocks.clear();
      for (const std::uint64_t id : prompt.hash_ids) {
        blocks.push_back(hash_bytes(std::as_bytes(std::span(&id, 1)), seed));
      }
      caches.request(
          {.blocks = blocks,
           .unix_ms = static_cast<std::int64_t>(prompt.timestamp_ms),
           .end = {.output_tokens = static_cast<std::uint32_t>(prompt.output_tokens),
                   .full_blocks = static_cast<std::uint32_t>(prompt.input_tokens / kBlockTokens)}});
    }
    caches.add_errors(lru, learnt);
    bytes = std::max(bytes, caches.curve_bytes());
  }
  lru.print("lru");
  learnt.print("class_hazard");
  std::printf("the curve takes %.2f MiB\n", static_cast<double>(bytes) / (1U << 20U));
}
