#include "blockmgr/cache/cache_copy.hpp"

#include <gtest/gtest.h>

#include "tests/blockmgr/rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/gated_disk_io.hpp"

// Copies blocks from one cache to another, which may hold some of them already.
namespace cairn::testing {
namespace {

CacheConfig named(const std::string& name, TierSizes sizes) {
  CacheConfig config = small_cache(sizes, OffloadMode::never);
  config.name = name;
  return config;
}

class CacheCopies : public ::testing::Test {
 protected:
  CacheCopies() : rig_({.disk = gate_.wrap(), .workers = 1}) {}
  ~CacheCopies() override {
    gate_->open();
    rig_.manager.reset();
    rig_.scheduler.reset();
  }
  // Each block is its own prefix.
  void store(Cache& cache, const std::vector<BlockKey>& list, Tier tier = Tier::pinned) {
    for (const BlockKey& each : list) {
      ASSERT_TRUE(rig_.put(cache, {.keys = {each}, .tier = tier}));
    }
  }
  // Stores other bytes under the key. Works while the disk waits.
  void store_other_bytes(Cache& cache, const BlockKey& name) {
    std::optional<Allocation> slot;
    cache.allocate({.count = 1, .tier = Tier::pinned},
                   [&](Result<Allocation> allocation) { slot = std::move(allocation).value(); });
    ASSERT_TRUE(slot);
    auto writer = cache.write({.lease = slot->lease, .block = slot->blocks[0]}).value();
    writer.room([](Result<std::span<const iovec>> room) {
      for (const iovec& piece : *room) std::memset(piece.iov_base, 0x5A, piece.iov_len);
    });
    writer.finish([](Result<> written) { EXPECT_TRUE(written); });
    bool committed = false;
    cache.commit(slot->lease, {{.handle = slot->blocks[0], .key = name}},
                 [&](Result<std::vector<CommitStatus>> done) { committed = done.has_value(); });
    ASSERT_TRUE(committed);
    ASSERT_TRUE(cache.release(slot->lease, {}));
  }
  static Bytes other_bytes() { return Bytes(64, std::byte{0x5A}); }

  TransferId begin(const std::shared_ptr<Cache>& into, std::vector<BlockKey> list, Tier to) {
    return copy_between_caches({.from = from_, .into = into, .keys = std::move(list), .to = to})
        .value();
  }
  TransferStatus ended(TransferId id) {
    rig_.scheduler->wait_idle();
    return rig_.manager->transfer(id).value();
  }
  TransferStatus copy(const std::shared_ptr<Cache>& into, std::vector<BlockKey> list, Tier to) {
    return ended(begin(into, std::move(list), to));
  }

  fakes::FakedDisk<fakes::GatedDiskIo> gate_;
  Rig rig_;
  const std::shared_ptr<Cache> from_ = rig_.cache(named("from", {.pinned = 4, .disk = 4}));
};

// Once all three blocks were reported as copied, though the first was evicted for the others.
TEST_F(CacheCopies, PresentBlockIsNotEvictedForTheRest) {
  const auto into = rig_.cache(named("into", {.pinned = 4}));
  store(*from_, keys(1, 3));
  store(*into, {key(1), key(11), key(12)});
  const TransferStatus status = copy(into, keys(1, 3), Tier::pinned);
  EXPECT_EQ(status.state, TransferState::done);
  EXPECT_EQ(status.blocks_done, 3u);
  EXPECT_EQ(status.bytes, 2 * 64u);
  EXPECT_EQ(rig_.match(*into, keys(1, 3), 0).blocks.size(), 3u);
  EXPECT_EQ(into->stats().leases, 0u);
}

TEST_F(CacheCopies, CopiesWhatFitsAndNamesTheRest) {
  const auto into = rig_.cache(named("into", {.pinned = 2}));
  store(*from_, keys(1, 3));
  store(*into, keys(1, 1));
  const TransferStatus status = copy(into, keys(1, 3), Tier::pinned);
  EXPECT_EQ(status.state, TransferState::failed);
  EXPECT_EQ(status.blocks_done, 2u);
  ASSERT_EQ(status.failures.size(), 1u);
  EXPECT_EQ(status.failures[0].key, key(3));
  EXPECT_EQ(status.failures[0].error.code, ErrorCode::no_capacity);
  EXPECT_EQ(rig_.match(*into, keys(1, 3), 0).blocks.size(), 2u);
  EXPECT_EQ(into->stats().leases, 0u);
}

// Once a block on disk was reported to be in pinned memory.
TEST_F(CacheCopies, PromotesABlockFromAnotherTier) {
  const auto into = rig_.cache(named("into", {.pinned = 4, .disk = 4}));
  store(*from_, keys(1, 2));
  store_other_bytes(*into, key(1));
  ASSERT_EQ(rig_.transfer(*into, {.keys = {key(1)}, .to = Tier::disk, .move = true}).state,
            TransferState::done);
  const TransferStatus status = copy(into, keys(1, 2), Tier::pinned);
  EXPECT_EQ(status.state, TransferState::done);
  EXPECT_EQ(status.blocks_done, 2u);
  EXPECT_EQ(status.bytes, 2 * 64u);
  EXPECT_TRUE(is_in(*into, Tier::pinned, key(1)));
  EXPECT_TRUE(is_in(*into, Tier::pinned, key(2)));
  EXPECT_EQ(rig_.read(*into, key(1)).value(), other_bytes()) << "the first block stays";
  EXPECT_EQ(into->stats().leases, 0u);
}

TEST_F(CacheCopies, BlockStoredDuringTheCopyStaysAndMovesUp) {
  const auto into = rig_.cache(named("into", {.device = 4, .pinned = 4}));
  store(*from_, keys(1, 1), Tier::disk);
  gate_->close();
  const TransferId id = begin(into, keys(1, 1), Tier::device);
  gate_->wait_for_calls(1);
  store_other_bytes(*into, key(1));
  gate_->open();
  const TransferStatus status = ended(id);
  EXPECT_EQ(status.state, TransferState::done);
  EXPECT_EQ(status.blocks_done, 1u);
  EXPECT_TRUE(is_in(*into, Tier::device, key(1)));
  EXPECT_EQ(rig_.read(*into, key(1)).value(), other_bytes());
  EXPECT_EQ(into->stats().leases, 0u);
  EXPECT_EQ(count(*into, Tier::device, SlotState::free), 3u);
}

TEST_F(CacheCopies, KeyNamedTwiceCountsTwiceAndIsCopiedOnce) {
  const auto into = rig_.cache(named("into", {.pinned = 4, .disk = 4}));
  store(*from_, keys(1, 2));
  store(*into, keys(1, 1), Tier::disk);
  const TransferStatus status = copy(into, {key(1), key(2), key(1), key(2)}, Tier::pinned);
  EXPECT_EQ(status.state, TransferState::done);
  EXPECT_EQ(status.blocks_done, 4u);
  EXPECT_EQ(status.bytes, 2 * 64u);
}

TEST_F(CacheCopies, RefusedCopyHoldsNothing) {
  const auto into = rig_.cache(named("into", {.pinned = 4}));
  store(*from_, keys(1, 1));
  store(*into, keys(1, 1));
  const auto refused =
      copy_between_caches({.from = from_, .into = into, .keys = keys(1, 2), .to = Tier::pinned});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unknown_key);
  EXPECT_EQ(into->stats().leases, 0u);
  EXPECT_EQ(count(*from_, Tier::pinned, SlotState::evictable), 1u);
}

}  // namespace
}  // namespace cairn::testing
