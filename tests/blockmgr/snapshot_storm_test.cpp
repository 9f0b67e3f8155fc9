// Makes snapshots of a cache while threads write, evict and clear it.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "blockmgr/cache/awaited.hpp"
#include "tests/blockmgr/snapshot_rig.hpp"

namespace cairn::testing {
namespace {

constexpr std::uint64_t kChains = 12;
constexpr std::uint64_t kChainLength = 5;

// Stores a chain's blocks if there is room.
void put_chain(Cache& cache, std::uint64_t chain) {
  Awaited<Allocation> allocation;
  cache.allocate({.count = kChainLength, .tier = Tier::pinned}, allocation.done());
  auto got = allocation.wait();
  if (!got) return;
  std::vector<CommitBlock> blocks;
  for (std::uint64_t i = 0; i < kChainLength; ++i) {
    const BlockKey name = key(chain * 100 + i);
    auto writer = cache.write({.lease = got->lease, .block = got->blocks[i]});
    ASSERT_TRUE(writer);
    Awaited<std::span<const iovec>> room;
    writer->room(room.done());
    const auto where = room.wait();
    ASSERT_TRUE(where);
    const Bytes bytes = bytes_of(name);
    std::size_t at = 0;
    for (const iovec& piece : *where) {
      std::memcpy(piece.iov_base, bytes.data() + at, piece.iov_len);
      at += piece.iov_len;
    }
    Awaited<> finished;
    writer->finish(finished.done());
    ASSERT_TRUE(finished.wait());
    blocks.push_back({.handle = got->blocks[i], .key = name});
    if (i > 0) blocks.back().parent = key(chain * 100 + i - 1);
  }
  Awaited<std::vector<CommitStatus>> committed;
  cache.commit(got->lease, std::move(blocks), committed.done());
  ASSERT_TRUE(committed.wait());
  ASSERT_TRUE(cache.release(got->lease, {}));
}

TEST(SnapshotStorm, EverySnapshotHoldsTheRightBytes) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  SnapshotRig rig;
  const auto cache = rig.cache(small_cache({.device = 16, .pinned = 24, .disk = 32}));
  CacheConfig config = small_cache({.pinned = 96});
  config.name = "copy";
  const auto copy = rig.cache(config);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  const auto churn = [&](unsigned n) {
    std::mt19937 random(seed + n);
    while (!stop) {
      const std::uint64_t chain = 1 + random() % kChains;
      put_chain(*cache, chain);
      if (random() % 8 == 0) (void)cache->clear(kTiers[random() % kNumTiers]);
      if (random() % 4 == 0) {
        Awaited<EvictResult> evicted;
        cache->evict({key(chain * 100 + kChainLength - 1)}, Tier::pinned, evicted.done());
        (void)evicted.wait();
      }
    }
  };
  put_chain(*cache, 1);
  std::uint64_t restored = 0;
  for (int round = 0; round < 20 && !::testing::Test::HasFailure(); ++round) {
    // The first snapshot runs alone, so that it holds blocks even if the writers are slow.
    for (unsigned n = 0; round == 1 && n < 2; ++n) threads.emplace_back(churn, n);
    const std::string name = "s" + std::to_string(round);
    const auto made = rig.make(cache, name, round % 2 == 1);
    EXPECT_TRUE(made) << made.error().detail;
    if (!made) break;
    EXPECT_EQ(made->blocks_done, made->blocks_total);
    const auto back = rig.restore(copy, name);
    EXPECT_TRUE(back) << back.error().detail;
    if (!back) break;
    EXPECT_EQ(back->blocks_done, made->blocks_done);
    for (const BlockKey& there : present_in(*copy, Tier::pinned)) {
      auto reader = copy->read(there, std::nullopt).value();
      Awaited<std::span<const iovec>> bytes;
      reader.fetch(bytes.done());
      const auto pieces = bytes.wait();
      ASSERT_TRUE(pieces);
      Bytes found;
      for (const iovec& piece : *pieces) {
        const auto* data = static_cast<const std::byte*>(piece.iov_base);
        found.insert(found.end(), data, data + piece.iov_len);
      }
      EXPECT_EQ(found, bytes_of(there));
      ++restored;
    }
    EXPECT_TRUE(copy->clear({}));
    EXPECT_TRUE(rig.snapshots().remove("test", name));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(restored, 0u);
  // Nothing stays pinned.
  rig.scheduler->wait_idle();
  for (Tier tier : kTiers) {
    EXPECT_EQ(count(*cache, tier, SlotState::committed), 0u);
    EXPECT_EQ(count(*cache, tier, SlotState::allocated), 0u);
  }
}

}  // namespace
}  // namespace cairn::testing
