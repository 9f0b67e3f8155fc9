// ReuseWatch records a cache's requests outside the cache's lock.
#include "blockmgr/reuse/reuse_watch.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace cairn {
namespace {

// Keys of one prompt, 32 bytes each. They differ only in their last bytes, as big-endian numbers
// do.
class Prompt {
 public:
  Prompt(std::uint32_t number, std::size_t blocks) : bytes_(blocks * kKeyBytes) {
    for (std::size_t i = 0; i < blocks; ++i) {
      const std::uint64_t id = __builtin_bswap64((std::uint64_t{number} << 16U) + i);
      std::memcpy(&bytes_[(i + 1) * kKeyBytes - sizeof(id)], &id, sizeof(id));
      views_.push_back({&bytes_[i * kKeyBytes], kKeyBytes});
    }
  }
  std::span<const KeyView> keys() const { return views_; }

 private:
  static constexpr std::size_t kKeyBytes = 32;
  std::vector<std::byte> bytes_;
  std::vector<KeyView> views_;
};

LeaseId lease_of(std::uint32_t number) {
  LeaseId lease;
  std::memcpy(lease.secret.data(), &number, sizeof(number));
  return lease;
}

double lru_at(const ReuseWatch& watch, std::uint64_t capacity_blocks) {
  return watch.report(std::span(&capacity_blocks, 1)).points.at(0).lru;
}

// The watch samples one key in 32, also if keys differ in few bytes.
TEST(ReuseWatch, SamplesItsShareOfSimilarKeys) {
  ReuseWatch watch({.capacity_blocks = 262'144});  // one in 32
  constexpr std::uint32_t kPrompts = 2'000;
  constexpr std::size_t kBlocks = 50;
  std::int64_t unix_ms = 0;
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t n = 0; n < kPrompts; ++n) {
      watch.matched({.keys = Prompt(n, kBlocks).keys(), .hubs = {}, .unix_ms = unix_ms += 10'000});
    }
  }
  EXPECT_NEAR(lru_at(watch, 2 * kPrompts * kBlocks), 0.5, 0.02);
  EXPECT_LT(lru_at(watch, kPrompts * kBlocks / 2), 0.02);
}

TEST(ReuseWatch, ConcurrentCallsKeepCountsConsistent) {
  for (const EvictionKind eviction : {EvictionKind::lru, EvictionKind::class_hazard}) {
    ReuseWatch watch({.eviction = eviction, .capacity_blocks = 1'000});
    constexpr std::uint32_t kThreads = 4;
    constexpr std::uint32_t kRequests = 200;
    {
      std::vector<std::jthread> threads;
      for (std::uint32_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&watch, t, eviction] {
          for (std::uint32_t i = 0; i < kRequests; ++i) {
            const std::uint32_t number = t * kRequests + i;
            const Prompt prompt(number, 8);
            std::vector<std::uint64_t> stored;
            for (const KeyView key : prompt.keys()) stored.push_back(plain_hash(key));
            watch.stored(stored, lease_of(number));
            watch.matched({.keys = prompt.keys(), .hubs = {}, .lease = lease_of(number)});
            watch.ended(lease_of(number), {.output_tokens = number % 300});
            if (i % 20 == 0) watch.catch_up();
            if (i % 50 == 0) static_cast<void>(watch.report({}, true));
            if (i % 64 == 63) watch.start_anew({.eviction = eviction, .capacity_blocks = 1'000});
          }
        });
      }
    }
    EXPECT_LE(watch.report({}).requests, kThreads * kRequests);
    watch.start_anew({.eviction = eviction, .capacity_blocks = 1'000});
    const Prompt prompt(7, 8);
    watch.matched({.keys = prompt.keys(), .hubs = {}});
    watch.matched({.keys = prompt.keys(), .hubs = {}});
    EXPECT_EQ(watch.report({}).requests, 2U);
    EXPECT_EQ(lru_at(watch, 1'000), 0.5);
    EXPECT_LE(watch.memory_bytes(), (4U << 20U) + sizeof(ReuseWatch));
  }
}

}  // namespace
}  // namespace cairn
