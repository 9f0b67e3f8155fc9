// Crashes with a disk tier: the test copies the data directory at that moment, and another manager
// starts over the copy.
#include "tests/blockmgr/disk_restart.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "blockmgr/disk/slot_journal.hpp"

namespace cairn::testing {
namespace {

using ::testing::UnorderedElementsAreArray;

TEST_F(DiskRestart, LogAloneRestoresEveryBlock) {
  put(keys(1, 5));
  crash_and_restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(keys(1, 5)));
  expect_whole(keys(1, 5));
}

TEST_F(DiskRestart, CheckpointAndLaterLogFormOneIndex) {
  put(keys(1, 3));
  rig_.manager->checkpoint();
  put(keys(11, 3));
  ASSERT_TRUE(cache_->erase(key(1)));
  rig_.manager->checkpoint();
  put(keys(21, 3));
  ASSERT_TRUE(cache_->erase(key(12)));
  crash_and_restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(
                           {key(2), key(3), key(11), key(13), key(21), key(22), key(23)}));
  expect_whole({key(2), key(11), key(23)});
}

TEST_F(DiskRestart, ErasedBlockStaysErasedAfterSlotReuse) {
  put(keys(1, 2));
  rig_.manager->checkpoint();
  ASSERT_TRUE(cache_->erase(key(1)));
  put(keys(5, 1));
  crash_and_restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray({key(2), key(5)}));
  expect_whole({key(2), key(5)});
}

TEST_F(DiskRestart, ClearedBlocksStayAway) {
  put(keys(1, 4));
  ASSERT_TRUE(cache_->clear({}));
  crash_and_restart();
  EXPECT_TRUE(there().empty());
}

TEST_F(DiskRestart, BlockExpiresWhileTheServerIsDown) {
  put(keys(1, 1), 1000);
  put(keys(2, 1), 60'000);
  crash();
  rig_.clock.advance(std::chrono::milliseconds(2000));
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(keys(2, 1)));
  rig_.clock.advance(std::chrono::milliseconds(60'000));
  after_->tick();
  EXPECT_TRUE(there().empty());
}

TEST_F(DiskRestart, ParentsMetadataAndHandlesSurvive) {
  put(keys(1, 3));
  ASSERT_TRUE(cache_->set_metadata(key(2), R"({"tokens": 16})"));
  const auto before = cache_->list({.tier = Tier::disk}).value().blocks;
  crash_and_restart();
  const auto after = back_->list({.tier = Tier::disk}).value().blocks;
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].handle, before[i].handle);
    EXPECT_EQ(after[i].key, before[i].key);
    EXPECT_EQ(after[i].parent, before[i].parent);
    EXPECT_EQ(after[i].metadata, before[i].metadata);
    EXPECT_EQ(after[i].epoch, after[i].key == key(2) ? 2u : 1u);
  }
}

TEST_F(DiskRestart, HandlesAreNeverReused) {
  put(keys(1, 1));
  // These slots are allocated but never committed, so no file names their generations.
  std::uint64_t highest = 0;
  for (int i = 0; i < 3; ++i) {
    const auto allocation = rig_.allocate(*cache_, {.count = 15, .tier = Tier::disk}).value();
    for (const BlockHandle& handle : allocation.blocks) {
      highest = std::max(highest, handle.generation);
    }
    if (i < 2) {
      ASSERT_TRUE(cache_->release(allocation.lease, {}));
    }
  }
  crash_and_restart();
  const auto again = rig_.allocate(*back_, {.count = 15, .tier = Tier::disk}).value();
  for (const BlockHandle& handle : again.blocks) EXPECT_GT(handle.generation, highest);
}

std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void turn_byte(const std::filesystem::path& path, std::size_t at) {
  std::string bytes = bytes_of_file(path);
  bytes[at] = static_cast<char>(~bytes[at]);
  std::ofstream(path, std::ios::binary | std::ios::in) << bytes;
}

