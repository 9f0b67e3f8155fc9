// Tries to break each invariant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/gated_disk_io.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;

// A rig whose disk waits at a gate.
struct GatedRig {
  ~GatedRig() {
    gate->open();
    rig->manager.reset();
    rig->scheduler.reset();  // before the disk that it borrows
  }
  fakes::FakedDisk<fakes::GatedDiskIo> gate;
  std::unique_ptr<Rig> rig = std::make_unique<Rig>(Rig::Parts{.disk = gate.wrap()});
};

// --- 1: a key always means the same bytes

TEST(KeysNameTheirBytes, NothingIsSeenBeforeCommit) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  const auto slot = rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).value();
  ASSERT_TRUE(rig.write(*cache, {.lease = slot.lease, .block = slot.blocks[0]}, bytes_of(key(1))));
  EXPECT_TRUE(rig.match(*cache, keys(1, 1), 0).blocks.empty());
  EXPECT_EQ(rig.read(*cache, key(1)).error().code, ErrorCode::unknown_key);
  ASSERT_TRUE(rig.commit(*cache, slot.lease, {{.handle = slot.blocks[0], .key = key(1)}}));
  EXPECT_EQ(rig.match(*cache, keys(1, 1), 0).blocks.size(), 1u);
}

TEST(KeysNameTheirBytes, ACommittedBlockCannotBeWritten) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  const auto slot = rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).value();
  const Cache::WriteTarget target{.lease = slot.lease, .block = slot.blocks[0]};
  ASSERT_TRUE(rig.write(*cache, target, bytes_of(key(1))));
  ASSERT_TRUE(rig.commit(*cache, slot.lease, {{.handle = slot.blocks[0], .key = key(1)}}));
  EXPECT_EQ(rig.write(*cache, target, bytes_of(key(2))).error().code, ErrorCode::state_conflict);
  EXPECT_EQ(
      rig.commit(*cache, slot.lease, {{.handle = slot.blocks[0], .key = key(2)}}).error().code,
      ErrorCode::state_conflict);
  EXPECT_EQ(rig.read(*cache, key(1)).value(), bytes_of(key(1)));
}

TEST(KeysNameTheirBytes, ABlockBeingWrittenCannotBeCommitted) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  const auto slot = rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).value();
  {
    const auto writer = cache->write({.lease = slot.lease, .block = slot.blocks[0]}).value();
    EXPECT_EQ(
        rig.commit(*cache, slot.lease, {{.handle = slot.blocks[0], .key = key(1)}}).error().code,
        ErrorCode::state_conflict);
    EXPECT_FALSE(cache->write({.lease = slot.lease, .block = slot.blocks[0]}));
  }
  EXPECT_TRUE(rig.commit(*cache, slot.lease, {{.handle = slot.blocks[0], .key = key(1)}}));
}

// Once the block was published with bytes of both writes.
TEST(KeysNameTheirBytes, InterruptedRewritePreventsCommit) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  const auto slot = rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).value();
  const Cache::WriteTarget target{.lease = slot.lease, .block = slot.blocks[0]};
  const auto commit = [&] {
    return rig.commit(*cache, slot.lease, {{.handle = slot.blocks[0], .key = key(1)}});
  };
  ASSERT_TRUE(rig.write(*cache, target, bytes_of(key(2))));
  {
    auto writer = cache->write(target).value();
    const auto room =
        rig.await<std::span<const iovec>>([&](auto done) { writer.room(std::move(done)); });
    std::memset(room.value().front().iov_base, 0xEE, 5);
  }
  const Error torn = commit().error();
  EXPECT_EQ(torn.code, ErrorCode::state_conflict);
  EXPECT_THAT(torn.detail, ::testing::HasSubstr("write it again"));
  ASSERT_TRUE(rig.write(*cache, target, bytes_of(key(1))));
  ASSERT_TRUE(commit());
  EXPECT_EQ(rig.read(*cache, key(1)).value(), bytes_of(key(1)));
}

