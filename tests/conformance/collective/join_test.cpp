// The ranks of a local group find each other over TCP.
#include <gmock/gmock.h>

#include <latch>
#include <optional>
#include <thread>
#include <utility>

#include "tests/conformance/collective/collective_case.hpp"
#include "transport/collective/link_socket.hpp"
#include "transport/collective/local_rendezvous.hpp"

namespace cairn::conformance {
namespace {

using testing::HasSubstr;
using Joined = Result<std::unique_ptr<Communicator>>;

class JoinTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = local_->invite(std::chrono::seconds(60), stop_);
    ASSERT_TRUE(made.has_value());
    invitation_ = std::move(*made);
    unique_id_ = invitation_->unique_id();
  }
  JoinRequest host(std::uint32_t world_size) {
    JoinRequest request{.place = {.rank = 0, .world_size = world_size}};
    request.invitation = std::move(invitation_);
    return request;
  }
  JoinRequest guest(std::uint32_t rank, std::uint32_t world_size) const {
    return {.place = {.rank = rank, .world_size = world_size}, .unique_id = unique_id_};
  }
  Joined join(
      JoinRequest request, UniqueFunction<void()> accepted = [] {}) {
    return local_->join(std::move(request), stop_, std::move(accepted));
  }
  ErrorCode refusal(JoinRequest request) {
    const Joined joined = join(std::move(request));
    return joined ? ErrorCode::internal : joined.error().code;
  }

  JoinStop stop_;
  const std::unique_ptr<Collectives> local_ = make_local_collectives("127.0.0.1");
  std::unique_ptr<Invitation> invitation_;
  std::string unique_id_;
};

TEST_F(JoinTest, RefusesWrongRanksAndGoesOn) {
  std::optional<Joined> first;
  std::optional<Joined> second;
  std::latch seated(1);
  std::jthread rank0([&] { first.emplace(join(host(3))); });
  std::jthread rank1(
      [&] { second.emplace(join(guest(1, 3), [&seated] { seated.count_down(); })); });
  seated.wait();
  EXPECT_EQ(refusal(guest(1, 3)), ErrorCode::rank_taken);
  EXPECT_EQ(refusal(guest(2, 4)), ErrorCode::state_conflict);
  EXPECT_EQ(refusal(guest(3, 3)), ErrorCode::out_of_range);
  auto forged = parse_local_unique_id(unique_id_);
  ASSERT_TRUE(forged.has_value());
  forged->secret[15] ^= std::byte{1};
  JoinRequest intruder = guest(2, 3);
  intruder.unique_id = forged->text();
  EXPECT_EQ(refusal(std::move(intruder)), ErrorCode::unauthorized);
  const Joined third = join(guest(2, 3));
  EXPECT_TRUE(third.has_value());
  rank0.join();
  rank1.join();
  EXPECT_TRUE(first->has_value());
  EXPECT_TRUE(second->has_value());
}

TEST_F(JoinTest, StrangersDoNotDelayTheGroup) {
  const auto id = parse_local_unique_id(unique_id_);
  ASSERT_TRUE(id.has_value());
  const LinkWait wait{.until = std::chrono::steady_clock::now() + std::chrono::seconds(60)};
  std::vector<LinkSocket> silent;
  for (int i = 0; i < 20; ++i) {
    auto socket = connect_to(id->address, wait);
    ASSERT_TRUE(socket.has_value());
    if (i % 2 == 0) {
      const std::string noise(static_cast<std::size_t>(i * 10), 'x');
      ASSERT_TRUE(write_all(*socket, std::as_bytes(std::span(noise)), wait).has_value());
    }
    silent.push_back(std::move(*socket));
  }
  std::optional<Joined> first;
  std::jthread rank0([&] { first.emplace(join(host(2))); });
  EXPECT_TRUE(join(guest(1, 2)).has_value());
  rank0.join();
  EXPECT_TRUE(first->has_value());
}

TEST_F(JoinTest, ASeatIsFreeAgainWhenItsRankLeaves) {
  std::optional<Joined> first;
  std::jthread rank0([&] { first.emplace(join(host(3))); });
  {
    JoinStop give_up;
    std::optional<Joined> gone;
    std::latch seated(1);
    std::jthread rank1([&] {
      gone.emplace(local_->join(guest(1, 3), give_up, [&seated] { seated.count_down(); }));
    });
    seated.wait();
    give_up.stop();
    rank1.join();
    ASSERT_FALSE(gone->has_value());
    EXPECT_EQ(gone->error().code, ErrorCode::cancelled);
  }
  // Rank 0 notices at its next check.
  std::optional<Joined> again;
  std::jthread rank1([&] {
    do {
      again.emplace(join(guest(1, 3)));
    } while (!again->has_value() && again->error().code == ErrorCode::rank_taken);
  });
  EXPECT_TRUE(join(guest(2, 3)).has_value());
  rank0.join();
  rank1.join();
  EXPECT_TRUE(first->has_value());
  EXPECT_TRUE(again->has_value());
}

TEST_F(JoinTest, TheDeadlineNamesTheMissingRanks) {
  std::optional<Joined> first;
  std::jthread rank0([&] {
    JoinRequest request = host(4);
    request.join_timeout = std::chrono::milliseconds(200);
    first.emplace(join(std::move(request)));
  });
  const Joined second = join(guest(1, 4));
  rank0.join();
  for (const Joined* joined : {std::as_const(first).operator->(), &second}) {
    ASSERT_FALSE(joined->has_value());
    EXPECT_EQ(joined->error().code, ErrorCode::deadline_exceeded);
    EXPECT_THAT(joined->error().detail, HasSubstr("rank 2, 3"));
  }
}

TEST_F(JoinTest, RefusesMalformedIds) {
  for (const std::string text : {"", "local:", "local:zz", "local:00ff", "nccl:00"}) {
    JoinRequest request = guest(1, 2);
    request.unique_id = text;
    EXPECT_EQ(refusal(std::move(request)), ErrorCode::malformed) << text;
  }
  std::string cut = unique_id_;
  while (cut.size() > 6) {
    cut.resize(cut.size() - 2);
    const auto parsed = parse_local_unique_id(cut);
    // A cut may leave a valid, shorter host.
    if (!parsed) {
      EXPECT_EQ(parsed.error().code, ErrorCode::malformed);
    }
  }
  const auto whole = parse_local_unique_id(unique_id_);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->text(), unique_id_);
  EXPECT_EQ(whole->address.host, "127.0.0.1");
}

TEST_F(JoinTest, AMissingHostIsUnavailable) {
  invitation_.reset();  // its port is closed
  EXPECT_EQ(refusal(guest(1, 2)), ErrorCode::unavailable);
}

}  // namespace
}  // namespace cairn::conformance