TEST_F(DiskRestart, HeadersReplaceATornLogTail) {
  put(keys(1, 3));
  const auto log = crash() / "test~log.1";
  turn_byte(log, bytes_of_file(log).find_last_not_of('\0') - 3);
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(keys(1, 3)));
  expect_whole(keys(1, 3));
}

class LearntRestart : public DiskRestart {
 protected:
  LearntRestart() {
    config_.name = "learns";
    config_.eviction = EvictionKind::class_hazard;
    cache_ = rig_.cache(config_);
    put(keys(1, 4));
    for (std::size_t i = 0; i < 50; ++i) {
      const MatchResult found = rig_.match(*cache_, keys(1, 1 + i % 4), 1000);
      EXPECT_TRUE(cache_->release(*found.lease, {.output_tokens = 20}));
    }
    rig_.manager->checkpoint();
    put(keys(11, 1));
  }
  // The file without its header.
  static std::string learnt_in(const std::filesystem::path& folder) {
    return bytes_of_file(folder / "learns~learnt").substr(32);
  }
  std::string learnt_after_restart() {
    restart();
    EXPECT_FALSE(there().empty());
    after_->checkpoint();
    return learnt_in(copy_->path() / "disk");
  }
};

TEST_F(LearntRestart, PolicyKeepsItsLearntState) {
  const std::string before = learnt_in(crash());
  EXPECT_GT(std::ranges::count_if(before, [](char byte) { return byte != 0; }), 8);
  EXPECT_EQ(learnt_after_restart(), before);
}

TEST_F(LearntRestart, DamagedStateIsIgnoredAndBlocksStay) {
  const std::filesystem::path path = crash() / "learns~learnt";
  const std::string before = bytes_of_file(path);
  for (const std::size_t at : {std::size_t{0}, std::size_t{8}, std::size_t{16}, std::size_t{24},
                               std::size_t{40}, before.size() - 1}) {
    turn_byte(path, at);
    const std::string after = learnt_after_restart();
    EXPECT_NE(after, before.substr(32)) << at;
    expect_whole(keys(1, 4));
    back_.reset();
    after_.reset();
    std::ofstream(path, std::ios::binary) << before;
  }
  std::ofstream(path, std::ios::binary) << before.substr(0, before.size() / 2);
  EXPECT_NE(learnt_after_restart(), before.substr(32));
}

// The histories in the checkpoint and the log, by slot.
std::map<std::uint32_t, std::uint64_t> histories_in(const std::filesystem::path& folder,
                                                    std::uint64_t file_id) {
  SlotJournal journal({.path = folder / "learns", .file_id = file_id, .num_slots = 16});
  const auto found = journal.load().value();
  std::map<std::uint32_t, std::uint64_t> histories;
  for (const JournalEntry& entry : found.entries) {
    if (!entry.block.key.empty()) histories[entry.place.slot] = entry.place.history;
  }
  return histories;
}

