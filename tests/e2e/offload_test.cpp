#include <thread>

#include "tests/e2e/support/served_test.hpp"

// Blocks that leave a tier because others need its room.
namespace cairn::e2e {
namespace {

class OffloadTest : public ServedTest {
 protected:
  // Several network threads, so that clients meet inside the cache.
  static void SetUpTestSuite() { start({"--threads", "3"}); }

  double hits(TestCache& cache, const std::string& result) {
    return cache.metric("cairn_match_blocks_total", "result=\"" + result + "\"");
  }
};

TEST_F(OffloadTest, LosesNothingWhileAllTiersTogetherHaveRoom) {
  TestCache cache(rest_, {.device = 4, .pinned = 6, .disk = 14});
  for (int n = 0; n < 24; ++n) cache.store(n);
  EXPECT_EQ(cache.count("device", "evictable"), 4);
  EXPECT_EQ(cache.count("pinned", "evictable"), 6);
  EXPECT_EQ(cache.count("disk", "evictable"), 14);
  const json match = cache.match(keys(0, 24), 0);
  EXPECT_EQ(match.at("matched"), 24);
  EXPECT_EQ(hits(cache, "device"), 4);
  EXPECT_EQ(hits(cache, "pinned"), 6);
  EXPECT_EQ(hits(cache, "disk"), 14);
  EXPECT_EQ(hits(cache, "miss"), 0);
  for (int n = 0; n < 24; ++n) cache.expect_intact(n);
}

TEST_F(OffloadTest, LosesTheLeastRecentlyUsedOnceAllTiersAreFull) {
  TestCache cache(rest_, {.device = 3, .pinned = 3, .disk = 3});
  for (int n = 0; n < 11; ++n) cache.store(n);
  EXPECT_FALSE(cache.holds(0));
  EXPECT_FALSE(cache.holds(1));
  for (int n = 2; n < 11; ++n) cache.expect_intact(n);
}

TEST_F(OffloadTest, NeverLosesAParentBeforeItsChild) {
  TestCache cache(rest_, {.device = 4, .pinned = 4, .disk = 4});
  constexpr int kBlocks = 24;
  std::vector<bool> before(kBlocks, false);
  for (int first = 0; first < kBlocks; first += 4) {
    const json parent = first == 0 ? json() : json(key(first - 1));
    const json header = {{"keys", keys(first, 4)},
                         {"parents", {parent, key(first), key(first + 1), key(first + 2)}}};
    ASSERT_TRUE(rest_.post_bytes(cache.path("/write"), write_body(header, blocks(first, 4))).ok());
    std::vector<bool> now;
    for (int n = 0; n < kBlocks; ++n) now.push_back(cache.holds(n));
    EXPECT_EQ(std::count(now.begin(), now.end(), true), std::min(first + 4, 12));
    for (std::size_t n = 0; n + 1 < now.size(); ++n) {
      const bool lost_before_its_child = before[n] && before[n + 1] && !now[n] && now[n + 1];
      EXPECT_FALSE(lost_before_its_child) << "block " << n << " after " << first;
    }
    before = now;
  }
}

TEST_F(OffloadTest, ServesManyClientsUnderPressureWithoutAWrongByte) {
  TestCache cache(rest_, {.device = 4, .pinned = 6, .disk = 10, .layout = "first"});
  constexpr int kClients = 4;
  constexpr int kKeys = 40;
  std::array<std::string, kClients> faults;
  std::vector<std::jthread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      Rest rest(server().endpoint());
      for (int i = 0; i < 60 && faults[static_cast<std::size_t>(c)].empty(); ++i) {
        const int n = (c * 13 + i * 7) % kKeys;
        std::string& fault = faults[static_cast<std::size_t>(c)];
        const Reply put = rest.put_bytes(cache.key_path(n), block(n));
        if (!put.ok() && put.status != 507 && put.status != 429) {
          fault = testing::PrintToString(put);
        }
        const int other = (n * 3 + 1) % kKeys;
        const Reply get = rest.get(cache.key_path(other));
        if (get.status != 404 && (get.status != 200 || get.body != block(other))) {
          fault = "block " + std::to_string(other) + ": " + testing::PrintToString(get);
        }
      }
    });
  }
  clients.clear();
  for (const std::string& fault : faults) EXPECT_EQ(fault, "");
  for (const char* tier : kTierNames) {
    EXPECT_TRUE(eventually([&] { return cache.count(tier, "allocated") == 0; }));
    EXPECT_EQ(cache.count(tier, "committed"), 0) << tier;
  }
  EXPECT_EQ(cache.counts().at("leases"), 0);
}

TEST_F(OffloadTest, WritesThroughOnCommit) {
  TestCache cache(rest_, {.device = 4, .pinned = 4, .disk = 4, .offload = "on_commit"});
  cache.store_prefix(0, 3, "device");
  EXPECT_TRUE(eventually([&] {
    return cache.count("pinned", "evictable") == 3 && cache.count("disk", "evictable") == 3;
  }));
  EXPECT_TRUE(rest_.post(cache.path("/clear"), {{"tier", "device"}}).ok());
  for (int n = 0; n < 3; ++n) EXPECT_EQ(cache.expect_intact(n), "pinned");
  EXPECT_TRUE(rest_.post(cache.path("/clear"), {{"tier", "pinned"}}).ok());
  for (int n = 0; n < 3; ++n) EXPECT_EQ(cache.expect_intact(n), "disk");
}

TEST_F(OffloadTest, EvictsWithoutMovingIfOffloadIsNever) {
  TestCache cache(rest_, {.device = 2, .pinned = 4, .disk = 4, .offload = "never"});
  for (int n = 0; n < 4; ++n) cache.store(n);
  EXPECT_FALSE(cache.holds(0));
  EXPECT_FALSE(cache.holds(1));
  EXPECT_EQ(cache.count("pinned", "free"), 4);
  EXPECT_EQ(cache.count("disk", "free"), 4);
  EXPECT_EQ(cache.metric("cairn_evictions_total", "tier=\"device\",reason=\"capacity\""), 2);
}

TEST_F(OffloadTest, SkipsATierThatTheCacheLacks) {
  TestCache cache(rest_, {.device = 2, .disk = 4});
  for (int n = 0; n < 6; ++n) cache.store(n);
  EXPECT_EQ(cache.count("disk", "evictable"), 4);
  for (int n = 0; n < 6; ++n) cache.expect_intact(n);
}

TEST_F(OffloadTest, StoresIfTheLowerTierIsHeld) {
  TestCache cache(rest_, {.device = 2, .pinned = 2});
  cache.store(0);
  cache.store(1);
  static_cast<void>(cache.allocate(2, "pinned"));
  cache.store(2);
  EXPECT_TRUE(cache.holds(2));
  EXPECT_FALSE(cache.holds(0));
}

TEST_F(OffloadTest, ReportsThePressureOfATier) {
  TestCache cache(rest_, {.device = 10});
  const auto level = [&] { return cache.metric("cairn_pressure_level", "tier=\"device\""); };
  EXPECT_EQ(level(), 0);
  static_cast<void>(cache.allocate(10, "device"));
  EXPECT_EQ(level(), 4);
  EXPECT_EQ(cache.metric("cairn_block_capacity", "tier=\"device\""), 10);
}

}  // namespace
}  // namespace cairn::e2e
