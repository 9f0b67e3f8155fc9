#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "blockmgr/collectives/collective_blocks.hpp"
#include "blockmgr/collectives/collective_headers.hpp"
#include "memory/host/host_runtime.hpp"

namespace cairn {
namespace {

const Error kGone{ErrorCode::peer_lost, "rank 1 has gone"};

// One of two ranks; the other makes the same calls with the same values. The n-th call fails.
class TwinCommunicator final : public Communicator {
 public:
  explicit TwinCommunicator(int failing_call) : failing_call_(failing_call) {}
  int calls() const { return calls_; }
  // The other rank asks for another reduction.
  void disagree() { agrees_ = false; }

  std::string_view name() const override { return "local"; }
  RankPlace place() const override { return {.rank = 0, .world_size = 2}; }
  Result<> all_reduce(const AllReduce& call) override {
    CAIRN_TRY(next());
    std::int64_t value = 0;
    for (std::uint64_t i = 0; i < call.elements.count; ++i) {
      std::memcpy(&value, call.source + 8 * i, 8);
      if (call.reduction == Reduction::sum) value *= 2;
      std::memcpy(call.destination + 8 * i, &value, 8);
    }
    return {};
  }
  Result<> all_gather(const AllGather& call) override {
    CAIRN_TRY(next());
    const std::uint64_t bytes = call.elements.size_bytes();
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      std::memcpy(call.destination + rank * bytes, call.source, bytes);
    }
    constexpr std::uint64_t kOtherAt = 8;  // CallHeader::other
    if (!agrees_) call.destination[bytes + kOtherAt] ^= std::byte{1};
    return {};
  }
  Result<> broadcast(const Broadcast&) override { return next(); }
  Result<> exchange(std::span<const Message>) override { return next(); }
  Result<> finalize() override { return next(); }
  void abort(const Error&) override {}

 private:
  Result<> next() {
    if (++calls_ == failing_call_) return kGone;
    return {};
  }
  const int failing_call_;
  int calls_ = 0;
  bool agrees_ = true;
};

class CollectiveValuesTest : public testing::Test {
 protected:
  CollectiveOutcome share(TwinCommunicator& communicator, Reduction reduction) {
    id_ = transfers_.open({}).value();
    transfers_.begin(id_);
    const CollectiveContext context{.communicator = communicator,
                                    .packing = packing_,
                                    .transfers = transfers_,
                                    .counters = counters_};
    return exchange_values(
        context,
        {.kind = CollectiveKind::all_reduce, .values = numbers({3, -4, 0}), .reduction = reduction},
        id_);
  }
  static Numbers numbers(const std::vector<std::int64_t>& values) {
    Numbers made;
    for (const std::int64_t value : values) made.add(value);
    return made;
  }
  std::optional<Numbers> values() const { return transfers_.status(id_).value().values; }

  const std::unique_ptr<DeviceRuntime> runtime_ = make_host_runtime({}).value();
  PinnedPool packing_{*runtime_, {.limit_bytes = 1 << 20}};
  TransferTable transfers_{{.max_open = 64, .max_kept = 64}};
  AllCollectiveCounters counters_;
  TransferId id_{};
};

TEST_F(CollectiveValuesTest, EveryFailedCallBreaksTheGroup) {
  for (int n = 1;; ++n) {
    TwinCommunicator communicator(n);
    const CollectiveOutcome outcome = share(communicator, Reduction::sum);
    if (communicator.calls() < n) {
      EXPECT_EQ(n, 3) << "one call for the headers, one for the values";
      EXPECT_EQ(outcome.state, TransferState::done);
      EXPECT_EQ(values(), numbers({6, -8, 0}));
      return;
    }
    EXPECT_EQ(outcome.state, TransferState::failed) << n;
    EXPECT_TRUE(outcome.group_broken) << n;
    EXPECT_EQ(outcome.error->code, kGone.code) << n;
    EXPECT_EQ(values(), std::nullopt) << n;
  }
}

TEST_F(CollectiveValuesTest, DifferentRequestsFailButKeepTheGroup) {
  TwinCommunicator communicator(0);
  communicator.disagree();
  const CollectiveOutcome outcome = share(communicator, Reduction::min);
  EXPECT_EQ(outcome.state, TransferState::failed);
  EXPECT_FALSE(outcome.group_broken);
  EXPECT_EQ(outcome.error->code, ErrorCode::state_conflict);
  EXPECT_NE(outcome.error->detail.find("all_reduce (min) of 3 int64 values"), std::string::npos)
      << outcome.error->detail;
  EXPECT_EQ(communicator.calls(), 1) << "no value was exchanged";
  EXPECT_EQ(values(), std::nullopt);
}

const Members kRanks = {0, 4};

TEST(CollectiveHeaders, RefusesDifferentVersionsAndNamesTheRanks) {
  std::array<CallHeader, 2> calls = {};
  for (CallHeader& call : calls) call.kind = static_cast<std::uint32_t>(CollectiveKind::broadcast);
  ASSERT_TRUE(check_calls(kRanks, calls));
  calls[1].version = 1;
  const auto checked = check_calls(kRanks, calls);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, ErrorCode::state_conflict);
  EXPECT_NE(checked.error().detail.find("rank 0 is of version 2; rank 4 is of version 1"),
            std::string::npos)
      << checked.error().detail;
}

TEST(CollectiveHeaders, DecodesKeysAndRefusesFlippedBytes) {
  const std::array<std::byte, kMaxKeyBytes> bytes = {std::byte{7}};
  std::array<KeyMessage, 2> messages;
  messages[0] = encode({.key = BlockKey(std::span(bytes).first(3))});
  messages[1] = encode({.key = BlockKey(bytes),
                        .parent = BlockKey(std::span(bytes).first(2)),
                        .holding = KeyHeader::Holding::wanted});
  const auto headers = decode(kRanks, messages);
  ASSERT_TRUE(headers);
  EXPECT_EQ(headers->front().parent, std::nullopt);
  EXPECT_EQ(headers->front().holding, KeyHeader::Holding::absent);
  EXPECT_EQ(headers->back().key, BlockKey(bytes));
  EXPECT_EQ(headers->back().parent, BlockKey(std::span(bytes).first(2)));
  EXPECT_EQ(headers->back().holding, KeyHeader::Holding::wanted);
  for (std::byte& byte : messages[1]) {
    byte ^= std::byte{0x10};
    const auto wrong = decode(kRanks, messages);
    ASSERT_FALSE(wrong);
    EXPECT_EQ(wrong.error().code, ErrorCode::checksum_mismatch);
    EXPECT_NE(wrong.error().detail.find("rank 4"), std::string::npos) << wrong.error().detail;
    byte ^= std::byte{0x10};
  }
}

}  // namespace
}  // namespace cairn
