// Concurrent transfers of the same blocks: one copies them, and the others wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/blockmgr/rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/gated_disk_io.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

// Each block needs its own job: two do not fit the size of one.
constexpr std::uint32_t kLargeBlockBytes = 17u << 20;

// Transfers over a disk that waits at a gate.
class GatedTransfer : public ::testing::Test {
 protected:
  GatedTransfer() : rig_({.disk = gate_.wrap(), .workers = 1}) {}
  ~GatedTransfer() override {
    gate_->open();
    rig_.manager.reset();
    rig_.scheduler.reset();
  }
  // Begins a transfer of these keys and waits until it reaches the disk.
  TransferId begin(std::uint64_t first, std::size_t count, Tier to = Tier::pinned) {
    const auto id = cache_->transfer({.keys = keys(first, count), .to = to}).value();
    gate_->wait_for_calls(1);
    return id;
  }
  std::optional<TransferId> onboard(const LeaseId& lease, const std::vector<BlockKey>& wanted) {
    return cache_->onboard({.lease = lease, .keys = views(wanted), .tier = Tier::pinned}).value();
  }
  TransferStatus status(TransferId id) { return rig_.manager->transfer(id).value(); }
  void open() {
    gate_->open();
    rig_.scheduler->wait_idle();
  }
  TransferId transfer(std::vector<BlockKey> wanted, std::int32_t priority = 0) {
    const auto id =
        cache_->transfer({.keys = std::move(wanted), .to = Tier::pinned, .priority = priority})
            .value();
    EXPECT_TRUE(rig_.manager->watch_transfer(
        id, [this](const TransferStatus& status) { ended_.push_back(status.id); }));
    return id;
  }
  // Replaces the cache by one whose blocks are copied one by one. Their bytes are zeros.
  void use_large_blocks(std::uint32_t count) {
    CacheConfig config = small_cache({.pinned = count, .disk = count});
    config.name = "large";
    config.shape = {.num_layers = 1,
                    .outer_dim = 1,
                    .page_size = 1,
                    .inner_dim = kLargeBlockBytes / 2,
                    .dtype_width_bytes = 2};
    cache_ = rig_.cache(config);
    const Allocation slots = rig_.allocate(*cache_, {.count = count, .tier = Tier::disk}).value();
    std::vector<CommitBlock> blocks;
    for (std::uint32_t i = 0; i < count; ++i) {
      blocks.push_back({.handle = slots.blocks[i], .key = key(i + 1)});
    }
    ASSERT_TRUE(rig_.commit(*cache_, slots.lease, std::move(blocks)));
    ASSERT_TRUE(cache_->release(slots.lease, {}));
  }
  std::uint64_t moved_up() const {
    return cache_->stats()
        .routes[index_of(Tier::disk)][index_of(Tier::pinned)]
        .blocks[static_cast<std::size_t>(TransferOutcome::done)];
  }

  fakes::FakedDisk<fakes::GatedDiskIo> gate_;
  Rig rig_;
  std::shared_ptr<Cache> cache_ = rig_.cache(small_cache({.pinned = 3, .disk = 8}));
  std::vector<TransferId> ended_;  // in order; only the one worker appends
};

TEST_F(GatedTransfer, CancelsAQueuedTransfer) {
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 3)}));
  gate_->close();
  const auto running = begin(1, 1, Tier::disk);
  const auto queued = cache_->transfer({.keys = keys(2, 2), .to = Tier::disk}).value();
  int notified = 0;
  ASSERT_TRUE(rig_.manager->watch_transfer(queued, [&](const TransferStatus& status) {
    EXPECT_EQ(status.state, TransferState::cancelled);
    ++notified;
  }));
  EXPECT_EQ(rig_.manager->cancel_transfer(queued).value().state, TransferState::cancelled);
  EXPECT_EQ(notified, 1);
  EXPECT_EQ(rig_.manager->cancel_transfer(running).value().state, TransferState::running);
  open();
  EXPECT_EQ(status(running).state, TransferState::done);
  EXPECT_EQ(present_in(*cache_, Tier::disk).size(), 1u);
  EXPECT_EQ(count(*cache_, Tier::disk, SlotState::allocated), 0u);
  EXPECT_EQ(count(*cache_, Tier::pinned, SlotState::evictable), 3u);
}

