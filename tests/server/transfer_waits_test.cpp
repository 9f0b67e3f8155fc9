#include "server/routes/transfer_waits.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "tests/blockmgr/rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/gated_disk_io.hpp"

namespace cairn {
namespace {

using testing::keys;
using testing::Rig;

constexpr std::uint32_t kLongMs = 60'000;  // no test takes so long

class TransferWaitsTest : public ::testing::Test {
 protected:
  TransferWaitsTest() {
    cache_ = rig_.cache(testing::small_cache({.device = 4, .pinned = 4, .disk = 8}));
    EXPECT_TRUE(rig_.put(*cache_, {.keys = keys(1, 4)}));
  }
  ~TransferWaitsTest() override {
    gate_->open();
    rig_.scheduler->wait_idle();
    rig_.manager.reset();
    rig_.scheduler.reset();
  }

  // The transfer runs until the gate opens.
  TransferId begin(std::uint64_t key) {
    gate_->close();
    const auto id = cache_->transfer({.keys = keys(key, 1), .to = Tier::disk}).value();
    gate_->wait_for_calls(1);
    return id;
  }
  void end() {
    gate_->open();
    rig_.scheduler->wait_idle();
  }
  Result<> wait(TransferId id) {
    return waits_->wait(id, kLongMs, [this] { ++answered_; });
  }

  fakes::FakedDisk<fakes::GatedDiskIo> gate_;
  Rig rig_{{.disk = gate_.wrap(), .workers = 1}};
  std::shared_ptr<Cache> cache_;
  std::size_t answered_ = 0;
  std::optional<TransferWaits> waits_{*rig_.manager};
};

TEST_F(TransferWaitsTest, AnswersAtOnceIfTheTransferHasEnded) {
  const TransferId id = begin(1);
  end();
  for (std::size_t n = 1; n <= TransferWaits::kMaxWaits + 1; ++n) {
    ASSERT_TRUE(wait(id)) << n;
    ASSERT_EQ(answered_, n);
  }
}

TEST_F(TransferWaitsTest, EndedTransferFreesItsTimers) {
  const TransferId first = begin(1);
  for (std::size_t n = 0; n < TransferWaits::kMaxWaits; ++n) ASSERT_TRUE(wait(first)) << n;
  EXPECT_EQ(wait(first).error().code, ErrorCode::queue_full);
  EXPECT_EQ(answered_, 0u);
  end();
  EXPECT_EQ(answered_, TransferWaits::kMaxWaits);
  const TransferId second = begin(2);
  for (std::size_t n = 0; n < TransferWaits::kMaxWaits; ++n) ASSERT_TRUE(wait(second)) << n;
  EXPECT_EQ(wait(second).error().code, ErrorCode::queue_full);
  waits_->flush();
  EXPECT_EQ(answered_, 2 * TransferWaits::kMaxWaits);
}

TEST_F(TransferWaitsTest, FlushAnswersOnlyOnce) {
  ASSERT_TRUE(wait(begin(1)));
  waits_->flush();
  EXPECT_EQ(answered_, 1u);
  end();
  EXPECT_EQ(answered_, 1u);
}

TEST_F(TransferWaitsTest, RefusesUnknownTransfers) {
  EXPECT_EQ(wait(TransferId{99}).error().code, ErrorCode::unknown_transfer);
  EXPECT_EQ(answered_, 0u);
}

TEST_F(TransferWaitsTest, MayEndBeforeItsTransfers) {
  ASSERT_TRUE(wait(begin(1)));
  waits_.reset();
  end();
}

}  // namespace
}  // namespace cairn
