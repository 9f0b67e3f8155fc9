// Creates, finds, lists and removes caches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

ErrorCode refusal(Rig& rig, const CacheConfig& config) {
  const auto created = rig.manager->create_cache(config);
  return created ? ErrorCode::internal : created.error().code;
}

TEST(Manager, CreatesACacheOnce) {
  Rig rig;
  CacheConfig config = small_cache({.pinned = 4});
  EXPECT_TRUE(rig.manager->create_cache(config)->is_new);
  EXPECT_FALSE(rig.manager->create_cache(config)->is_new);
  config.tiers[index_of(Tier::pinned)]->num_blocks = 5;
  EXPECT_EQ(refusal(rig, config), ErrorCode::cache_exists);
  EXPECT_EQ(rig.manager->find_cache("test").value()->config().name, "test");
  EXPECT_EQ(rig.manager->find_cache("other").error().code, ErrorCode::unknown_cache);
}

TEST(Manager, RefusesImpossibleConfigurations) {
  Rig rig;
  EXPECT_EQ(refusal(rig, small_cache({})), ErrorCode::impossible_shape);
  CacheConfig config = small_cache({.pinned = 4});
  config.shape.inner_dim = 0;
  EXPECT_EQ(refusal(rig, config), ErrorCode::impossible_shape);
  config.shape.inner_dim = ~std::uint64_t{0};
  EXPECT_EQ(refusal(rig, config), ErrorCode::impossible_shape);
  config = small_cache({.pinned = 1u << 31});
  EXPECT_EQ(refusal(rig, config), ErrorCode::impossible_shape);
  for (const char* name : {"", "a/b", "..", "a b"}) {
    config = small_cache({.pinned = 4});
    config.name = name;
    EXPECT_EQ(refusal(rig, config), ErrorCode::out_of_range) << name;
  }
  config = small_cache({.disk = 4});
  config.tiers[index_of(Tier::disk)]->path = "../outside";
  EXPECT_EQ(refusal(rig, config), ErrorCode::impossible);
  EXPECT_TRUE(rig.manager->caches().empty());
}

TEST(Manager, LimitsCaches) {
  BlockManagerOptions options;
  options.max_caches = 1;
  Rig rig({.options = options});
  rig.cache(small_cache({.pinned = 4}));
  CacheConfig second = small_cache({.pinned = 4});
  second.name = "second";
  EXPECT_EQ(refusal(rig, second), ErrorCode::too_many);
}

TEST(Manager, TwoCachesDoNotShareAFile) {
  Rig rig;
  CacheConfig first = small_cache({.disk = 4});
  first.tiers[index_of(Tier::disk)]->path = "second";
  rig.cache(first);
  CacheConfig second = small_cache({.disk = 4});
  second.name = "second";
  EXPECT_EQ(refusal(rig, second), ErrorCode::state_conflict);
}

TEST(Manager, RemovedCacheFreesItsPath) {
  Rig rig;
  for (const char* path : {"deep/er/test", "deep", "deep/test", "deep"}) {
    CacheConfig config = small_cache({.disk = 4});
    config.tiers[index_of(Tier::disk)]->path = path;
    const auto cache = rig.cache(config);
    EXPECT_TRUE(rig.put(*cache, {.keys = keys(1, 1), .tier = Tier::disk})) << path;
    EXPECT_TRUE(rig.manager->drop_cache("test", false)) << path;
  }
}

TEST(Manager, RemovedCacheIsUnknownAndLeavesNoFile) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4, .disk = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2)}));
  const MatchResult leased = rig.match(*cache, keys(1, 2));
  EXPECT_TRUE(std::filesystem::exists(rig.dir.path() / "disk/test"));
  EXPECT_EQ(rig.manager->cache_of(*leased.lease).value(), cache);
  EXPECT_EQ(rig.manager->drop_cache("test", false).error().code, ErrorCode::leased);
  auto reader = cache->read(key(1), {}).value();
  EXPECT_EQ(rig.manager->drop_cache("test", true).value(), 1u);
  EXPECT_FALSE(std::filesystem::exists(rig.dir.path() / "disk/test"));
  EXPECT_EQ(rig.manager->cache_of(*leased.lease).error().code, ErrorCode::unknown_lease);
  EXPECT_EQ(cache->read(key(1), {}).error().code, ErrorCode::unknown_cache);
  EXPECT_EQ(rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).error().code,
            ErrorCode::unknown_cache);
  EXPECT_EQ(cache->list({}).error().code, ErrorCode::unknown_cache);
  EXPECT_EQ(cache->renew(*leased.lease, {}).error().code, ErrorCode::unknown_cache);
  // A read that had begun continues.
  const auto bytes =
      rig.await<std::span<const iovec>>([&](auto done) { reader.fetch(std::move(done)); });
  EXPECT_EQ(std::memcmp((*bytes)[0].iov_base, bytes_of(key(1)).data(), 64), 0);
  // The name is free again, and the new cache is empty.
  const auto again = rig.cache(small_cache({.pinned = 4, .disk = 4}));
  EXPECT_FALSE(again->contains(views(keys(1, 1)))[0]);
}