TEST_F(LearntRestart, BlockHistoriesSurvive) {
  const MatchResult found = rig_.match(*cache_, keys(1, 6), 1'000);
  ASSERT_TRUE(cache_->release(*found.lease, {.output_tokens = 20}));
  rig_.manager->checkpoint();
  std::uint64_t file_id = 0;
  const std::string head = bytes_of_file(crash() / "learns~learnt").substr(16, sizeof(file_id));
  std::memcpy(&file_id, head.data(), sizeof(file_id));
  const auto before = histories_in(copy_->path() / "disk", file_id);
  ASSERT_EQ(before.size(), 5U);
  for (const auto& [slot, history] : before) EXPECT_NE(history, 0U) << slot;
  restart();
  after_->checkpoint();
  EXPECT_EQ(histories_in(copy_->path() / "disk", file_id), before);
}

TEST_F(DiskRestart, HintsSurvive) {
  put(keys(1, 1));
  put(keys(2, 1));
  const MatchResult found = rig_.match(*cache_, keys(2, 1), 1'000);
  ASSERT_TRUE(cache_->release(*found.lease, {.hint = {.reuse = {.kind = ReuseHint::Kind::never}}}));
  rig_.manager->checkpoint();
  crash_and_restart();
  const auto capacity =
      static_cast<std::uint32_t>(back_->stats().tiers[index_of(Tier::disk)].capacity_blocks);
  ASSERT_TRUE(rig_.allocate(*back_, {.count = capacity - 1, .tier = Tier::disk}));
  EXPECT_THAT(there(), UnorderedElementsAreArray(keys(1, 1)))
      << "key 1 is older, but key 2 has the hint";
}

TEST_F(LearntRestart, DroppedCacheRemovesItsState) {
  ASSERT_TRUE(std::filesystem::exists(rig_.dir.path() / "disk/learns~learnt"));
  cache_.reset();
  ASSERT_TRUE(rig_.manager->drop_cache("learns", false));
  EXPECT_FALSE(std::filesystem::exists(rig_.dir.path() / "disk/learns~learnt"));
}

// Found by the crash harness: blocks logged after the damage were lost, though they were on disk.
TEST_F(DiskRestart, HeadersReplaceADamagedLog) {
  put(keys(1, 4));
  ASSERT_TRUE(cache_->erase(key(2)));
  rig_.manager->checkpoint();
  put(keys(11, 4));
  turn_byte(crash() / "test~log.2", 100);
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(
                           {key(1), key(3), key(4), key(11), key(12), key(13), key(14)}));
  expect_whole({key(1), key(11), key(14)});
}

// Found by the crash harness: the older log looked complete, so the missing one was not noticed.
TEST_F(DiskRestart, DetectsAMissingLog) {
  put(keys(1, 2));
  crash_and_restart();
  const auto before = copy_->path() / "disk";
  ASSERT_TRUE(rig_.put(*back_, {.keys = keys(11, 2), .tier = Tier::disk}));
  fakes::TempDir again;
  std::filesystem::copy(before, again.path() / "disk", std::filesystem::copy_options::recursive);
  ASSERT_TRUE(std::filesystem::remove(again.path() / "disk/test~log.3"));
  BlockManagerOptions options = by_hand();
  options.data_dir = again.path();
  BlockManager third(*rig_.runtime, *rig_.scheduler, rig_.clock, *rig_.log, options);
  const auto cache = third.create_cache(config_).value().cache;
  EXPECT_THAT(present_in(*cache, Tier::disk),
              UnorderedElementsAreArray({key(1), key(2), key(11), key(12)}));
}

// Found by the crash harness: a start took a slot's new block for one that had been erased.
TEST_F(DiskRestart, HeaderNewerThanTheCheckpointCounts) {
  put(keys(1, 2));
  ASSERT_TRUE(cache_->erase(key(1)));  // its slot is free, and known
  rig_.manager->checkpoint();
  put(keys(11, 1));  // takes it
  turn_byte(crash() / "test~log.2", 100);
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray({key(2), key(11)}));
  expect_whole({key(2), key(11)});
}

TEST_F(DiskRestart, HeadersReplaceAMissingIndex) {
  put(keys(1, 4));
  rig_.manager->checkpoint();
  const auto folder = crash();
  std::filesystem::remove(folder / "test~index");
  std::filesystem::remove(folder / "test~log.2");
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(keys(1, 4)));
  expect_whole(keys(1, 4));
  EXPECT_EQ(back_->list({.tier = Tier::disk}).value().blocks[1].parent, key(1));
}

TEST_F(DiskRestart, IgnoresADamagedCheckpoint) {
  put(keys(1, 4));
  rig_.manager->checkpoint();
  const auto folder = crash();
  std::fstream(folder / "test~index", std::ios::in | std::ios::out | std::ios::binary)
      .seekp(200)
      .put('\x5a');
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(keys(1, 4)));
  expect_whole(keys(1, 4));
}

