// What the block manager costs: a slot, a key of a match, a block's metadata.

#include <benchmark/benchmark.h>

#include <array>
#include <chrono>
#include <compare>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "bench/bench_rig.hpp"
#include "blockmgr/index/slot_pool.hpp"

namespace cairn {
namespace {

constexpr std::uint32_t kBlocks = 1'000'000;
constexpr std::uint32_t kChainBlocks = 1'000;
constexpr std::size_t kKeyBytes = 32;
constexpr std::uint32_t kStoredBlocks = 64;

CacheConfig pinned_blocks(const char* name, std::uint32_t count) {
  CacheConfig config;
  config.name = name;
  config.shape = {.num_blocks = 1,
                  .num_layers = 1,
                  .outer_dim = 1,
                  .page_size = 16,
                  .inner_dim = 1,
                  .dtype_width_bytes = 1,
                  .alignment = 1};
  config.tiers[index_of(Tier::pinned)].emplace().num_blocks = count;
  return config;
}

struct FullCacheOptions {
  EvictionKind eviction = EvictionKind::lru;
  std::uint32_t blocks = kBlocks;

  auto operator<=>(const FullCacheOptions&) const = default;
};

// A cache of committed blocks in chains of 1,000, with room for a prompt on a device. The blocks
// are small: their bytes play no part in what is measured.
class FullCache {
 public:
  explicit FullCache(FullCacheOptions options) : chains_(options.blocks / kChainBlocks) {
    CacheConfig config = pinned_blocks("bench", options.blocks);
    config.tiers[index_of(Tier::device)].emplace().num_blocks = kStoredBlocks;
    config.eviction = options.eviction;
    cache_ = must(rig_.manager.create_cache(config)).cache;
    std::mt19937_64 random(1);
    keys_.resize(std::size_t{options.blocks} * kKeyBytes);
    for (std::size_t i = 0; i < keys_.size(); i += 8) {
      const std::uint64_t word = random();
      std::memcpy(&keys_[i], &word, 8);
    }
    for (std::uint32_t number = 0; number < chains_; ++number) {
      const std::vector<KeyView> views = chain(number);
      fill(*cache_, std::vector<BlockKey>(views.begin(), views.end()), Kinship::chain);
    }
  }

  Cache& cache() { return *cache_; }
  TransferScheduler& scheduler() { return rig_.scheduler; }
  std::uint32_t chains() const { return chains_; }
  std::vector<KeyView> chain(std::uint32_t number) const {
    std::vector<KeyView> views;
    for (std::uint32_t i = 0; i < kChainBlocks; ++i) views.push_back(key(number, i));
    return views;
  }

 private:
  KeyView key(std::uint32_t chain, std::uint32_t i) const {
    return {&keys_[(std::size_t{chain} * kChainBlocks + i) * kKeyBytes], kKeyBytes};
  }