TEST(KeysNameTheirBytes, TheOlderOfTwoBlocksStays) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1)}));
  const auto slots = rig.allocate(*cache, {.count = 3, .tier = Tier::pinned}).value();
  for (const BlockHandle& block : slots.blocks) {
    ASSERT_TRUE(rig.write(*cache, {.lease = slots.lease, .block = block}, Bytes(64)));
  }
  const auto statuses = rig.commit(*cache, slots.lease,
                                   {{.handle = slots.blocks[0], .key = key(1)},
                                    {.handle = slots.blocks[1], .key = key(2)},
                                    {.handle = slots.blocks[2], .key = key(2)}})
                            .value();
  EXPECT_THAT(statuses, ElementsAre(CommitStatus::duplicate, CommitStatus::committed,
                                    CommitStatus::duplicate));
  EXPECT_EQ(rig.read(*cache, key(1)).value(), bytes_of(key(1)));
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::free), 2u);
  EXPECT_EQ(cache->release(slots.lease, {}).value(), 1u);
}

TEST(KeysNameTheirBytes, CopyIsVisibleOnlyOnceComplete) {
  GatedRig gated;
  Rig& rig = *gated.rig;
  const auto cache = rig.cache(small_cache({.pinned = 4, .disk = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2)}));
  gated.gate->close();
  const auto id = cache->transfer({.keys = keys(1, 2), .to = Tier::disk, .move = true}).value();
  gated.gate->wait_for_calls(1);
  EXPECT_TRUE(present_in(*cache, Tier::disk).empty());
  EXPECT_EQ(count(*cache, Tier::disk, SlotState::allocated), 2u);
  EXPECT_EQ(rig.manager->transfer(id).value().state, TransferState::running);
  for (const auto& block : rig.match(*cache, keys(1, 2), 0).blocks) {
    EXPECT_EQ(block.tier, Tier::pinned);
  }
  gated.gate->open();
  rig.scheduler->wait_idle();
  EXPECT_EQ(present_in(*cache, Tier::disk).size(), 2u);
  EXPECT_TRUE(present_in(*cache, Tier::pinned).empty());
  EXPECT_EQ(rig.read(*cache, key(2)).value(), bytes_of(key(2)));
}

TEST(KeysNameTheirBytes, AVictimStaysReadableUntilItsCopyIsThere) {
  GatedRig gated;
  Rig& rig = *gated.rig;
  const auto cache = rig.cache(small_cache({.pinned = 2, .disk = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2)}));
  gated.gate->close();
  std::optional<Result<Allocation>> answer;
  cache->allocate({.count = 1, .tier = Tier::pinned},
                  [&](Result<Allocation> result) { answer.emplace(std::move(result)); });
  gated.gate->wait_for_calls(1);
  EXPECT_FALSE(answer) << "the slot is not free yet";
  EXPECT_EQ(rig.match(*cache, keys(1, 2), 0).blocks.size(), 2u);
  gated.gate->open();
  rig.scheduler->wait_idle();
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->has_value());
  EXPECT_EQ(rig.match(*cache, keys(1, 2), 0).blocks[1].tier, Tier::disk);
}

TEST(KeysNameTheirBytes, VictimLeasedMeanwhileStays) {
  GatedRig gated;
  Rig& rig = *gated.rig;
  const auto cache = rig.cache(small_cache({.pinned = 2, .disk = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2)}));
  gated.gate->close();
  std::optional<Result<Allocation>> answer;
  cache->allocate({.count = 1, .tier = Tier::pinned},
                  [&](Result<Allocation> result) { answer.emplace(std::move(result)); });
  gated.gate->wait_for_calls(1);
  const MatchResult leased = rig.match(*cache, keys(1, 2));
  gated.gate->open();
  rig.scheduler->wait_idle();
  ASSERT_TRUE(answer) << "the allocation must end";
  EXPECT_EQ(answer->error().code, ErrorCode::no_capacity);
  EXPECT_EQ(present_in(*cache, Tier::pinned).size(), 2u);
  EXPECT_EQ(cache->release(*leased.lease, {.blocks = leased.blocks}).value(), 2u);
}

// --- 2: nobody reads another key's bytes

