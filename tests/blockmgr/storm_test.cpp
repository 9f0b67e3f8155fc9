// Many threads use one cache. Each read of a key must return that key's bytes, and nothing may be
// held once all leases have ended.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <iostream>
#include <random>
#include <thread>

#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

constexpr int kThreads = 4;
constexpr int kOperations = 600;
constexpr std::uint64_t kKeys = 80;

template <class T>
std::pair<Done<T>, std::future<Result<T>>> promised() {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  auto future = promise->get_future();
  return {Done<T>([promise](Result<T> result) { promise->set_value(std::move(result)); }),
          std::move(future)};
}

class Client {
 public:
  Client(Rig& rig, Cache& cache, std::uint64_t seed) : rig_(rig), cache_(cache), random_(seed) {}

  void run() {
    for (int i = 0; i < kOperations; ++i) step();
  }
  std::uint64_t wrong() const { return wrong_; }
  std::uint64_t reads() const { return reads_; }

 private:
  std::uint64_t pick(std::uint64_t below) {
    return std::uniform_int_distribution<std::uint64_t>(0, below - 1)(random_);
  }
  Tier tier() { return kTiers[pick(kNumTiers)]; }
  // Keys form chains: k's parent is k - 10.
  std::vector<BlockKey> chain() {
    std::vector<BlockKey> list;
    const std::uint64_t length = 1 + pick(4);
    for (std::uint64_t k = pick(20); k < kKeys && list.size() < length; k += 10) {
      list.push_back(key(k));
    }
    return list;
  }

  // A random hint, in half of the calls.
  RequestHint said() {
    RequestHint hint;
    if (pick(2) == 0) return hint;
    hint.reuse = {.kind = static_cast<ReuseHint::Kind>(pick(kHintKinds)),
                  .within_ms = pick(500'000)};
    if (pick(3) == 0) hint.session = std::to_string(pick(5));
    return hint;
  }
  LeaseHolder holder() {
    static const auto kName = std::make_shared<const std::string>("a");
    return pick(4) == 0 ? kName : nullptr;
  }
  void hint() {
    const auto list = chain();
    const auto names = views(list);
    HintRequest request{.reuse = said().reuse, .holder = holder()};
    const std::string session = std::to_string(pick(5));
    if (pick(2) == 0) {
      request.keys = names;
    } else {
      request.session = session;
    }
    (void)cache_.hint(request);
  }

  void step() {
    switch (pick(13)) {
      case 12:
        return hint();
      case 0:
      case 1:
      case 2:
      case 3:
        return put();
      case 4:
      case 5:
      case 6:
        return match();
      case 7:
        return transfer();
      case 8: {
        auto [done, answer] = promised<EvictResult>();
        cache_.evict(chain(), tier(), std::move(done));
        answer.wait();
        return;
      }
      case 9:
        (void)cache_.erase(chain().front());
        return;
      case 10:
        rig_.clock.advance_ms(static_cast<std::int64_t>(pick(40)));
        rig_.manager->tick();
        return;
      default:
        if (pick(20) == 0) (void)cache_.clear(tier());
        (void)cache_.list({.limit = 10});
        (void)cache_.stats();
        return;
    }
  }

  void put() {
    const auto list = chain();
    auto [done, answer] = promised<Allocation>();
    cache_.allocate({.count = static_cast<std::uint32_t>(list.size()),
                     .tier = tier(),
                     .lease_ms = 1 + static_cast<std::uint32_t>(pick(300)),
                     .holder = holder()},
                    std::move(done));
    const auto allocation = answer.get();
    if (!allocation) return;
    std::vector<CommitBlock> blocks;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!write({.lease = allocation->lease, .block = allocation->blocks[i]}, list[i])) return;
      CommitBlock block{.handle = allocation->blocks[i], .key = list[i]};
      if (i > 0) block.parent = list[i - 1];
      if (pick(4) == 0) block.ttl_ms = 1 + pick(200);
      blocks.push_back(std::move(block));
    }
    auto [committed, statuses] = promised<std::vector<CommitStatus>>();
    cache_.commit(allocation->lease, std::move(blocks), std::move(committed), {.hint = said()});
    statuses.wait();
    if (pick(4) > 0)
      (void)cache_.release(allocation->lease, {.hint = said()});  // else the client dies
  }

  bool write(const Cache::WriteTarget& target, const BlockKey& name) {
    auto writer = cache_.write(target);
    if (!writer) return false;
    auto [ready, room] = promised<std::span<const iovec>>();
    writer->room(std::move(ready));
    const auto pieces = room.get();
    if (!pieces) return false;
    const Bytes bytes = bytes_of(name);
    std::size_t at = 0;
    for (const iovec& piece : *pieces) {
      std::memcpy(piece.iov_base, bytes.data() + at, piece.iov_len);
      at += piece.iov_len;
    }
    if (pick(50) == 0) return false;  // the client disappears during the write
    auto [done, finished] = promised<void>();
    writer->finish(std::move(done));
    return finished.get().has_value();
  }

  void match() {
    const auto list = chain();
    MatchResult matched;
    const auto lease_ms = static_cast<std::uint32_t>(pick(4) == 0 ? 0 : 1 + pick(300));
    if (!cache_.match(views(list), lease_ms, matched, nullptr, holder(), said())) return;
    if (matched.lease && pick(3) == 0) {
      const auto names = views(list);
      (void)cache_.onboard({.lease = *matched.lease, .keys = names, .tier = Tier::device});
    }
    for (const BlockKey& name : list) read(name);
    if (matched.lease && pick(3) > 0)
      (void)cache_.release(*matched.lease, {.blocks = matched.blocks, .hint = said()});
  }