// Once removing a cache during its checkpoint blocked all lookups until the disk call ended.
TEST(Manager, RemovalDuringACheckpointBlocksNoOtherCache) {
  std::promise<void> in_checkpoint;
  std::promise<void> disk_answers;
  BlockManagerOptions options;
  options.disk.checkpoint_period_ms = 0;
  std::atomic<bool> armed = false;
  options.failpoint = [&](std::string_view place) {
    if (place != "checkpoint.written" || !armed.exchange(false)) return;
    in_checkpoint.set_value();
    disk_answers.get_future().wait();
  };
  Rig rig({.options = options});
  CacheConfig going = small_cache({.pinned = 2, .disk = 4});
  going.name = "going";
  const auto cache = rig.cache(going);
  CacheConfig other = small_cache({.pinned = 2, .disk = 4});
  other.name = "other";
  rig.cache(other);

  armed = true;
  std::thread checkpoint([&] { rig.manager->checkpoint(); });
  in_checkpoint.get_future().wait();
  std::thread removal([&] { EXPECT_TRUE(rig.manager->drop_cache("going", false)); });
  const auto removed = [&] {
    const auto erased = cache->erase(key(1));
    return !erased && erased.error().code == ErrorCode::unknown_cache;
  };
  while (!removed()) std::this_thread::yield();
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(rig.manager->find_cache("other"));
    std::this_thread::yield();
  }
  EXPECT_TRUE(rig.manager->create_cache(other)) << "creation is not blocked either";
  disk_answers.set_value();
  checkpoint.join();
  removal.join();
  EXPECT_FALSE(rig.manager->find_cache("going"));
  std::set<std::string> left;
  for (const auto& file : std::filesystem::directory_iterator(rig.dir.path() / "disk")) {
    left.insert(file.path().filename().string());
  }
  for (const std::string& file : left) EXPECT_TRUE(file.starts_with("other")) << file;
  EXPECT_TRUE(left.contains("other"));
}

// Once the first folder's file stayed, and every later attempt returned state_conflict.
TEST(Manager, FailedSecondFolderLeavesNoFile) {
  const fakes::TempDir first;
  const fakes::TempDir second;
  BlockManagerOptions options;
  options.disk.checkpoint_period_ms = 0;
  options.disk.folders = {first.path(), second.path()};
  Rig rig({.options = options});
  const auto config = small_cache({.pinned = 2, .disk = 4});
  const auto in_the_way = second.path() / (config.name + "~new");
  std::filesystem::create_directories(in_the_way / "full");
  EXPECT_FALSE(rig.manager->create_cache(config));
  EXPECT_TRUE(std::filesystem::is_empty(first.path()));
  std::filesystem::remove_all(in_the_way);
  const auto made = rig.manager->create_cache(config);
  EXPECT_TRUE(made) << made.error().detail;
}

TEST(Manager, FailedLogLeavesNoFile) {
  Rig rig;
  const auto config = small_cache({.pinned = 2, .disk = 4});
  const auto folder = rig.dir.path() / "disk";
  const auto in_the_way = folder / (config.name + "~log.1");
  std::filesystem::create_directories(in_the_way / "full");
  EXPECT_FALSE(rig.manager->create_cache(config));
  EXPECT_FALSE(std::filesystem::exists(folder / config.name));
  std::filesystem::remove_all(in_the_way);
  const auto made = rig.manager->create_cache(config);
  EXPECT_TRUE(made) << made.error().detail;
}

TEST(Manager, ListsBlocksPageByPage) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.device = 4, .pinned = 6}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3), .tier = Tier::device}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(11, 4)}));
  ASSERT_TRUE(cache->set_metadata(key(2), "{}"));
  std::vector<BlockInfo> all;
  std::uint64_t cursor = 0;
  do {
    const BlockList page = cache->list({.limit = 2, .cursor = cursor}).value();
    ASSERT_LE(page.blocks.size(), 2u);
    all.insert(all.end(), page.blocks.begin(), page.blocks.end());
    cursor = page.next_cursor;
  } while (cursor != 0);
  ASSERT_EQ(all.size(), 7u);
  EXPECT_EQ(all[1].key, key(2));
  EXPECT_EQ(all[1].parent, key(1));
  EXPECT_EQ(all[1].metadata, "{}");
  EXPECT_EQ(all[1].last_use_unix_ms, rig.clock.unix_ms());
  EXPECT_EQ(all[3].handle.tier, Tier::pinned);
  EXPECT_EQ(cache->list({.state = SlotState::free})->blocks.size(), 3u);
  EXPECT_EQ(cache->list({.tier = Tier::pinned})->blocks.size(), 4u);
  EXPECT_EQ(cache->list({.tier = Tier::disk}).error().code, ErrorCode::unknown_tier);
}

TEST(Manager, MatchCountsSumToTheKeysAskedFor) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.device = 4, .pinned = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2), .tier = Tier::device}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(3, 2), .parent = key(2)}));
  rig.match(*cache, keys(1, 10), 0);
  rig.match(*cache, keys(3, 3));
  const CacheStats stats = cache->stats();
  EXPECT_EQ(stats.tiers[index_of(Tier::device)].hit_blocks, 2u);
  EXPECT_EQ(stats.tiers[index_of(Tier::pinned)].hit_blocks, 4u);
  EXPECT_EQ(stats.miss_blocks, 7u);
  EXPECT_EQ(stats.matches, 2u);
}

}  // namespace
}  // namespace cairn::testing