// Once each request for a shared prefix copied it again, into its own slots.
TEST_F(GatedTransfer, TransfersOfTheSameBlocksShareOneCopy) {
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 4), .tier = Tier::disk}));
  const MatchResult leased = rig_.match(*cache_, keys(1, 4));
  gate_->close();
  const auto first = begin(1, 2);
  const auto second = onboard(*leased.lease, keys(1, 4));
  ASSERT_TRUE(second);
  EXPECT_EQ(status(*second).blocks_total, 3u) << "two are on their way, one finds room";
  const auto third = cache_->transfer({.keys = keys(1, 2), .to = Tier::pinned}).value();
  EXPECT_EQ(count(*cache_, Tier::pinned, SlotState::allocated), 3u);
  EXPECT_NE(status(third).state, TransferState::done);
  open();
  EXPECT_EQ(moved_up(), 3u);
  for (const TransferId id : {first, *second, third}) {
    EXPECT_EQ(status(id).state, TransferState::done);
    EXPECT_EQ(status(id).blocks_done, status(id).blocks_total);
  }
  EXPECT_EQ(cache_->stats().tiers[index_of(Tier::pinned)].leased_blocks, 3u);
  EXPECT_EQ(cache_->release(*leased.lease, {}).value(), 7u);
  EXPECT_EQ(rig_.read(*cache_, key(2)).value(), bytes_of(key(2)));
}

TEST_F(GatedTransfer, CancellingOneStillServesTheOthers) {
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 3), .tier = Tier::disk}));
  gate_->close();
  const auto busy = begin(3, 1);
  const auto first = cache_->transfer({.keys = keys(1, 2), .to = Tier::pinned}).value();
  const auto second = cache_->transfer({.keys = keys(1, 2), .to = Tier::pinned}).value();
  const auto left = cache_->transfer({.keys = keys(1, 2), .to = Tier::pinned}).value();
  EXPECT_EQ(rig_.manager->cancel_transfer(left).value().state, TransferState::cancelled);
  EXPECT_EQ(rig_.manager->cancel_transfer(first).value().state, TransferState::cancelled);
  open();
  EXPECT_EQ(status(busy).state, TransferState::done);
  EXPECT_EQ(status(second).state, TransferState::done);
  EXPECT_EQ(status(second).blocks_done, 2u);
  EXPECT_EQ(moved_up(), 3u);
  EXPECT_EQ(count(*cache_, Tier::pinned, SlotState::evictable), 3u);
  EXPECT_EQ(count(*cache_, Tier::disk, SlotState::evictable), 3u);
}

TEST_F(GatedTransfer, TooLargeTransferDoesNotFailSmallerOnes) {
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(11, 3), .tier = Tier::disk}));
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 3)}));
  gate_->close();
  const auto first = begin(11, 3);  // three blocks begin to leave for it
  const auto second = cache_->transfer({.keys = keys(11, 1), .to = Tier::pinned}).value();
  EXPECT_EQ(rig_.match(*cache_, keys(1, 2)).blocks.size(), 2u) << "two of them stay";
  open();
  EXPECT_EQ(status(first).state, TransferState::failed);
  ASSERT_EQ(status(first).failures.size(), 3u);
  EXPECT_EQ(status(first).failures[0].error.code, ErrorCode::no_capacity);
  EXPECT_EQ(status(second).state, TransferState::done);
  EXPECT_TRUE(is_in(*cache_, Tier::pinned, key(11)));
}

TEST_F(GatedTransfer, DeletedKeyFailsAllWaitingTransfers) {
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 2), .tier = Tier::disk}));
  gate_->close();
  const auto first = begin(1, 2);
  const auto second = cache_->transfer({.keys = keys(1, 2), .to = Tier::pinned}).value();
  (void)cache_->erase(key(2));
  open();
  for (const TransferId id : {first, second}) {
    const TransferStatus ended = status(id);
    EXPECT_EQ(ended.state, TransferState::failed);
    EXPECT_EQ(ended.blocks_done, 1u);
    ASSERT_EQ(ended.failures.size(), 1u);
    EXPECT_EQ(ended.failures[0].key, key(2));
    EXPECT_EQ(ended.failures[0].error.code, ErrorCode::unknown_key);
  }
}

