#include "blockmgr/collectives/groups.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <latch>

#include "blockmgr/cache/awaited.hpp"
#include "memory/host/host_runtime.hpp"
#include "tests/fakes/manual_clock.hpp"

namespace cairn {
namespace {

// Local groups whose first invitation waits at a gate.
class GatedCollectives final : public Collectives {
 public:
  std::string_view name() const override { return "local"; }
  Result<std::unique_ptr<Invitation>> invite(std::chrono::milliseconds timeout,
                                             const JoinStop& stop) override {
    if (first_.exchange(false)) {
      reached.count_down();
      gate.wait();
    }
    return local_->invite(timeout, stop);
  }
  Result<std::unique_ptr<Communicator>> join(JoinRequest request, const JoinStop& stop,
                                             UniqueFunction<void()> accepted) override {
    return local_->join(std::move(request), stop, std::move(accepted));
  }

  std::latch reached{1};
  std::latch gate{1};

 private:
  std::atomic<bool> first_ = true;
  const std::unique_ptr<Collectives> local_ = make_local_collectives("127.0.0.1");
};

class GroupsTest : public ::testing::Test {
 protected:
  static GroupJoin alone(const std::string& name) {
    return {.name = name, .place = {.rank = 0, .world_size = 1}};
  }

  fakes::ManualClock clock_;
  Logger log_{clock_, STDERR_FILENO, LogLevel::error};
  const std::unique_ptr<DeviceRuntime> runtime_ = std::move(make_host_runtime({}).value());
  DeviceMemory device_memory_{*runtime_};
  TransferTable transfers_{{.max_open = 16, .max_kept = 16}};
  GatedCollectives* collectives_ = new GatedCollectives;  // owned by groups_
  Groups groups_{{.runtime = *runtime_,
                  .device_memory = device_memory_,
                  .transfers = transfers_,
                  .log = log_,
                  .clock = clock_,
                  .lease_ms = 1'000},
                 {},
                 std::unique_ptr<Collectives>(collectives_)};
};

TEST_F(GroupsTest, SlowJoinDoesNotBlockOtherGroups) {
  Awaited<GroupInfo> slow;
  groups_.join(alone("slow"), slow.done());
  collectives_->reached.wait();
  Awaited<GroupInfo> quick;
  groups_.join(alone("quick"), quick.done());
  EXPECT_TRUE(quick.wait().has_value());
  EXPECT_EQ(groups_.list().size(), 2U);
  const auto found = groups_.find("slow");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->state, GroupState::joining);
  EXPECT_TRUE(groups_.leave("quick").has_value());
  Awaited<GroupInfo> twice;
  groups_.join(alone("slow"), twice.done());
  const auto refused = twice.wait();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::group_exists);
  collectives_->gate.count_down();
  const auto joined = slow.wait();
  ASSERT_TRUE(joined.has_value());
  EXPECT_FALSE(joined->unique_id.empty());
}

}  // namespace
}  // namespace cairn
