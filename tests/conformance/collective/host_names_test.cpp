// Host names, looked up by a resolver that may not answer.
#include "transport/collective/host_names.hpp"

#include <gmock/gmock.h>

#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "transport/collective/communicator.hpp"
#include "transport/collective/local_rendezvous.hpp"

namespace cairn::conformance {
namespace {

using std::chrono::steady_clock;

LinkWait patient(int stop_fd = -1) {
  return {.until = steady_clock::now() + std::chrono::seconds(60), .stop_fd = stop_fd};
}

// The resolver answers "slow" once opened, fails for "lost", and answers other names at once.
class HostNamesTest : public testing::Test {
 protected:
  ~HostNamesTest() override {
    if (!opened_) gate_->count_down();
  }
  void open() {
    opened_ = true;
    gate_->count_down();
  }

  const std::shared_ptr<std::latch> gate_ = std::make_shared<std::latch>(1);
  bool opened_ = false;
  const HostNames names_{[gate = gate_](const std::string& host) -> Result<std::string> {
    if (host == "slow") gate->wait();
    if (host == "lost") return Error{ErrorCode::unavailable, "host lost: nobody knows it"};
    return std::string("127.0.0.1");
  }};
};

TEST_F(HostNamesTest, ANumberNeedsNoResolver) {
  const HostNames names([](const std::string& host) -> Result<std::string> {
    return Error{ErrorCode::internal, host};
  });
  for (const std::string number : {"127.0.0.1", "10.1.2.3", "::1"}) {
    const auto found = names.find(number, patient());
    ASSERT_TRUE(found.has_value()) << found.error().detail;
    EXPECT_EQ(*found, number);
  }
}

TEST_F(HostNamesTest, ReturnsTheResolversAnswer) {
  const auto found = names_.find("quick", patient());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(*found, "127.0.0.1");
  const auto lost = names_.find("lost", patient());
  ASSERT_FALSE(lost.has_value());
  EXPECT_EQ(lost.error().code, ErrorCode::unavailable);
  EXPECT_EQ(lost.error().detail, "host lost: nobody knows it");
}

TEST_F(HostNamesTest, LookupEndsAtTheDeadline) {
  const auto found = names_.find("slow", {.until = steady_clock::now(), .stop_fd = -1});
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::deadline_exceeded);
}

TEST_F(HostNamesTest, StopEndsTheLookup) {
  JoinStop stop;
  stop.stop();
  const auto found = names_.find("slow", patient(stop.fd()));
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::cancelled);
}

TEST_F(HostNamesTest, ASlowLookupDelaysNoOther) {
  Result<std::string> slow = Error{ErrorCode::internal, "not yet"};
  std::jthread first([&] { slow = names_.find("slow", patient()); });
  EXPECT_TRUE(names_.find("quick", patient()).has_value());
  open();
  first.join();
  EXPECT_TRUE(slow.has_value());
}

TEST_F(HostNamesTest, LimitsConcurrentLookups) {
  for (std::size_t i = 0; i < HostNames::kMaxLookups; ++i) {
    const auto left = names_.find("slow", {.until = steady_clock::now(), .stop_fd = -1});
    ASSERT_FALSE(left.has_value());
    ASSERT_EQ(left.error().code, ErrorCode::deadline_exceeded) << i;
  }
  const auto found = names_.find("quick", patient());
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::unavailable);
}

TEST_F(HostNamesTest, FormsAGroupByName) {
  const auto local = make_local_collectives("quick", names_);
  JoinStop stop;
  auto invitation = local->invite(std::chrono::seconds(60), stop);
  ASSERT_TRUE(invitation.has_value()) << invitation.error().detail;
  const auto id = parse_local_unique_id((*invitation)->unique_id());
  ASSERT_TRUE(id.has_value());
  EXPECT_EQ(id->address.host, "quick") << "each rank looks it up itself";
  const std::string unique_id = (*invitation)->unique_id();
  bool joined = false;
  std::jthread guest([&] {
    joined =
        local->join({.place = {.rank = 1, .world_size = 2}, .unique_id = unique_id}, stop, [] {})
            .has_value();
  });
  JoinRequest host{.place = {.rank = 0, .world_size = 2}};
  host.invitation = std::move(*invitation);
  EXPECT_TRUE(local->join(std::move(host), stop, [] {}).has_value());
  guest.join();
  EXPECT_TRUE(joined);
}

TEST_F(HostNamesTest, StopEndsAnInvitationThatWaitsForAName) {
  const auto local = make_local_collectives("slow", names_);
  JoinStop stop;
  stop.stop();
  const auto invitation = local->invite(std::chrono::seconds(60), stop);
  ASSERT_FALSE(invitation.has_value());
  EXPECT_EQ(invitation.error().code, ErrorCode::cancelled);
}

}  // namespace
}  // namespace cairn::conformance