TEST(NobodyReadsOtherBytes, AReadPinsItsSlotUntilItEnds) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 1}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1)}));
  std::optional<BlockReader> reader(cache->read(key(1), {}).value());
  std::span<const iovec> bytes;
  reader->fetch([&](Result<std::span<const iovec>> result) { bytes = *result; });
  ASSERT_TRUE(cache->erase(key(1)));  // a read does not hold a key, only its bytes
  EXPECT_EQ(rig.match(*cache, keys(1, 1), 0).blocks.size(), 0u);
  EXPECT_EQ(rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).error().code,
            ErrorCode::no_capacity);
  EXPECT_EQ(std::memcmp(bytes[0].iov_base, bytes_of(key(1)).data(), 64), 0);
  reader.reset();
  EXPECT_TRUE(rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}));
}

TEST(NobodyReadsOtherBytes, AStaleHandleReachesNothing) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 1}));
  const auto first = rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).value();
  ASSERT_TRUE(cache->release(first.lease, {}));
  const auto second = rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).value();
  ASSERT_EQ(second.blocks[0].slot, first.blocks[0].slot);
  const BlockHandle stale = first.blocks[0];
  EXPECT_EQ(cache->write({.lease = second.lease, .block = stale}).error().code,
            ErrorCode::stale_generation);
  EXPECT_EQ(rig.commit(*cache, second.lease, {{.handle = stale, .key = key(1)}}).error().code,
            ErrorCode::stale_generation);
  EXPECT_EQ(cache->release(second.lease, {.blocks = {&stale, 1}}).error().code,
            ErrorCode::stale_generation);
}

TEST(NobodyReadsOtherBytes, ALeaseReachesOnlyItsOwnSlots) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  const auto mine = rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).value();
  const auto other = rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).value();
  EXPECT_EQ(cache->write({.lease = mine.lease, .block = other.blocks[0]}).error().code,
            ErrorCode::foreign_lease);
  EXPECT_EQ(
      rig.commit(*cache, mine.lease, {{.handle = other.blocks[0], .key = key(1)}}).error().code,
      ErrorCode::foreign_lease);
  EXPECT_EQ(cache->release(mine.lease, {.blocks = other.blocks}).error().code,
            ErrorCode::foreign_lease);
  BlockHandle beyond = mine.blocks[0];
  beyond.slot = 4;
  EXPECT_EQ(cache->write({.lease = mine.lease, .block = beyond}).error().code,
            ErrorCode::unknown_slot);
  beyond = mine.blocks[0];
  beyond.tier = Tier::disk;
  EXPECT_EQ(cache->write({.lease = mine.lease, .block = beyond}).error().code,
            ErrorCode::unknown_tier);
}

TEST(NobodyReadsOtherBytes, FailedCommitChangesNothing) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  const auto slots = rig.allocate(*cache, {.count = 2, .tier = Tier::pinned}).value();
  BlockHandle stale = slots.blocks[1];
  ++stale.generation;
  EXPECT_FALSE(
      rig.commit(*cache, slots.lease,
                 {{.handle = slots.blocks[0], .key = key(1)}, {.handle = stale, .key = key(2)}}));
  EXPECT_FALSE(rig.commit(
      *cache, slots.lease,
      {{.handle = slots.blocks[0], .key = key(1)}, {.handle = slots.blocks[0], .key = key(2)}}));
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::allocated), 2u);
  EXPECT_TRUE(rig.match(*cache, keys(1, 2), 0).blocks.empty());
}

// --- 4: every pin is a lease and every lease ends

TEST(EveryLeaseEnds, AClientThatDiesLeaksNothing) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2)}));
  const auto slots =
      rig.allocate(*cache, {.count = 2, .tier = Tier::pinned, .lease_ms = 50}).value();
  const MatchResult matched = rig.match(*cache, keys(1, 2), 70);
  EXPECT_EQ(matched.expires_at_unix_ms, rig.clock.unix_ms() + 70);
  rig.clock.advance_ms(49);
  rig.manager->tick();
  EXPECT_EQ(cache->stats().leases, 2u);
  rig.clock.advance_ms(1);
  rig.manager->tick();
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::allocated), 0u);
  EXPECT_EQ(cache->stats().lease_expirations, 1u);
  EXPECT_EQ(
      rig.commit(*cache, slots.lease, {{.handle = slots.blocks[0], .key = key(9)}}).error().code,
      ErrorCode::lease_expired);
  rig.clock.advance_ms(20);
  // Needs no tick: an allocation without room looks for expired leases.
  EXPECT_TRUE(rig.allocate(*cache, {.count = 4, .tier = Tier::pinned}));
}