  void read(const BlockKey& name) {
    auto reader = cache_.read(name, {});
    if (!reader) return;
    auto [ready, answer] = promised<std::span<const iovec>>();
    reader->fetch(std::move(ready));
    if (pick(30) == 0) return;  // gone before the bytes came
    const auto pieces = answer.get();
    if (!pieces) return;
    ++reads_;
    Bytes bytes;
    for (const iovec& piece : *pieces) {
      const auto* data = static_cast<const std::byte*>(piece.iov_base);
      bytes.insert(bytes.end(), data, data + piece.iov_len);
    }
    if (bytes != bytes_of(name)) ++wrong_;
  }

  void transfer() {
    auto id = cache_.transfer({.keys = chain(), .to = tier(), .move = pick(2) == 0});
    if (id && pick(3) == 0) (void)rig_.manager->cancel_transfer(*id);
  }

  Rig& rig_;
  Cache& cache_;
  std::mt19937_64 random_;
  std::uint64_t wrong_ = 0;
  std::uint64_t reads_ = 0;
};

class Storm : public ::testing::TestWithParam<std::tuple<OffloadMode, EvictionKind>> {};
INSTANTIATE_TEST_SUITE_P(
    Cache, Storm,
    ::testing::Combine(::testing::Values(OffloadMode::on_evict, OffloadMode::on_commit,
                                         OffloadMode::never),
                       ::testing::Values(EvictionKind::lru, EvictionKind::class_hazard)),
    [](const auto& both) {
      return std::string(to_string(std::get<0>(both.param))) + "_" +
             std::string(to_string(std::get<1>(both.param)));
    });

TEST_P(Storm, LeavesNothingHeldAndNoWrongByte) {
  const std::uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << '\n';
  Rig rig;
  const auto [offload, eviction] = GetParam();
  CacheConfig config = small_cache({.device = 8, .pinned = 12, .disk = 20}, offload);
  config.eviction = eviction;
  const auto cache = rig.cache(config);
  std::vector<Client> clients;
  for (int i = 0; i < kThreads; ++i) {
    clients.emplace_back(rig, *cache, seed + static_cast<std::uint64_t>(i));
  }
  std::vector<std::thread> threads;
  for (Client& client : clients) threads.emplace_back([&client] { client.run(); });
  for (std::thread& thread : threads) thread.join();

  rig.scheduler->wait_idle();
  rig.clock.advance_ms(1'000);  // every lease and every key with a ttl ends
  rig.manager->tick();
  rig.scheduler->wait_idle();
  std::uint64_t reads = 0;
  for (const Client& client : clients) {
    EXPECT_EQ(client.wrong(), 0u);
    reads += client.reads();
  }
  EXPECT_GT(reads, 0u);
  const CacheStats stats = cache->stats();
  EXPECT_EQ(stats.leases, 0u);
  for (Tier tier : kTiers) {
    const TierStats& at = stats.tiers[index_of(tier)];
    EXPECT_EQ(at.leased_blocks, 0u) << to_string(tier);
    EXPECT_EQ(at.blocks[static_cast<std::size_t>(SlotState::allocated)], 0u) << to_string(tier);
    EXPECT_EQ(at.blocks[static_cast<std::size_t>(SlotState::committed)], 0u) << to_string(tier);
    EXPECT_EQ(at.blocks[static_cast<std::size_t>(SlotState::free)] +
                  at.blocks[static_cast<std::size_t>(SlotState::evictable)],
              at.capacity_blocks);
    for (const BlockKey& name : present_in(*cache, tier)) {
      EXPECT_EQ(rig.read(*cache, name).value(), bytes_of(name));
    }
    for (const RouteStats& route : stats.routes[index_of(tier)]) {
      EXPECT_EQ(route.in_flight_blocks, 0u);
    }
  }
  EXPECT_EQ(rig.manager->transfer_counts().queued + rig.manager->transfer_counts().running, 0u);
  ASSERT_TRUE(cache->clear({}));
  for (Tier tier : kTiers) {
    EXPECT_EQ(count(*cache, tier, SlotState::free),
              cache->stats().tiers[index_of(tier)].capacity_blocks);
  }
}

TEST(StormOfRemovals, CacheCanBeRemovedWhileInUse) {
  Rig rig;
  for (std::uint64_t round = 0; round < 10; ++round) {
    const auto cache = rig.cache(small_cache({.device = 6, .pinned = 6, .disk = 6}));
    std::vector<Client> clients;
    for (int i = 0; i < 2; ++i) {
      clients.emplace_back(rig, *cache, round * 10 + static_cast<std::uint64_t>(i));
    }
    std::vector<std::thread> threads;
    for (Client& client : clients) threads.emplace_back([&client] { client.run(); });
    ASSERT_TRUE(rig.manager->drop_cache("test", true));
    for (std::thread& thread : threads) thread.join();
    for (const Client& client : clients) EXPECT_EQ(client.wrong(), 0u);
    MatchResult matched;
    EXPECT_EQ(cache->match(views(keys(1, 1)), 0, matched).error().code, ErrorCode::unknown_cache);
  }
  EXPECT_TRUE(rig.manager->caches().empty());
}

}  // namespace
}  // namespace cairn::testing