  const std::uint32_t chains_;
  BenchRig rig_;
  std::shared_ptr<Cache> cache_;
  std::vector<std::byte> keys_;
};

// Filling one takes a second a million blocks: once for all benchmarks.
FullCache& full_cache(FullCacheOptions options = {}) {
  static std::map<FullCacheOptions, FullCache> caches;
  return caches.try_emplace(options, options).first->second;
}

void SlotAllocateFree(benchmark::State& state) {
  SlotPool pool(65'536, nullptr);
  std::vector<SlotNumber> held(512);
  for (auto _ : state) {
    for (SlotNumber& slot : held) slot = pool.take();
    for (SlotNumber slot : held) {
      pool.unpin(slot);
      pool.give_back(slot);
    }
  }
  state.counters["figure"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(held.size()) / 1e9,
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(SlotAllocateFree);

// What each copy that comes or goes adds under its cache's lock.
void EventAppend(benchmark::State& state) {
  EventRing ring({.capacity = 65'536, .first_id = 1});
  std::array<std::byte, kKeyBytes> bytes{};
  const BlockKey key(bytes);
  for (auto _ : state) {
    ring.append({.unix_ms = 1, .cache = 1, .tier = EventTier::pinned, .key = key, .parent = key});
  }
  state.counters["figure"] =
      benchmark::Counter(static_cast<double>(state.iterations()) / 1e9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(EventAppend);

void walk_chains(benchmark::State& state, std::optional<std::uint32_t> lease_ms,
                 FullCacheOptions options = {}) {
  FullCache& full = full_cache(options);
  std::mt19937 random(2);
  std::vector<std::vector<KeyView>> chains;
  for (std::uint32_t i = 0; i < full.chains(); ++i) chains.push_back(full.chain(i));
  MatchResult result;
  for (auto _ : state) {
    must(full.cache().match(chains[random() % chains.size()], lease_ms, result));
    if (result.blocks.size() != kChainBlocks) std::abort();
    if (result.lease) must(full.cache().release(*result.lease, {}));
  }
  state.counters["figure"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kChainBlocks / 1e9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void MatchPrefix(benchmark::State& state) { walk_chains(state, 30'000); }
BENCHMARK(MatchPrefix)->MinTime(2);

void LookPrefix(benchmark::State& state) { walk_chains(state, 0); }
BENCHMARK(LookPrefix)->MinTime(2);

void MatchPrefixLearnt(benchmark::State& state) {
  walk_chains(state, 30'000, {.eviction = EvictionKind::class_hazard});
}
BENCHMARK(MatchPrefixLearnt)->MinTime(2);

constexpr FullCacheOptions kTenTimes{.blocks = 10 * kBlocks};
void MatchPrefixOfTenMillion(benchmark::State& state) { walk_chains(state, 30'000, kTenTimes); }
BENCHMARK(MatchPrefixOfTenMillion)->MinTime(2);

void LookPrefixOfTenMillion(benchmark::State& state) { walk_chains(state, 0, kTenTimes); }
BENCHMARK(LookPrefixOfTenMillion)->MinTime(2);

BlockKey random_key(std::mt19937_64& random) {
  const std::array<std::uint64_t, 4> words = {random(), random(), random(), random()};
  return BlockKey(std::as_bytes(std::span(words)));
}

// A prompt of 64 new blocks in a full cache, verb by verb: which of them is measured, a block.
enum class Verb { allocate_and_evict, commit, release, onboard, evict };
constexpr std::array<const char*, 5> kVerbNames = {"allocate, which evicts", "commit", "release",
                                                   "onboard to a device", "evict by key"};

void VerbPerBlock(benchmark::State& state) {
  const auto measured = static_cast<Verb>(state.range(0));
  FullCache& full = full_cache();
  Cache& cache = full.cache();
  std::mt19937_64 random(4);
  std::vector<BlockKey> prompt(kStoredBlocks);
  double seconds = 0;
  const auto step = [&](Verb verb, auto&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (verb == measured) seconds += took.count();
  };
  for (auto _ : state) {
    for (BlockKey& key : prompt) key = random_key(random);
    Awaited<Allocation> allocated;
    Allocation slots;
    step(Verb::allocate_and_evict, [&] {
      cache.allocate({.count = kStoredBlocks, .tier = Tier::pinned}, allocated.done());
      slots = must(allocated.wait());
    });
    std::vector<CommitBlock> blocks = named(slots, prompt, Kinship::chain);
    step(Verb::commit, [&] {
      Awaited<std::vector<CommitStatus>> committed;
      cache.commit(slots.lease, std::move(blocks), committed.done());
      must(committed.wait());
    });
    step(Verb::release, [&] { must(cache.release(slots.lease, {})); });
    const std::vector<KeyView> keys(prompt.begin(), prompt.end());
    MatchResult matched;
    must(cache.match(keys, 30'000, matched));
    step(Verb::onboard, [&] {
      must(cache.onboard({.lease = *matched.lease, .keys = keys, .tier = Tier::device}));
      full.scheduler().wait_idle();
    });
    must(cache.release(*matched.lease, {}));
    step(Verb::evict, [&] {
      Awaited<EvictResult> evicted;
      cache.evict(prompt, {}, evicted.done());
      must(evicted.wait());
    });
    for (BlockKey& key : prompt) key = random_key(random);
    fill(cache, prompt, Kinship::chain);
  }
  state.SetLabel(kVerbNames[static_cast<std::size_t>(measured)]);
  state.counters["figure"] =
      seconds * 1e9 / static_cast<double>(state.iterations()) / kStoredBlocks;
}
BENCHMARK(VerbPerBlock)->DenseRange(0, 4)->Iterations(2'000);

// Prompts of 64 new blocks, each of which takes the place of another: allocate, commit, release.
void store_chains(benchmark::State& state, EvictionKind eviction) {
  FullCache& full = full_cache({.eviction = eviction});
  std::mt19937_64 random(3);
  std::vector<BlockKey> prompt(kStoredBlocks);
  for (auto _ : state) {
    for (BlockKey& key : prompt) key = random_key(random);
    fill(full.cache(), prompt, Kinship::chain);
  }
  state.counters["figure"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kStoredBlocks / 1e9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void StorePrefix(benchmark::State& state) { store_chains(state, EvictionKind::lru); }
BENCHMARK(StorePrefix)->MinTime(1);

void StorePrefixLearnt(benchmark::State& state) { store_chains(state, EvictionKind::class_hazard); }
BENCHMARK(StorePrefixLearnt)->MinTime(1);

void MetadataPerBlock(benchmark::State& state) {
  const CacheStats stats = full_cache().cache().stats();
  for (auto _ : state) benchmark::DoNotOptimize(stats.metadata_bytes);
  state.counters["figure"] = static_cast<double>(stats.metadata_bytes) / kBlocks;
}
BENCHMARK(MetadataPerBlock)->Iterations(1);

// Requests of as many keys as one may have, in a cache of a million blocks: how long the lock is
// held at a time.
class LongChains {
 public:
  static constexpr std::uint32_t kLength = 65'536;

  LongChains() {
    CacheConfig config = pinned_blocks("long", kBlocks);
    config.tiers[index_of(Tier::device)].emplace().num_blocks = kLength;
    cache_ = must(rig_.manager.create_cache(config)).cache;
    for (std::uint32_t i = 0; i < kBlocks / kLength; ++i) store_chain();
  }

  Cache& cache() { return *cache_; }
  // Into the device tier, and out of it again, as much as a request may name.
  void bring(const std::vector<KeyView>& chain) {
    TransferRequest request;
    for (const KeyView key : chain) request.keys.emplace_back(key);
    must(cache_->transfer(request));
    rig_.scheduler.wait_idle();
    must(cache_->clear(Tier::device));
  }
  // One of those stored last, which are there as a whole.
  std::vector<KeyView> some_chain() {
    const auto& keys = chains_[(next_ - 1 - random_() % 4) % chains_.size()];
    return {keys.begin(), keys.end()};
  }
  // The slots that it takes are given up again, as every key is there.
  void store_last_chain_again() {
    fill(*cache_, chains_[(next_ - 1) % chains_.size()], Kinship::chain);
  }
  // Evicts another chain's blocks.
  void store_chain() {
    auto& keys = chains_[next_ % chains_.size()];
    ++next_;
    keys.clear();
    for (std::uint32_t i = 0; i < kLength; ++i) keys.push_back(random_key(random_));
    fill(*cache_, keys, Kinship::chain);
  }

 private:
  BenchRig rig_;
  std::shared_ptr<Cache> cache_;
  std::mt19937_64 random_{3};
  std::array<std::vector<BlockKey>, kBlocks / kLength> chains_;
  std::size_t next_ = 0;
};

// So many per thousand of the holds were no longer, in microseconds: the upper bound of a bucket.
double hold_us(const LockHolds::OfUse& before, const LockHolds::OfUse& after, double share) {
  double total = 0;
  for (std::size_t i = 0; i < after.counts.size(); ++i) {
    total += static_cast<double>(after.counts[i] - before.counts[i]);
  }
  double seen = 0;
  for (std::size_t i = 0; i < LockHolds::kBoundsNs.size(); ++i) {
    seen += static_cast<double>(after.counts[i] - before.counts[i]);
    if (seen >= share * total) return static_cast<double>(LockHolds::kBoundsNs[i]) / 1e3;
  }
  return 1e9;
}

LongChains& all_long_chains() {
  static LongChains chains;
  return chains;
}

std::vector<BlockHandle> every_other(const std::vector<BlockHandle>& blocks) {
  std::vector<BlockHandle> some;
  for (std::size_t i = 0; i < blocks.size(); i += 2) some.push_back(blocks[i]);
  return some;
}

void LockHold(benchmark::State& state) {
  LongChains& long_chains = all_long_chains();
  Cache& cache = long_chains.cache();
  const auto use = static_cast<LockUse>(state.range(0));
  MatchResult result;
  const LockHolds before = cache.stats().lock_holds;
  for (auto _ : state) {
    const std::vector<KeyView> keys = long_chains.some_chain();
    must(cache.match(keys, 30'000, result));
    must(cache.release(*result.lease, {.blocks = every_other(result.blocks)}));
    must(cache.release(*result.lease, {}));
    benchmark::DoNotOptimize(cache.contains(keys));
    benchmark::DoNotOptimize(cache.read_prefix(keys));
    long_chains.bring(keys);
    long_chains.store_chain();  // allocates, evicts, writes and commits
    long_chains.store_last_chain_again();
  }
  const LockHolds after = cache.stats().lock_holds;
  state.SetLabel(std::string(to_string(use)));
  state.counters["p50_us"] = hold_us(before.of(use), after.of(use), 0.5);
  state.counters["p99_us"] = hold_us(before.of(use), after.of(use), 0.99);
  state.counters["max_us"] = hold_us(before.of(use), after.of(use), 1);
  state.counters["figure"] = state.counters["p99_us"];
}
BENCHMARK(LockHold)
    ->Arg(static_cast<int>(LockUse::match))
    ->Arg(static_cast<int>(LockUse::lease))
    ->Arg(static_cast<int>(LockUse::look))
    ->Arg(static_cast<int>(LockUse::read))
    ->Arg(static_cast<int>(LockUse::allocate))
    ->Arg(static_cast<int>(LockUse::commit))
    ->Arg(static_cast<int>(LockUse::transfer))
    ->Arg(static_cast<int>(LockUse::movement))
    ->Iterations(8);

// The longest that another order of eviction holds the lock, with all blocks there.
void LockHoldOfAnotherOrder(benchmark::State& state) {
  LongChains& long_chains = all_long_chains();
  Cache& cache = long_chains.cache();
  const auto remember = [](const CacheConfig&) -> Result<> { return {}; };
  const LockHolds before = cache.stats().lock_holds;
  for (auto _ : state) {
    for (const EvictionKind eviction : {EvictionKind::class_hazard, EvictionKind::lru}) {
      must(cache.change({.eviction = eviction}, remember));
      long_chains.store_chain();
    }
  }
  const LockHolds after = cache.stats().lock_holds;
  state.counters["max_us"] = hold_us(before.of(LockUse::upkeep), after.of(LockUse::upkeep), 1);
  state.counters["figure"] = state.counters["max_us"];
}
BENCHMARK(LockHoldOfAnotherOrder)->Iterations(8);

}  // namespace
}  // namespace cairn
