#include <csignal>
#include <map>

#include "tests/e2e/support/server_group.hpp"

// Servers share the blocks that they compute, and one of them dies.
namespace cairn::e2e {
namespace {

constexpr int kLargeBlocks = 48;
constexpr std::size_t kLargeBytes = 8 * 2 * 16 * 1024 * 2;  // 512 KiB

json large_cache(std::size_t rank) {
  const json tier = {{"num_blocks", 2 * kLargeBlocks},
                     {"layout", rank % 2 == 0 ? "fully_contiguous" : "layer_separate"}};
  return {{"layout",
           {{"num_layers", 8},
            {"outer_dim", 2},
            {"page_size", 16},
            {"inner_dim", 1024},
            {"dtype_width_bytes", 2}}},
          {"tiers", {{"pinned", tier}}}};
}

std::string large_block(int n) {
  std::string bytes(kLargeBytes, '\0');
  for (std::size_t i = 0; i < bytes.size(); i += 64) {
    bytes[i] = static_cast<char>(n);
    bytes[i + 1] = static_cast<char>(i >> 6);
    bytes[i + 2] = static_cast<char>(i >> 14);
  }
  return bytes;
}

std::string large_path(int n) { return "/v1/caches/c/keys/" + key(n); }

json broadcast_of(int first, int count) {
  return {{"cache", "c"}, {"keys", keys(first, count)}, {"root", 0}};
}

// Stops rank 2 as soon as the broadcast has moved a block. Returns true if the root then still has
// blocks to send: the broadcast cannot end.
bool stop_in_the_middle(ServerGroup& group, const std::vector<std::string>& transfers) {
  const auto done_on = [&](std::size_t rank) {
    const Reply reply = group[rank].rest->get("/v1/transfers/" + transfers[rank]);
    return reply.document().at("blocks_done").get<int>();
  };
  if (!eventually([&] { return done_on(1) > 0; })) return false;
  ::kill(group[2].server->pid(), SIGSTOP);
  return done_on(0) < kLargeBlocks;
}

TEST(GroupLoss, KilledServerFailsTheBroadcastAndTheRestRegroup) {
  ServerGroup group({4}, {{"piece_bytes", kLargeBytes}, {"step_timeout_ms", 20'000}});
  group.make_cache("c", large_cache);
  std::vector<std::string> transfers;
  bool stopped = false;
  for (int attempt = 0; attempt < 20 && !stopped; ++attempt) {
    group.form("g");
    for (int n = 0; n < kLargeBlocks; ++n) {
      EXPECT_TRUE(group[0].rest->put_bytes(large_path(n), large_block(n)).ok());
    }
    transfers = group.start("g", "broadcast", broadcast_of(0, kLargeBlocks), {0, 1, 2, 3});
    stopped = stop_in_the_middle(group, transfers);
    if (stopped) break;
    ::kill(group[2].server->pid(), SIGCONT);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      group.ended(rank, transfers[rank]);
      EXPECT_TRUE(group[rank].rest->del("/v1/groups/g").ok());
      EXPECT_TRUE(group[rank].rest->post("/v1/caches/c/clear").ok());
    }
  }
  ASSERT_TRUE(stopped);
  group[2].server->kill();

  for (std::size_t rank : {0U, 1U, 3U}) {
    const json ended = group.ended(rank, transfers[rank]);
    EXPECT_EQ(ended.at("state"), "failed") << ended;
    EXPECT_EQ(ended.at("error").at("code"), "peer_lost") << ended;
    EXPECT_EQ(ended.at("blocks_done").get<int>() + static_cast<int>(ended.at("failures").size()),
              kLargeBlocks)
        << "each key arrived or is named";
    EXPECT_EQ(group.state("g", rank), "failed");
    EXPECT_THAT(group[rank].rest->post("/v1/groups/g/broadcast", broadcast_of(0, 1)),
                is_problem(503, "unavailable"));
    // Each block there is intact.
    for (int n = 0; n < kLargeBlocks; ++n) {
      const Reply reply = group[rank].rest->get(large_path(n));
      EXPECT_TRUE(reply.status == 404 || reply.body == large_block(n)) << rank << ": " << n;
    }
    EXPECT_TRUE(group[rank].rest->del("/v1/groups/g").ok());
  }

  // The remaining ranks form a new group.
  const Reply invited = group.invite("h", 3);
  ASSERT_THAT(invited, has_status(201));
  const std::vector<std::size_t> left = {0, 1, 3};
  for (std::size_t rank = 1; rank < left.size(); ++rank) {
    ASSERT_THAT(group[left[rank]].rest->post("/v1/groups",
                                             {{"name", "h"},
                                              {"rank", rank},
                                              {"world_size", 3},
                                              {"unique_id", invited.document().at("unique_id")}}),
                has_status(201));
  }
  const auto again = group.start("h", "broadcast", broadcast_of(0, kLargeBlocks), left);
  for (std::size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(group.ended(left[i], again[i]).at("state"), "done");
    for (int n = 0; n < kLargeBlocks; ++n) {
      EXPECT_TRUE(group[left[i]].rest->get(large_path(n)).body == large_block(n)) << n;
    }
  }
}

TEST(GroupLoss, SilentRankExceedsTheDeadline) {
  ServerGroup group({2}, {{"step_timeout_ms", 300}});
  group.make_cache("c", [](std::size_t) { return cache_body({.pinned = 4}); });
  group.form("g");
  const auto transfers = group.start("g", "agree", {{"cache", "c"}, {"keys", keys(0, 1)}}, {0});
  const json ended = group.ended(0, transfers[0]);
  EXPECT_EQ(ended.at("state"), "failed");
  EXPECT_EQ(ended.at("error").at("code"), "deadline_exceeded");
  EXPECT_EQ(ended.at("failures").at(0).at("key"), key(0));
}

TEST(GroupLoss, ReductionWithoutARankExceedsTheDeadline) {
  ServerGroup group({2}, {{"step_timeout_ms", 300}});
  group.form("g");
  const auto transfers = group.start("g", "all_reduce", {{"values", {1, 2}}, {"op", "sum"}}, {0});
  const json ended = group.ended(0, transfers[0]);
  EXPECT_EQ(ended.at("state"), "failed");
  EXPECT_EQ(ended.at("error").at("code"), "deadline_exceeded");
  EXPECT_FALSE(ended.contains("values"));
}

TEST(GroupLoss, LeavingRankFailsTheWaitingOperations) {
  ServerGroup group({2});
  group.make_cache("c", [](std::size_t) { return cache_body({.pinned = 4}); });
  group.form("g");
  const json body = {{"cache", "c"}, {"keys", keys(0, 1)}};
  const auto waiting = group.start("g", "agree", body, {0, 0});
  EXPECT_THAT(group[1].rest->del("/v1/groups/g"), has_status(204));
  EXPECT_EQ(group.ended(0, waiting[0]).at("error").at("code"), "peer_lost");
  EXPECT_EQ(group.ended(0, waiting[1]).at("state"), "failed") << "this operation waited behind it";
  EXPECT_THAT(group[0].rest->del("/v1/groups/g"), has_status(204));
  EXPECT_THAT(group[0].rest->get("/v1/groups/g"), is_problem(404, "unknown_group"));
  group.form("g");
}

// A frontend over four servers. Each request goes to one server, which computes the blocks that no
// server has.
TEST(GroupSharing, ComputesEachBlockOnceAndReadsItOnAllServers) {
  constexpr std::size_t kServers = 4;
  constexpr int kSessions = 6;
  constexpr int kTurns = 4;
  constexpr int kBlocksPerTurn = 3;
  ServerGroup group({kServers});
  group.make_cache("c", [](std::size_t rank) {
    return cache_body({.device = 128, .pinned = 128, .layout = rank % 2 == 0 ? "first" : "second"});
  });
  group.form("g");
  std::map<int, int> computed;
  std::size_t request = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int session = 0; session < kSessions; ++session, ++request) {
      // The session's earlier turns and this turn's new blocks: a growing prefix of its own
      // numbers.
      const int first = session * kTurns * kBlocksPerTurn;
      const int length = (turn + 1) * kBlocksPerTurn;
      Rest& rest = *group[request % kServers].rest;
      const json matched =
          rest.post("/v1/caches/c/match", {{"keys", keys(first, length)}, {"lease_ms", 0}})
              .document();
      const int known = matched.at("matched");
      EXPECT_EQ(known, turn * kBlocksPerTurn) << "the blocks that others computed are here";
      for (int n = first + known; n < first + length; ++n) {
        ++computed[n];
        const std::string parent = n > first ? "?parent=" + key(n - 1) : "";
        EXPECT_TRUE(rest.put_bytes("/v1/caches/c/keys/" + key(n) + parent, block(n)).ok());
      }
      for (const json& ended :
           group.run("g", "all_gather", {{"cache", "c"}, {"keys", keys(first, length)}})) {
        EXPECT_EQ(ended.at("state"), "done") << ended;
      }
    }
  }
  EXPECT_EQ(computed.size(), std::size_t{kSessions * kTurns * kBlocksPerTurn});
  for (const auto& [n, times] : computed) {
    EXPECT_EQ(times, 1);
    for (std::size_t rank = 0; rank < kServers; ++rank) {
      EXPECT_EQ(group[rank].rest->get("/v1/caches/c/keys/" + key(n)).body, block(n));
    }
  }
}

}  // namespace
}  // namespace cairn::e2e
