// The parts that do not handle bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "blockmgr/disk/disk_place.hpp"
#include "blockmgr/index/block_store.hpp"
#include "blockmgr/index/free_bitmap.hpp"
#include "blockmgr/index/lease_table.hpp"
#include "blockmgr/index/pressure.hpp"
#include "blockmgr/transfer/piece_progress.hpp"
#include "blockmgr/transfer/transfer_table.hpp"
#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;

TEST(FreeBitmap, HandsOutTheLowestAtEverySize) {
  for (std::uint32_t size : {1u, 2u, 63u, 64u, 65u, 4096u, 4097u, 300'000u}) {
    FreeBitmap bitmap(size);
    for (std::uint32_t i = 0; i < size; ++i) ASSERT_EQ(bitmap.take_lowest(), i);
    EXPECT_EQ(bitmap.free_count(), 0u);
    if (size < 3) continue;
    bitmap.give_back(size - 1);
    bitmap.give_back(size / 2);
    EXPECT_EQ(bitmap.take_lowest(), size / 2);
  }
}

TEST(FreeBitmap, AgreesWithASet) {
  std::mt19937 random(7);
  FreeBitmap bitmap(5'000);
  std::set<std::uint32_t> free;
  for (std::uint32_t i = 0; i < 5'000; ++i) free.insert(i);
  std::vector<std::uint32_t> taken;
  for (int i = 0; i < 50'000; ++i) {
    if (free.empty() || (!taken.empty() && random() % 2 == 0)) {
      std::swap(taken[random() % taken.size()], taken.back());
      bitmap.give_back(taken.back());
      free.insert(taken.back());
      taken.pop_back();
    } else {
      taken.push_back(bitmap.take_lowest());
      ASSERT_EQ(taken.back(), *free.begin());
      free.erase(free.begin());
    }
    ASSERT_EQ(bitmap.free_count(), free.size());
  }
}

TEST(FreeBitmapDeathTest, DetectsDoubleFree) {
  FreeBitmap bitmap(10);
  const std::uint32_t slot = bitmap.take_lowest();
  bitmap.give_back(slot);
  EXPECT_DEATH(bitmap.give_back(slot), "freed twice");
}

TEST(KeyIndex, FindsEveryKeyThroughInsertionsAndErasures) {
  std::mt19937 random(11);
  KeyIndex index({.max_entries = 400, .hash_seed = 5});
  std::map<int, EntryNumber> known;
  for (int i = 0; i < 20'000; ++i) {
    const int k = static_cast<int>(random() % 700);
    const BlockKey name = key(static_cast<std::uint64_t>(k), 1 + static_cast<std::size_t>(k) % 64);
    const auto at = known.find(k);
    // Keys shorter than 8 bytes lose part of their number, so skip them.
    if (name.view().size < 8) continue;
    ASSERT_EQ(index.find(name), at == known.end() ? kNoEntry : at->second);
    if (at != known.end()) {
      ASSERT_TRUE(index.key(at->second) == name);
      if (random() % 2 == 0) {
        index.erase(at->second);
        known.erase(at);
      }
    } else if (known.size() < 400) {
      known[k] = index.find_or_insert(name);
    }
    ASSERT_EQ(index.size(), known.size());
  }
}

// A free entry stores the next free one in the field of the parent.
TEST(KeyIndex, ReusedEntryHasNoParent) {
  KeyIndex index({.max_entries = 4, .hash_seed = 5});
  const EntryNumber first = index.find_or_insert(key(1));
  const EntryNumber second = index.find_or_insert(key(2));
  index.erase(first);
  index.erase(second);
  for (const std::uint64_t k : {3u, 4u})
    EXPECT_EQ(index[index.find_or_insert(key(k))].parent, kNoEntry);
}

TEST(KeyIndex, ScanMatchesSingleLookups) {
  KeyIndex index({.max_entries = 300, .hash_seed = 9});
  for (std::uint64_t k = 0; k < 300; ++k) index.find_or_insert(key(k));
  for (std::size_t count : {0u, 1u, 15u, 16u, 17u, 32u, 33u, 48u, 200u}) {
    const auto names = keys(150 - count / 2, count + count / 2 + 100);  // some are unknown
    const auto wanted = views(names);
    KeyIndex::Scan scan(index, wanted);
    std::vector<EntryNumber> found;
    for (auto batch = scan.next(); !batch.empty(); batch = scan.next()) {
      found.insert(found.end(), batch.begin(), batch.end());
    }
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_EQ(found[i], index.find(wanted[i]));
  }
}

TEST(KeyIndex, CountsAndFreesRareDetails) {
  KeyIndex index({.max_entries = 8});
  const std::array<std::byte, kMaxKeyBytes> bytes{};
  const auto key_of = [&](std::size_t size) {
    return KeyView{bytes.data(), static_cast<std::uint8_t>(size)};
  };
  const EntryNumber usual = index.find_or_insert(key_of(Entry::kHeadBytes));
  index.erase(index.find_or_insert(key_of(kMaxKeyBytes)));
  const std::uint64_t plain = index.memory_bytes();

  const EntryNumber with_long_key = index.find_or_insert(key_of(kMaxKeyBytes));
  EXPECT_EQ(index.memory_bytes(), plain + sizeof(EntryDetails::Rare));
  index.drop_rare(with_long_key);  // its long key needs the details
  EXPECT_EQ(index.memory_bytes(), plain + sizeof(EntryDetails::Rare));
  index.erase(with_long_key);
  EXPECT_EQ(index.memory_bytes(), plain);

  index.rare(usual).metadata = "{}";
  index.drop_rare(usual);
  EXPECT_EQ(index.memory_bytes(), plain + sizeof(EntryDetails::Rare));
  index.rare(usual).metadata.clear();
  index.drop_rare(usual);
  EXPECT_EQ(index.memory_bytes(), plain);
}

TEST(KeyIndex, KeysOfDifferentLengthAreDifferent) {
  KeyIndex index({.max_entries = 100, .hash_seed = 5});
  std::vector<EntryNumber> numbers;
  for (std::size_t length = 1; length <= kMaxKeyBytes; ++length) {
    numbers.push_back(index.find_or_insert(BlockKey(std::vector<std::byte>(length))));
  }
  for (std::size_t length = 1; length <= kMaxKeyBytes; ++length) {
    EXPECT_EQ(index.find(BlockKey(std::vector<std::byte>(length))), numbers[length - 1]);
  }
}

TEST(BlockStore, TakesAtMost168BytesPerBlock) {
  BlockStore store({.capacities = {1'000, 2'000, 3'000}});
  std::uint64_t k = 0;
  for (Tier tier : kTiers) {
    while (store.pool(tier).free_count() > 0) {
      const BlockKey name = key(k, 32);
      const BlockKey parent = key(k + 1'000'000, 32);  // never stored: each block makes a ghost
      store.commit(store.take(tier, {.priority = 50}), {.key = name, .parent = parent.view()});
      ++k;
    }
  }
  EXPECT_EQ(store.entry_count(), 12'000u);
  // Does not count ghosts, which a client can create but not use.
  const std::uint64_t ghosts = 6'000 * (sizeof(Entry) + sizeof(EntryDetails));
  EXPECT_LE(store.memory_bytes() - ghosts, 168u * 6'000u);
}

TEST(BlockStore, GhostsDoNotPileUpBehindAMovingTail) {
  BlockStore store({.capacities = {0, 4, 0}});
  std::optional<SlotRef> last;
  for (std::uint64_t k = 1; k <= 1'000; ++k) {
    const BlockKey name = key(k);
    const BlockKey parent = key(k - 1);
    const SlotRef at = store.take(Tier::pinned, {.priority = 50});
    store.commit(at, {.key = name, .parent = parent.view()});
    store.unpin(at);
    if (last) store.drop(*last, EvictionReason::request);
    last = at;
  }
  EXPECT_LE(store.entry_count(), 2u);
}

TEST(BlockStore, ParentsThatFormACircleCanStillBeEvicted) {
  BlockStore store({.capacities = {0, 8, 0}, .offload_on_evict = false});
  for (std::uint64_t k = 0; k < 4; ++k) {
    const BlockKey name = key(k);
    const BlockKey parent = key((k + 1) % 4);
    const SlotRef at = store.take(Tier::pinned, {.priority = 50});
    store.commit(at, {.key = name, .parent = parent.view()});
    store.unpin(at);
  }
  for (int i = 0; i < 4; ++i) {
    const auto victim = store.next_victim(Tier::pinned);
    ASSERT_TRUE(victim);
    store.drop(victim->at, EvictionReason::capacity);
  }
  EXPECT_EQ(store.entry_count(), 0u);
}

TEST(BlockStore, EverySlotUseHasItsOwnGeneration) {
  BlockStore store({.capacities = {0, 1, 0}});
  const SlotRef first = store.take(Tier::pinned, {.priority = 50});
  EXPECT_EQ(store.handle(first).generation, 1u);
  store.unpin(first);
  EXPECT_EQ(store.handle(store.take(Tier::pinned, {.priority = 50})).generation, 2u);
}

TEST(LeaseTable, RemembersTheLastExpiredLeases) {
  LeaseTable table({.cache = 3, .max_leases = 10});
  std::vector<LeaseId> ids;
  for (std::size_t i = 0; i <= LeaseTable::kRememberedExpired; ++i) {
    const LeaseNumber lease = table.open(TimePoint{});
    ids.push_back(table[lease].id);
    table.close(lease, true);
  }
  EXPECT_EQ(table.find(ids.front()).error().code, ErrorCode::unknown_lease);
  EXPECT_EQ(table.find(ids[1]).error().code, ErrorCode::lease_expired);
  EXPECT_EQ(table.find(ids.back()).error().code, ErrorCode::lease_expired);
  const LeaseNumber released = table.open(TimePoint{});
  const LeaseId id = table[released].id;
  table.close(released, false);
  EXPECT_EQ(table.find(id).error().code, ErrorCode::unknown_lease);
}

TEST(LeaseTable, OverdueReturnsTheEarliestFirst) {
  LeaseTable table({.cache = 3, .max_leases = 10});
  const auto at = [](int ms) { return TimePoint{} + std::chrono::milliseconds(ms); };
  const LeaseNumber late = table.open(at(30));
  const LeaseNumber early = table.open(at(10));
  EXPECT_EQ(table.overdue(at(9)), std::nullopt);
  EXPECT_EQ(table.overdue(at(40)), early);
  table.renew(early, at(50));
  EXPECT_EQ(table.overdue(at(40)), late);
  table.close(late, false);
  EXPECT_EQ(table.overdue(at(40)), std::nullopt);
}

TEST(PieceProgress, ClaimedPieceCannotBeClaimedAgain) {
  PieceProgress progress(4);
  EXPECT_TRUE(progress.claim({.first = 1, .count = 1}));
  EXPECT_TRUE(progress.claim({.first = 2, .count = 1}));
  EXPECT_FALSE(progress.claim({.first = 0, .count = 4}));
  EXPECT_FALSE(progress.claim({.first = 1, .count = 1}));
  progress.end({.first = 1, .count = 1}, PieceProgress::End::written);
  progress.end({.first = 2, .count = 1}, PieceProgress::End::untouched);
  EXPECT_FALSE(progress.busy());
  EXPECT_THAT(progress.missing(), ElementsAre(0, 2, 3));
  EXPECT_TRUE(progress.claim({.first = 0, .count = 4}));
  progress.end({.first = 0, .count = 4}, PieceProgress::End::untouched);
  EXPECT_THAT(progress.missing(), ElementsAre(0, 2, 3)) << "a written piece stays written";
}

TEST(PieceProgress, TornPieceStaysTornUntilWritten) {
  PieceProgress progress(3);
  const PieceProgress::Range last{.first = 2, .count = 1};
  ASSERT_TRUE(progress.claim(last));
  progress.end(last, PieceProgress::End::torn);
  EXPECT_EQ(progress.first_torn(), 2u);
  EXPECT_TRUE(progress.any_written());
  EXPECT_THAT(progress.missing(), ElementsAre(0, 1));
  progress.set_written({.first = 0, .count = 3});
  EXPECT_EQ(progress.first_torn(), 2u);
  ASSERT_TRUE(progress.claim(last));
  progress.end(last, PieceProgress::End::untouched);
  EXPECT_EQ(progress.first_torn(), 2u);
  ASSERT_TRUE(progress.claim(last));
  progress.end(last, PieceProgress::End::written);
  EXPECT_EQ(progress.first_torn(), std::nullopt);
}

TEST(Pressure, LevelsFollowTheWatermarks) {
  PressureGauge gauge(PressureConfig{}, 100);
  const auto level = [&](std::uint32_t used) {
    return gauge.level_for({.free = 100 - used, .evictable = 0});
  };
  EXPECT_EQ(level(79), PressureLevel::normal);
  EXPECT_EQ(level(80), PressureLevel::elevated);
  EXPECT_EQ(level(90), PressureLevel::warning);
  EXPECT_EQ(level(97), PressureLevel::critical);
  EXPECT_EQ(level(99), PressureLevel::critical);
  EXPECT_EQ(level(100), PressureLevel::out_of_memory);
}

TEST(Pressure, AFullTierOfEvictableBlocksIsNormal) {
  PressureGauge gauge(PressureConfig{}, 100);
  EXPECT_EQ(gauge.level_for({.free = 0, .evictable = 100}), PressureLevel::normal);
  EXPECT_EQ(gauge.level_for({.free = 0, .evictable = 21}), PressureLevel::normal);
  EXPECT_EQ(gauge.level_for({.free = 0, .evictable = 20}), PressureLevel::elevated);
  EXPECT_EQ(gauge.level_for({.free = 2, .evictable = 1}), PressureLevel::critical);
}

TEST(Pressure, ShrinkDependsOnHowFullTheTierIs) {
  PressureConfig config;
  config.reactions[static_cast<std::size_t>(PressureLevel::warning)] = {
      PressureReaction::Kind::shrink, 0.7};
  PressureGauge gauge(config, 10);
  EXPECT_FALSE(gauge.update({.free = 2, .evictable = 8}));
  const auto crossing = gauge.update({.free = 1, .evictable = 9});
  ASSERT_TRUE(crossing);
  EXPECT_EQ(crossing->to, PressureLevel::normal);
  EXPECT_EQ(crossing->shrink_to, 7u);
  EXPECT_FALSE(gauge.update({.free = 1, .evictable = 9})) << "the reaction runs once on the way up";
}

TEST(Pressure, AJumpOverALevelStillRunsItsReaction) {
  PressureConfig config;
  config.reactions[static_cast<std::size_t>(PressureLevel::elevated)] = {
      PressureReaction::Kind::shrink, 0.5};
  config.reactions[static_cast<std::size_t>(PressureLevel::critical)] = {
      PressureReaction::Kind::callback};
  PressureGauge gauge(config, 10);
  const auto crossing = gauge.update({.free = 1, .evictable = 0});
  ASSERT_TRUE(crossing);
  EXPECT_EQ(crossing->to, PressureLevel::warning);
  EXPECT_FALSE(crossing->callback);
  EXPECT_EQ(crossing->shrink_to, 5u);
  const auto further = gauge.update({.free = 0, .evictable = 0});
  ASSERT_TRUE(further);
  EXPECT_EQ(further->to, PressureLevel::out_of_memory);
  EXPECT_TRUE(further->callback) << "the callback of critical, which was skipped";
  const auto down = gauge.update({.free = 9, .evictable = 0});
  ASSERT_TRUE(down);
  EXPECT_TRUE(down->callback) << "the level left critical";
  EXPECT_EQ(down->to, PressureLevel::normal);
  EXPECT_FALSE(down->shrink_to) << "a falling level does not shrink the tier";
  EXPECT_EQ(gauge.level(), PressureLevel::normal);
  EXPECT_FALSE(gauge.update({.free = 9, .evictable = 0}));
}

TEST(Pressure, ComingBackToNormalRunsItsReaction) {
  PressureConfig config;
  config.reactions[0] = {PressureReaction::Kind::shrink, 0.3};
  PressureGauge gauge(config, 10);
  EXPECT_FALSE(gauge.update({.free = 5, .evictable = 5})) << "it was normal";
  ASSERT_TRUE(gauge.update({.free = 0, .evictable = 0}));
  const auto halfway = gauge.update({.free = 1, .evictable = 1});
  EXPECT_FALSE(halfway) << "it is not normal yet";
  const auto back = gauge.update({.free = 5, .evictable = 5});
  ASSERT_TRUE(back);
  EXPECT_EQ(back->to, PressureLevel::normal);
  EXPECT_EQ(back->shrink_to, 3u);
  EXPECT_FALSE(back->callback);
  EXPECT_FALSE(gauge.update({.free = 5, .evictable = 5})) << "once";

  config.reactions[0] = {PressureReaction::Kind::callback};
  PressureGauge calling(config, 10);
  EXPECT_TRUE(calling.update({.free = 1, .evictable = 0})->callback) << "left normal";
  EXPECT_FALSE(calling.update({.free = 0, .evictable = 0})->callback);
  EXPECT_TRUE(calling.update({.free = 9, .evictable = 0})->callback) << "came back";
}

TEST(Pressure, APoolReactsToEachLevelThatItEnters) {
  PressureConfig config;
  for (const std::size_t level : {0U, 2U, 3U}) {
    config.reactions[level].kind = PressureReaction::Kind::shrink;
  }
  config.reactions[4].kind = PressureReaction::Kind::callback;
  PoolGauge gauge(config);
  const auto at = [&](std::uint64_t used) {
    return gauge.update({.allocated_bytes = used, .limit_bytes = 100});
  };
  EXPECT_FALSE(at(10));
  EXPECT_FALSE(at(80)) << "elevated has no reaction";
  EXPECT_TRUE(at(98)->shrink) << "warning was passed";
  const auto full = at(100);
  ASSERT_TRUE(full);
  EXPECT_TRUE(full->callback);
  EXPECT_FALSE(full->shrink);
  EXPECT_TRUE(at(97)->callback) << "out_of_memory was left";
  EXPECT_FALSE(at(85)) << "a falling level does not shrink";
  const auto back = at(10);
  ASSERT_TRUE(back);
  EXPECT_TRUE(back->shrink);
  EXPECT_EQ(back->to, PressureLevel::normal);
}

TEST(Pressure, PoolLevelDependsOnItsLimit) {
  const auto level = [](std::uint64_t used) {
    return pool_pressure({.allocated_bytes = used, .limit_bytes = 100});
  };
  EXPECT_EQ(level(79), PressureLevel::normal);
  EXPECT_EQ(level(80), PressureLevel::elevated);
  EXPECT_EQ(level(90), PressureLevel::warning);
  EXPECT_EQ(level(97), PressureLevel::critical);
  EXPECT_EQ(level(100), PressureLevel::out_of_memory);
  EXPECT_EQ(pool_pressure({.allocated_bytes = 100}), PressureLevel::normal);
}

TEST(Key, EqualsOnlyTheSameBytes) {
  for (std::size_t length = 1; length <= kMaxKeyBytes; ++length) {
    const Bytes bytes = bytes_of(key(7), length);
    const Bytes same = bytes;
    EXPECT_EQ(BlockKey(bytes), BlockKey(same)) << length;
    if (length > 1) {
      EXPECT_FALSE(BlockKey(bytes) == BlockKey(std::span(bytes).first(length - 1)));
    }
    for (std::size_t at = 0; at < length; ++at) {
      Bytes other = bytes;
      other[at] ^= std::byte{1};
      EXPECT_FALSE(BlockKey(bytes) == BlockKey(other)) << length << " bytes, the one at " << at;
    }
  }
}

// Once the ids restarted with each run of the server. A client that asked for a transfer of the
// last run got another one.
TEST(TransferTable, DoesNotKnowTransfersOfAnEarlierRun) {
  TransferTable table({.max_open = 2, .max_kept = 1, .first_id = 100});
  const TransferId id = table.open({.blocks_total = 1}).value();
  EXPECT_EQ(id.value, 100u);
  EXPECT_EQ(table.status(TransferId{1}).error().code, ErrorCode::unknown_transfer);
}

TEST(TransferTable, KeepsTheLastEndedTransfers) {
  TransferTable table({.max_open = 2, .max_kept = 1});
  const TransferId first = table.open({.blocks_total = 1}).value();
  const TransferId second = table.open({.blocks_total = 1}).value();
  EXPECT_EQ(table.open({.blocks_total = 1}).error().code, ErrorCode::queue_full);
  int notified = 0;
  ASSERT_TRUE(table.watch(first, [&](const TransferStatus&) { ++notified; }));
  table.begin(first);
  EXPECT_EQ(table.counts().running, 1u);
  table.end(first, TransferState::done);
  EXPECT_EQ(notified, 1);
  ASSERT_TRUE(table.watch(first, [&](const TransferStatus&) { ++notified; }));
  EXPECT_EQ(notified, 2) << "a late watcher is notified at once";
  table.end(second, TransferState::cancelled);
  EXPECT_EQ(table.status(first).error().code, ErrorCode::unknown_transfer);
  EXPECT_EQ(table.status(second).value().state, TransferState::cancelled);
}

// Each of thousands of kept transfers could hold one failure per key of its request.
TEST(TransferTable, LimitsFailuresOfEndedTransfers) {
  TransferTable table({.max_open = 8, .max_kept = 8, .max_kept_failures = 5});
  const auto end_with = [&](std::size_t failures) {
    const TransferId id = table.open({.blocks_total = failures}).value();
    for (std::size_t i = 0; i < failures; ++i) {
      table.add(id, TransferStatus::Failure{key(i), {ErrorCode::unknown_key, "absent"}});
    }
    table.end(id, failures == 0 ? TransferState::done : TransferState::failed);
    return id;
  };
  const auto kept = [&](TransferId id) -> std::optional<std::size_t> {
    const auto status = table.status(id);
    if (!status) return std::nullopt;
    return status->failures.size();
  };
  const TransferId done = end_with(0);
  const TransferId first = end_with(3);
  const TransferId second = end_with(2);
  EXPECT_EQ(kept(first), 3u) << "five failures fit";
  const TransferId third = end_with(1);
  EXPECT_EQ(kept(first), std::nullopt) << "the oldest was dropped";
  EXPECT_EQ(kept(second), 2u);
  EXPECT_EQ(kept(third), 1u);
  EXPECT_EQ(kept(done), 0u) << "it has no failures";
  const TransferId huge = end_with(9);
  EXPECT_EQ(kept(huge), 9u) << "the last one keeps all its failures";
  EXPECT_EQ(kept(second), std::nullopt);
  EXPECT_EQ(kept(third), std::nullopt);
  const TransferId small = end_with(1);
  EXPECT_EQ(kept(huge), std::nullopt);
  EXPECT_EQ(kept(small), 1u);
  EXPECT_EQ(kept(done), 0u);
}

TEST(DiskPlace, APathDoesNotLeaveTheDataDirectory) {
  const fakes::TempDir dir;
  const auto place = [&](const std::string& path) {
    return prepare_disk_place({dir.path() / "data/disk", path});
  };
  for (const char* path :
       {"", "/etc/passwd", "..", "../x", "a/../../x", ".", "a/", "a/./b", "a~index", "a~/b", "~"}) {
    const auto refused = place(path);
    ASSERT_FALSE(refused) << path;
    EXPECT_EQ(refused.error().code, ErrorCode::impossible) << path;
  }
  ASSERT_TRUE(place("a/b"));
  std::filesystem::create_directory(dir.path() / "outside");
  std::filesystem::create_directory_symlink(dir.path() / "outside", dir.path() / "data/disk/link");
  EXPECT_EQ(place("link/x").error().code, ErrorCode::impossible);
  EXPECT_EQ(place("link/deep/x").error().code, ErrorCode::impossible);
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "outside/deep"));
}

// Once an empty folder permanently blocked a cache with that path.
TEST(DiskPlace, EmptyFolderDoesNotBlockAPath) {
  const fakes::TempDir dir;
  const auto root = dir.path() / "disk";
  const auto place = [&](const std::string& path) { return prepare_disk_place({root, path}); };
  ASSERT_TRUE(place("a/b/c"));
  ASSERT_TRUE(place("a/d/e"));
  std::ofstream(root / "a/b/c") << "bytes";
  const auto refused = place("a");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::impossible);
  EXPECT_NE(refused.error().detail.find("choose another path"), std::string::npos)
      << refused.error().detail;
  EXPECT_TRUE(std::filesystem::exists(root / "a/b/c"));
  std::filesystem::remove(root / "a/b/c");
  std::filesystem::create_directory_symlink(dir.path(), root / "a/b/link");
  EXPECT_FALSE(place("a")) << "the link's target is not empty and not the server's";
  std::filesystem::remove(root / "a/b/link");
  EXPECT_TRUE(place("a"));
  EXPECT_FALSE(std::filesystem::exists(root / "a"));
}

}  // namespace
}  // namespace cairn::testing