TEST_F(DiskRestart, CrashDuringACheckpointLosesNothing) {
  for (const std::string_view place :
       {"checkpoint.begun", "checkpoint.written", "checkpoint.ended"}) {
    BlockManagerOptions options = by_hand();
    fakes::TempDir copy;
    Rig* crashed = nullptr;
    bool armed = false;
    options.failpoint = [&](std::string_view reached) {
      if (!armed || reached != place) return;
      armed = false;
      std::filesystem::copy(crashed->dir.path(), copy.path(),
                            std::filesystem::copy_options::recursive);
    };
    Rig rig({.options = options});
    crashed = &rig;
    const auto cache = rig.cache(config_);
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3), .tier = Tier::disk}));
    rig.manager->checkpoint();
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(11, 3), .tier = Tier::disk}));
    ASSERT_TRUE(cache->erase(key(3)));
    armed = true;
    rig.manager->checkpoint();
    ASSERT_FALSE(armed);

    BlockManagerOptions over_copy = by_hand();
    over_copy.data_dir = copy.path();
    BlockManager after(*rig.runtime, *rig.scheduler, rig.clock, *rig.log, over_copy);
    const auto back = after.create_cache(config_).value().cache;
    EXPECT_THAT(present_in(*back, Tier::disk),
                UnorderedElementsAreArray({key(1), key(2), key(11), key(12), key(13)}))
        << place;
  }
}

TEST_F(DiskRestart, SurvivesRepeatedRestarts) {
  put(keys(1, 2));
  for (std::uint64_t round = 0; round < 4; ++round) {
    crash_and_restart();
    EXPECT_EQ(there().size(), 2 + round);
    auto next = std::move(copy_);
    // The next crash is of the server that runs now.
    const auto done = rig_.put(*back_, {.keys = keys(100 + round, 1), .tier = Tier::disk});
    ASSERT_TRUE(done);
    std::filesystem::remove_all(rig_.dir.path() / "disk");
    std::filesystem::copy(next->path() / "disk", rig_.dir.path() / "disk",
                          std::filesystem::copy_options::recursive);
    back_.reset();
    after_.reset();
  }
}

std::string file_of(const CacheConfig& config) {
  const std::string& path = config.tiers[index_of(Tier::disk)]->path;
  return path.empty() ? config.name : path;
}

// Caches whose names once clashed with files of another cache: the first checkpoint of `z`
// truncated the blocks of `z.log.2`.
void expect_all_kept(const std::vector<CacheConfig>& configs) {
  constexpr std::size_t kKeysPerCache = 4;
  const auto keys_of = [](std::size_t cache) { return keys(100 * cache + 1, kKeysPerCache); };
  Rig rig({.options = by_hand()});
  for (std::size_t i = 0; i < configs.size(); ++i) {
    auto made = rig.manager->create_cache(configs[i]);
    ASSERT_TRUE(made) << configs[i].name << ": " << made.error().detail;
    const auto done = rig.put(*made->cache, {.keys = keys_of(i), .tier = Tier::disk});
    ASSERT_TRUE(done) << configs[i].name << ": " << done.error().detail;
    rig.manager->checkpoint();
  }
  rig.scheduler->wait_idle();
  fakes::TempDir killed;  // a copy before the clean shutdown
  std::filesystem::copy(rig.dir.path(), killed.path(), std::filesystem::copy_options::recursive);
  BlockManagerOptions options = by_hand();
  options.data_dir = killed.path();
  const auto expect_whole = [&](Cache& cache, std::size_t i) {
    EXPECT_THAT(present_in(cache, Tier::disk), UnorderedElementsAreArray(keys_of(i)));
    for (const BlockKey& each : keys_of(i)) {
      const auto bytes = rig.read(cache, each);
      ASSERT_TRUE(bytes) << bytes.error().detail;
      EXPECT_EQ(*bytes, bytes_of(each));
    }
  };
  for (int start = 0; start < 3; ++start) {
    BlockManager after(*rig.runtime, *rig.scheduler, rig.clock, *rig.log, options);
    for (std::size_t i = 0; i < configs.size(); ++i) {
      SCOPED_TRACE(configs[i].name + ", start " + std::to_string(start));
      auto back = after.create_cache(configs[i]);
      ASSERT_TRUE(back) << back.error().detail;
      EXPECT_TRUE(std::filesystem::exists(options.data_dir / "disk" / file_of(configs[i])));
      expect_whole(*back->cache, i);
    }
    if (start < 2) continue;
    // Dropping a cache removes only its own files.
    ASSERT_TRUE(after.drop_cache(configs.front().name, false));
    after.checkpoint();
    for (std::size_t i = 1; i < configs.size(); ++i) {
      SCOPED_TRACE(configs[i].name + " after another cache was dropped");
      expect_whole(*after.find_cache(configs[i].name).value(), i);
    }
  }
}