TEST(EveryLeaseEnds, AWriteUnderWayKeepsItsSlotFromBeingReused) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 1}));
  const auto slot =
      rig.allocate(*cache, {.count = 1, .tier = Tier::pinned, .lease_ms = 10}).value();
  std::optional<BlockWriter> writer(
      cache->write({.lease = slot.lease, .block = slot.blocks[0]}).value());
  rig.clock.advance_ms(10);
  rig.manager->tick();
  EXPECT_FALSE(rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}));
  const auto finished = rig.await<void>([&](auto done) { writer->finish(std::move(done)); });
  EXPECT_EQ(finished.error().code, ErrorCode::lease_expired);
  writer.reset();
  EXPECT_TRUE(rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}));
}

TEST(EveryLeaseEnds, ARenewedLeaseLives) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 1}));
  const auto slot =
      rig.allocate(*cache, {.count = 1, .tier = Tier::pinned, .lease_ms = 10}).value();
  EXPECT_EQ(cache->renew(slot.lease, 100).value(), rig.clock.unix_ms() + 100);
  rig.clock.advance_ms(99);
  rig.manager->tick();
  EXPECT_EQ(cache->stats().leases, 1u);
  EXPECT_EQ(cache->release(slot.lease, {}).value(), 1u);
  EXPECT_EQ(cache->renew(slot.lease, 100).error().code, ErrorCode::unknown_lease);
}

TEST(EveryLeaseEnds, ExpiredKeyIsAMissWhileLeased) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1), .ttl_ms = 100}));
  const MatchResult leased = rig.match(*cache, keys(1, 1), 1'000);
  rig.clock.advance_ms(100);
  EXPECT_TRUE(rig.match(*cache, keys(1, 1), 0).blocks.empty()) << "also before a tick";
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::committed), 1u) << "the lease holds the bytes";
  EXPECT_EQ(cache->release(*leased.lease, {.blocks = leased.blocks}).value(), 1u);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::free), 2u);
}

// Once a key expired although a lease held its block. It could then be stored again and deleted.
TEST(EveryLeaseEnds, ExpiredKeyStaysUntilItsLastLeaseEnds) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2, .disk = 2}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1), .ttl_ms = 100}));
  ASSERT_EQ(rig.transfer(*cache, {.keys = keys(1, 1), .to = Tier::disk}).state,
            TransferState::done);
  const MatchResult first = rig.match(*cache, keys(1, 1), 1'000);
  const MatchResult last = rig.match(*cache, keys(1, 1), 2'000);
  for (int ms : {100, 900}) {
    rig.clock.advance_ms(ms);
    rig.manager->tick();
    EXPECT_EQ(rig.read(*cache, key(1)).value(), bytes_of(key(1)));
    EXPECT_EQ(cache->erase(key(1).view()).error().code, ErrorCode::leased);
    EXPECT_TRUE(is_in(*cache, Tier::disk, key(1)));
    EXPECT_TRUE(rig.match(*cache, keys(1, 1), 0).blocks.empty()) << "it cannot be leased again";
  }
  EXPECT_EQ(cache->renew(*first.lease, 1).error().code, ErrorCode::lease_expired);
  rig.clock.advance_ms(1'000);
  rig.manager->tick();
  EXPECT_EQ(cache->renew(*last.lease, 1).error().code, ErrorCode::lease_expired);
  EXPECT_EQ(rig.read(*cache, key(1)).error().code, ErrorCode::unknown_key);
  for (Tier tier : {Tier::pinned, Tier::disk}) {
    EXPECT_EQ(count(*cache, tier, SlotState::free), 2u);
    EXPECT_EQ(cache->stats()
                  .tiers[index_of(tier)]
                  .evictions[static_cast<std::size_t>(EvictionReason::expired)],
              1u);
  }
}

TEST(EveryLeaseEnds, CopyOfAnExpiredKeyGoesWithIt) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 2, .disk = 2}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1), .ttl_ms = 100}));
  const MatchResult leased = rig.match(*cache, keys(1, 1), 1'000);
  rig.clock.advance_ms(100);
  rig.manager->tick();
  EXPECT_EQ(rig.transfer(*cache, {.keys = keys(1, 1), .to = Tier::disk}).state,
            TransferState::done);
  EXPECT_EQ(cache->release(*leased.lease, {.blocks = leased.blocks}).value(), 1u);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::free), 2u);
  EXPECT_EQ(count(*cache, Tier::disk, SlotState::free), 2u);
}