// Once an urgent transfer waited behind everything, like the slow one it waited for.
TEST_F(GatedTransfer, UrgentTransferRaisesTheOneItWaitsFor) {
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 3), .tier = Tier::disk}));
  gate_->close();
  begin(3, 1);
  const auto first = transfer(keys(1, 1), -5);
  const auto between = transfer(keys(2, 1), 3);
  const auto urgent = transfer(keys(1, 1), 4);
  open();
  ASSERT_EQ(ended_.size(), 3u);
  EXPECT_EQ(ended_.back(), between);
  EXPECT_EQ(status(first).state, TransferState::done);
  EXPECT_EQ(status(urgent).state, TransferState::done);
  EXPECT_EQ(moved_up(), 3u);
}

TEST_F(GatedTransfer, LessUrgentTransferLowersNothing) {
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 3), .tier = Tier::disk}));
  gate_->close();
  begin(3, 1);
  const auto first = transfer(keys(1, 1), 5);
  const auto between = transfer(keys(2, 1), 3);
  const auto patient = transfer(keys(1, 1), -4);
  open();
  ASSERT_EQ(ended_.size(), 3u);
  EXPECT_EQ(ended_.back(), between);
  EXPECT_THAT(std::vector(ended_.begin(), ended_.begin() + 2),
              UnorderedElementsAre(first, patient));
}

TEST_F(GatedTransfer, RestartedCopyHasItsWaitersPriority) {
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 3), .tier = Tier::disk}));
  gate_->close();
  begin(3, 1);
  const auto first = transfer(keys(1, 1), 9);
  const auto patient = transfer(keys(1, 1), -4);
  const auto urgent = transfer(keys(1, 1), 4);
  const auto between = transfer(keys(2, 1), 3);
  EXPECT_EQ(rig_.manager->cancel_transfer(first).value().state, TransferState::cancelled);
  open();
  ASSERT_EQ(ended_.size(), 4u);
  EXPECT_EQ(ended_.front(), first);
  EXPECT_THAT(std::vector(ended_.begin() + 1, ended_.begin() + 3),
              UnorderedElementsAre(patient, urgent));
  EXPECT_EQ(ended_.back(), between);
}

// An urgent transfer that needs one block of a long one must not raise all of it.
TEST_F(GatedTransfer, RaisedPriorityEndsOnceServed) {
  use_large_blocks(5);
  gate_->close();
  begin(5, 1);
  const auto bulk = transfer(keys(1, 3));  // its third job starts after its first
  const auto between = transfer(keys(4, 1), 3);
  const auto urgent = transfer(keys(1, 1), 4);
  open();
  EXPECT_THAT(ended_, ElementsAre(urgent, between, bulk));
}

TEST_F(GatedTransfer, RemovedCacheCancelsWaitingTransfers) {
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 3), .tier = Tier::disk}));
  gate_->close();
  begin(3, 1);
  const auto first = cache_->transfer({.keys = keys(1, 2), .to = Tier::pinned}).value();
  const auto second = cache_->transfer({.keys = keys(1, 3), .to = Tier::pinned}).value();
  ASSERT_TRUE(rig_.manager->drop_cache("test", true));
  open();
  EXPECT_EQ(status(first).state, TransferState::cancelled);
  EXPECT_EQ(status(second).state, TransferState::cancelled);
}

// Once the server aborted: cancelling a part ended the transfers that waited for it, which were
// then cancelled again. A removal cancels in no fixed order, so the test uses many transfers.
TEST_F(GatedTransfer, ARemovedCacheEndsEachTransferOnce) {
  use_large_blocks(4);
  gate_->close();
  begin(4, 1);
  std::vector<TransferId> all;
  all.push_back(transfer(keys(1, 3)));  // its last job is not submitted yet
  for (int i = 0; i < 40; ++i) all.push_back(transfer(keys(3, 1)));
  ASSERT_TRUE(rig_.manager->drop_cache("large", true));
  open();
  EXPECT_THAT(ended_, UnorderedElementsAreArray(all));
}

}  // namespace
}  // namespace cairn::testing