CacheConfig named(const std::string& name, const std::string& path = {}) {
  CacheConfig config = small_cache({.pinned = 4, .disk = 16});
  config.name = name;
  config.tiers[index_of(Tier::disk)]->path = path;
  return config;
}

TEST(DiskNames, CacheNamedLikeAnotherCachesFileKeepsItsBlocks) {
  std::vector<CacheConfig> configs;
  for (const char* name :
       {"m", "m.index", "m.index.new", "w", "w.new", "z", "z.log.1", "z.log.2"}) {
    configs.push_back(named(name));
  }
  expect_all_kept(configs);
  std::ranges::reverse(configs);
  expect_all_kept(configs);
}

TEST(DiskNames, PathLikeAnotherCachesFileKeepsItsBlocks) {
  std::vector<CacheConfig> configs = {named("a", "x/b"), named("b", "x/b.index"),
                                      named("c", "x/b.log.2"), named("d", "x/b.new"),
                                      named("e", "x/b.index.new")};
  expect_all_kept(configs);
  std::ranges::reverse(configs);
  expect_all_kept(configs);
}

TEST(DiskNames, RefusesTildeInAPath) {
  Rig rig({.options = by_hand()});
  ASSERT_TRUE(rig.manager->create_cache(named("a", "x/b")));
  for (const char* path : {"x/b~index", "x/b~log.2", "x/b~new", "~", "x~/b"}) {
    const auto refused = rig.manager->create_cache(named("b", path));
    ASSERT_FALSE(refused) << path;
    EXPECT_EQ(refused.error().code, ErrorCode::impossible);
    EXPECT_THAT(refused.error().detail, ::testing::HasSubstr("~"));
  }
}

TEST(DiskAdmissionPolicy, SecondUseRejectsBlocksUsedOnce) {
  BlockManagerOptions options = by_hand();
  options.disk.admission = DiskAdmission::second_use;
  Rig rig({.options = options});
  const auto cache = rig.cache(small_cache({.pinned = 2, .disk = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1)}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(2, 1)}));
  const MatchResult again = rig.match(*cache, keys(2, 1));
  ASSERT_TRUE(cache->release(*again.lease, {}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(3, 1)}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(4, 1)}));
  EXPECT_THAT(present_in(*cache, Tier::disk), UnorderedElementsAreArray(keys(2, 1)));
  EXPECT_EQ(cache->stats().disk_admission.admitted, 1u);
  EXPECT_EQ(cache->stats().disk_admission.rejected, 1u);
}

TEST(DiskAdmissionPolicy, RateLimitsOffloads) {
  BlockManagerOptions options = by_hand();
  options.disk.write_bytes_per_s = 128;  // two blocks
  Rig rig({.options = options});
  const auto cache = rig.cache(small_cache({.pinned = 1, .disk = 16}));
  for (std::uint64_t n = 1; n <= 5; ++n) ASSERT_TRUE(rig.put(*cache, {.keys = keys(n, 1)}));
  EXPECT_EQ(cache->stats().disk_admission.admitted, 2u);
  EXPECT_EQ(cache->stats().disk_admission.throttled, 2u);
  rig.clock.advance(std::chrono::milliseconds(500));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(6, 1)}));
  EXPECT_EQ(cache->stats().disk_admission.admitted, 3u);
}

}  // namespace
}  // namespace cairn::testing