// --- 5: everything has a bound

// A slot's pins were once counted in 32 bits. Many long leases of one key made the count wrap.
TEST(EverythingHasABound, LimitsBlocksHeldByLeases) {
  BlockManagerOptions options;
  options.max_held_blocks = 10;
  Rig rig({.options = options});
  const auto cache = rig.cache(small_cache({.pinned = 20}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1)}));
  const std::vector<BlockKey> often(12, key(1));
  const std::vector<KeyView> named = views(often);
  const auto match = [&](std::size_t count) {
    MatchResult result;
    auto done = cache->match(std::span(named).first(count), 1'000, result);
    return done ? ErrorCode::internal : done.error().code;
  };
  EXPECT_EQ(match(12), ErrorCode::internal) << "one request may hold what it names";
  EXPECT_EQ(match(1), ErrorCode::too_many);
  EXPECT_EQ(rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}).error().code,
            ErrorCode::too_many);
  rig.clock.advance_ms(1'000);
  EXPECT_EQ(match(6), ErrorCode::internal);
  const auto slots = rig.allocate(*cache, {.count = 4, .tier = Tier::pinned});
  ASSERT_TRUE(slots);
  EXPECT_EQ(match(1), ErrorCode::too_many);
  EXPECT_EQ(cache->release(slots->lease, {}).value(), 4u);
  EXPECT_EQ(match(4), ErrorCode::internal);
}

TEST(EverythingHasABound, LimitsLeasesKeysAndDurations) {
  BlockManagerOptions options;
  options.max_leases = 2;
  options.max_lease_ms = 1'000;
  options.max_blocks_per_request = 3;
  options.max_metadata_bytes = 10;
  Rig rig({.options = options});
  CacheConfig config = small_cache({.pinned = 8});
  config.default_lease_ms = 500;
  const auto cache = rig.cache(config);
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1)}));
  const auto code = [&](const AllocateRequest& request) {
    return rig.allocate(*cache, request).error().code;
  };
  EXPECT_EQ(code({.count = 4, .tier = Tier::pinned}), ErrorCode::out_of_range);
  EXPECT_EQ(code({.count = 0, .tier = Tier::pinned}), ErrorCode::out_of_range);
  EXPECT_EQ(code({.count = 1, .tier = Tier::disk}), ErrorCode::unknown_tier);
  EXPECT_EQ(code({.count = 1, .tier = Tier::pinned, .lease_ms = 1'001}), ErrorCode::out_of_range);
  EXPECT_EQ(code({.count = 1, .tier = Tier::pinned, .lease_ms = 0}), ErrorCode::out_of_range);
  EXPECT_EQ(code({.count = 1, .tier = Tier::pinned, .priority = 101}), ErrorCode::out_of_range);
  MatchResult matched;
  EXPECT_EQ(cache->match(views(keys(1, 4)), 0, matched).error().code, ErrorCode::out_of_range);
  EXPECT_EQ(cache->set_metadata(key(1), std::string(11, ' ')).error().code,
            ErrorCode::body_too_large);
  ASSERT_TRUE(rig.allocate(*cache, {.count = 1, .tier = Tier::pinned}));
  ASSERT_TRUE(cache->match(views(keys(1, 1)), {}, matched));
  EXPECT_EQ(code({.count = 1, .tier = Tier::pinned}), ErrorCode::too_many);
  EXPECT_EQ(cache->match(views(keys(1, 1)), {}, matched).error().code, ErrorCode::too_many);
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::free), 6u) << "a refusal takes nothing";
}

