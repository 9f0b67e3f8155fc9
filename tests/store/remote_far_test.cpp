// A shared tier of two stores: what the near one lacks is asked of the far one.
#include <gmock/gmock.h>

#include "tests/store/remote_host.hpp"

namespace cairn::testing {
namespace {

using Write = RemoteTierConfig::Write;

struct TwoStores {
  MemoryStore near;
  MemoryStore far;
};

struct FarHost : Host {
  explicit FarHost(TwoStores& stores, Write near = Write::on_commit, Write far = Write::second_use)
      : Host(stores.near, {.write = near}, {.pinned = 16}, {}, {}, with_store(), {},
             {.store = &stores.far, .config = {.write = far}}) {}
  // The number of leading blocks that are here after a look-up, each with its own bytes.
  std::size_t fetched(const std::vector<BlockKey>& keys) {
    look(keys);
    settle();
    const std::size_t count = matched(keys);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(rig.read(*cache, keys[i]).value(), bytes_of(keys[i]));
    }
    return count;
  }
  void use(const std::vector<BlockKey>& keys) {
    tier->matched(views(keys));
    settle();
  }
};

TEST(RemoteFar, BlocksThatAreUsedAgainGoIntoTheFarStore) {
  TwoStores stores;
  FarHost one(stores);
  one.put(keys(1, 4));
  EXPECT_EQ(stores.near.values.size(), 4u);
  EXPECT_EQ(stores.far.values.size(), 0u);
  one.use(keys(1, 2));
  EXPECT_EQ(stores.far.values.size(), 2u);
  EXPECT_EQ(one.tier->stats().stored_blocks, 6u);
}

TEST(RemoteFar, ABlockOfTheFarStoreIsFoundAndGoesIntoTheNearOne) {
  TwoStores stores;
  FarHost one(stores);
  one.put(keys(1, 3));
  one.use(keys(1, 3));
  stores.near.values.clear();
  FarHost other(stores);
  EXPECT_EQ(other.fetched(keys(1, 5)), 3u);
  EXPECT_EQ(stores.near.values.size(), 3u);
  // The far store is not written again.
  other.use(keys(1, 3));
  EXPECT_EQ(other.tier->stats().stored_blocks, 3u);
  EXPECT_EQ(other.tier->stats().there_already, 0u);
}

TEST(RemoteFar, APrefixMayLieInBothStores) {
  TwoStores stores;
  FarHost one(stores);
  one.put(keys(1, 6));
  one.use(keys(1, 6));
  for (const std::size_t number : {0u, 3u}) {
    stores.near.values.erase(
        std::next(stores.near.values.begin(), static_cast<std::ptrdiff_t>(number)));
  }
  stores.far.values.erase(std::prev(stores.far.values.end()));
  FarHost other(stores);
  EXPECT_EQ(other.fetched(keys(1, 6)), 6u);
}

TEST(RemoteFar, TheFarStoreServesWhileTheNearOneIsDown) {
  TwoStores stores;
  FarHost one(stores);
  one.put(keys(1, 4));
  one.use(keys(1, 4));
  stores.near.is_down = true;
  FarHost other(stores);
  EXPECT_EQ(other.fetched(keys(1, 4)), 4u);
}

TEST(RemoteFar, TheNearStoreServesWhileTheFarOneIsDown) {
  TwoStores stores;
  FarHost one(stores);
  one.put(keys(1, 4));
  stores.far.is_down = true;
  FarHost other(stores);
  EXPECT_EQ(other.fetched(keys(1, 4)), 4u);
}

TEST(RemoteFar, BlocksThatLeaveTheCacheGoIntoTheFarStore) {
  TwoStores stores;
  FarHost one(stores, Write::on_commit, Write::on_evict);
  one.put(keys(1, 16));
  EXPECT_EQ(stores.far.values.size(), 0u);
  one.put(keys(101, 8));
  EXPECT_EQ(stores.far.values.size(), 8u);
  FarHost other(stores);
  EXPECT_EQ(other.fetched(keys(1, 16)), 16u);
}

TEST(RemoteFar, AWrongValueIsAMissAndLeavesItsStore) {
  TwoStores stores;
  FarHost one(stores);
  one.put(keys(1, 2));
  one.use(keys(1, 2));
  stores.near.values.clear();
  stores.far.values.begin()->second.back() ^= 1;
  FarHost other(stores);
  EXPECT_EQ(other.fetched(keys(1, 2)), 0u);
  EXPECT_EQ(stores.far.values.size(), 1u);
}

// Also a call of the far store fails in turn, and both at once.
TEST(RemoteFar, NoBlockIsWrongWhicheverCallFails) {
  for (const int which : {1, 2, 3}) {
    for (int failing = 1;; ++failing) {
      TwoStores stores;
      {
        FarHost one(stores);
        one.put(keys(1, 4));
        one.use(keys(1, 4));
        stores.near.values.erase(stores.near.values.begin());
      }
      stores.near.calls = stores.far.calls = 0;
      if ((which & 1) != 0) stores.near.failing_call = failing;
      if ((which & 2) != 0) stores.far.failing_call = failing;
      FarHost other(stores);
      const std::size_t found = other.fetched(keys(1, 4));
      const int most = std::max(stores.near.calls, stores.far.calls);
      if (failing > most) {
        EXPECT_EQ(found, 4u);
        break;
      }
    }
  }
}

TEST(RemoteFar, TwoStoresMustFitTogether) {
  TwoStores stores;
  FarHost host(stores);
  const auto refusal = [&](const RemoteTierConfig& near, const RemoteTierConfig& far) {
    CacheConfig config = small_cache({.pinned = 4});
    config.name = "other";
    config.shared = near;
    config.shared_far = far;
    const auto made = host.rig.manager->create_cache(config);
    return made ? "none" : made.error().detail;
  };
  constexpr auto kFar = RemoteTierConfig::Store::s3;
  EXPECT_THAT(refusal({}, {}), ::testing::HasSubstr("both are the same"));
  EXPECT_THAT(refusal({.placement = RemoteTierConfig::Placement::holders}, {.store = kFar}),
              ::testing::HasSubstr("holders"));
  EXPECT_THAT(refusal({.name_space = "a"}, {.store = kFar, .name_space = "b"}),
              ::testing::HasSubstr("namespaces"));
  EXPECT_THAT(refusal({.write = Write::on_evict}, {.store = kFar, .write = Write::on_evict}),
              ::testing::HasSubstr("on_evict"));
  EXPECT_EQ(refusal({}, {.store = kFar}), "none");
}

}  // namespace
}  // namespace cairn::testing