TEST(EverythingHasABound, LimitsWaitingAllocationsAndTransfers) {
  BlockManagerOptions options;
  options.max_waiting_allocations = 1;
  options.max_transfers = 1;
  GatedRig gated;
  gated.rig->manager = std::make_unique<BlockManager>(*gated.rig->runtime, *gated.rig->scheduler,
                                                      gated.rig->clock, *gated.rig->log, [&] {
                                                        options.data_dir = gated.rig->dir.path();
                                                        return options;
                                                      }());
  Rig& rig = *gated.rig;
  const auto cache = rig.cache(small_cache({.pinned = 3, .disk = 6}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3)}));
  gated.gate->close();
  std::vector<ErrorCode> codes;
  int granted = 0;
  for (int i = 0; i < 2; ++i) {
    cache->allocate({.count = 1, .tier = Tier::pinned}, [&](Result<Allocation> result) {
      if (result) {
        ++granted;
      } else {
        codes.push_back(result.error().code);
      }
    });
  }
  EXPECT_THAT(codes, ElementsAre(ErrorCode::queue_full));
  ASSERT_TRUE(cache->transfer({.keys = keys(1, 1), .to = Tier::disk}));
  EXPECT_EQ(cache->transfer({.keys = keys(2, 1), .to = Tier::disk}).error().code,
            ErrorCode::queue_full);
  gated.gate->open();
  rig.scheduler->wait_idle();
  EXPECT_EQ(granted, 1);
}

// --- 6: a prefix is evicted from its tail

TEST(APrefixGoesFromItsTail, RecentlyUsedTailStillGoesFirst) {
  for (const OffloadMode mode : {OffloadMode::never, OffloadMode::on_evict}) {
    Rig rig;
    const auto cache = rig.cache(small_cache({.pinned = 12}, mode));
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 6)}));
    // The tail is the most recently used.
    for (std::uint64_t k = 1; k <= 6; ++k) ASSERT_TRUE(rig.read(*cache, key(k)));
    // A second chain is committed block by block, so its root is the oldest.
    for (std::uint64_t k = 101; k <= 106; ++k) {
      ASSERT_TRUE(rig.put(*cache, {.keys = keys(k, 1), .parent = key(k - 1)}));
    }
    for (std::uint64_t round = 0; round < 12; ++round) {
      ASSERT_TRUE(rig.put(*cache, {.keys = keys(1'000 + round, 1), .priority = 100}));
      const std::vector<bool> left = cache->contains(views(keys(1, 6)));
      EXPECT_TRUE(std::is_sorted(left.rbegin(), left.rend())) << "a hole after round " << round;
      const std::vector<bool> other = cache->contains(views(keys(101, 6)));
      EXPECT_TRUE(std::is_sorted(other.rbegin(), other.rend())) << "a hole after round " << round;
    }
    EXPECT_TRUE(rig.match(*cache, keys(1, 1), 0).blocks.empty());
    EXPECT_TRUE(rig.match(*cache, keys(101, 1), 0).blocks.empty());
  }
}

TEST(APrefixGoesFromItsTail, FullLowerTierLeavesNoHole) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.device = 4, .pinned = 4, .disk = 4}));
  for (std::uint64_t chain = 0; chain < 10; ++chain) {
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(100 * chain, 4), .tier = Tier::device}));
    for (std::uint64_t c = 0; c <= chain; ++c) {
      const std::vector<bool> left = cache->contains(views(keys(100 * c, 4)));
      EXPECT_TRUE(std::is_sorted(left.rbegin(), left.rend())) << "chain " << c << " has a hole";
    }
  }
  EXPECT_EQ(count(*cache, Tier::disk, SlotState::evictable), 4u);
}

TEST(APrefixGoesFromItsTail, RestoredParentGoesAfterItsChildren) {
  Rig rig;
  const auto cache = rig.cache(small_cache({.pinned = 4}, OffloadMode::never));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 3)}));
  ASSERT_TRUE(cache->erase(key(1)));
  EXPECT_TRUE(rig.match(*cache, keys(1, 3), 0).blocks.empty()) << "unreachable without its root";
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 1), .priority = 0}));
  EXPECT_EQ(rig.match(*cache, keys(1, 3), 0).blocks.size(), 3u);
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(50, 2)}));
  EXPECT_THAT(cache->contains(views(keys(1, 3))), ElementsAre(true, true, false))
      << "the root goes last although its priority is the lowest";
}

}  // namespace
}  // namespace cairn::testing
