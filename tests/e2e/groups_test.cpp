#include <set>

#include "tests/e2e/support/server_group.hpp"

// Servers that share blocks in groups.
namespace cairn::e2e {
namespace {

using testing::HasSubstr;

json body_of(const std::vector<std::string>& hex_keys, const json& more = json::object()) {
  json body = {{"cache", "c"}, {"keys", hex_keys}};
  body.update(more);
  return body;
}

std::string key_path(int n, const std::string& query = "") {
  return "/v1/caches/c/keys/" + key(n) + query;
}

void store(ServerGroup::Rank& rank, int n, const std::string& query = "") {
  EXPECT_THAT(rank.rest->put_bytes(key_path(n, query), block(n)), has_status(201));
}

void expect_intact(ServerGroup& group, std::size_t rank, int n) {
  const Reply reply = group[rank].rest->get(key_path(n));
  EXPECT_THAT(reply, has_status(200)) << "rank " << rank << ", block " << n;
  EXPECT_EQ(reply.body, block(n)) << "rank " << rank << ", block " << n;
}

bool holds(ServerGroup& group, std::size_t rank, int n) {
  return group[rank].rest->head(key_path(n)).status == 200;
}

// Also runs on the fakes of libcudart and libnccl, if they are built.
class Groups : public testing::TestWithParam<ServerGroup::Collective> {};
INSTANTIATE_TEST_SUITE_P(Collectives, Groups, testing::ValuesIn(ServerGroup::collectives()),
                         [](const auto& test) { return std::string(to_string(test.param)); });

// Every layout, one per rank, so that blocks change their layout on the way.
json mixed_layouts(std::size_t rank) {
  constexpr const char* kLayouts[] = {"first", "fully_contiguous", "second"};
  return cache_body({.device = 16, .pinned = 16, .disk = 16, .layout = kLayouts[rank % 3]});
}

TEST_P(Groups, BroadcastReachesEveryRankInItsLayout) {
  ServerGroup group({3, GetParam()});
  group.make_cache("c", mixed_layouts);
  group.form("g");
  for (int n = 0; n < 5; ++n) store(group[1], n, "?tier=pinned");
  const auto ended = group.run("g", "broadcast", body_of(keys(0, 5), {{"root", 1}}));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ended[rank].at("state"), "done") << ended[rank];
    EXPECT_EQ(ended[rank].at("blocks_done"), 5);
    EXPECT_EQ(ended[rank].at("bytes"), 5 * kBlockBytes);
    for (int n = 0; n < 5; ++n) expect_intact(group, rank, n);
  }
}

TEST_P(Groups, SendsFromEveryTierToEveryTier) {
  ServerGroup group({2, GetParam()});
  group.make_cache("c", mixed_layouts);
  group.form("g");
  int n = 0;
  for (const std::string from : kTierNames) {
    for (const std::string to : kTierNames) {
      store(group[0], n, "?tier=" + from);
      const auto send = group.start("g", "send", body_of(keys(n, 1), {{"peer", 1}}), {0});
      const auto recv =
          group.start("g", "recv", body_of(keys(n, 1), {{"peer", 0}, {"tier", to}}), {1});
      EXPECT_EQ(group.ended(0, send[0]).at("state"), "done");
      EXPECT_EQ(group.ended(1, recv[0]).at("state"), "done");
      const Reply reply = group[1].rest->get(key_path(n));
      EXPECT_EQ(reply.body, block(n)) << from << " to " << to;
      EXPECT_EQ(reply.header("Cairn-Tier"), to);
      ++n;
    }
  }
}

TEST_P(Groups, GatherGivesEveryRankAllBlocks) {
  ServerGroup group({3, GetParam()});
  group.make_cache("c", mixed_layouts);
  group.form("g");
  for (int n = 0; n < 9; ++n) store(group[static_cast<std::size_t>(n % 3)], n);
  store(group[2], 0, "?tier=pinned");  // held twice
  const auto ended = group.run("g", "all_gather", body_of(keys(0, 9)));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ended[rank].at("state"), "done") << ended[rank];
    for (int n = 0; n < 9; ++n) expect_intact(group, rank, n);
  }
}

TEST_P(Groups, RanksAgreeOnTheLongestCommonPrefix) {
  ServerGroup group({3, GetParam()});
  group.make_cache("c", mixed_layouts);
  group.form("g");
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (int n = 0; n < 5 - static_cast<int>(rank); ++n) store(group[rank], n);
  }
  store(group[2], 4);  // behind a gap
  for (const json& agreed : group.run("g", "agree", body_of(keys(0, 5)))) {
    EXPECT_EQ(agreed.at("state"), "done");
    EXPECT_EQ(agreed.at("agreed_blocks"), 3);
  }
}

TEST_P(Groups, RanksReduceTheirNumbers) {
  ServerGroup group({3, GetParam()});
  group.form("g");
  constexpr std::int64_t kMost = (std::int64_t{1} << 53) - 1;
  const std::vector<std::vector<std::int64_t>> mine = {
      {5, -1, kMost, 0}, {7, -9, kMost, -kMost}, {6, 4, kMost, -kMost}};
  const std::map<std::string, std::vector<std::int64_t>> reduced = {
      {"sum", {18, -6, 3 * kMost, -2 * kMost}},
      {"min", {5, -9, kMost, -kMost}},
      {"max", {7, 4, kMost, 0}}};
  for (const auto& [op, values] : reduced) {
    std::vector<std::string> transfers;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      transfers.push_back(
          group.start("g", "all_reduce", {{"values", mine[rank]}, {"op", op}}, {rank})[0]);
    }
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const json ended = group.ended(rank, transfers[rank]);
      EXPECT_EQ(ended.at("state"), "done") << ended;
      EXPECT_EQ(ended.at("values"), json(values)) << op << " on rank " << rank;
      EXPECT_EQ(ended.at("bytes"), 4 * 8);
    }
  }
  EXPECT_EQ(group[0].rest->metric(
                "cairn_collective_operations_total{kind=\"all_reduce\",outcome=\"done\"}"),
            3);
  const std::string device = GetParam() == ServerGroup::Collective::nccl ? "0" : "host";
  const std::string buffers = R"({allocator="reductions",device=")" + device + R"("})";
  const auto of_buffers = [&](const std::string& name) {
    return group[2].rest->metric("cairn_allocator_" + name + buffers);
  };
  // One buffer of each kind is kept, and none is in use.
  EXPECT_EQ(of_buffers("allocated_bytes"), 0);
  EXPECT_GE(of_buffers("cached_bytes"), 3 * 4 * 8);
  EXPECT_EQ(of_buffers("reserved_bytes"), of_buffers("cached_bytes"));
  EXPECT_EQ(of_buffers("largest_free_bytes"), of_buffers("cached_bytes") / 3);
  EXPECT_EQ(of_buffers("peak_allocated_bytes"), of_buffers("cached_bytes") / 3);
  EXPECT_NEAR(of_buffers("fragmentation_ratio"), 2.0 / 3, 1e-9);
  EXPECT_EQ(of_buffers("cache_hits_total"), 0);
  group.run("g", "all_reduce", {{"values", mine[0]}, {"op", "min"}});
  EXPECT_EQ(group[2].rest->metric("cairn_allocator_cache_hits_total" + buffers), 1);
  EXPECT_EQ(group[2].rest->metric("cairn_allocator_cache_misses_total" + buffers), 3);
}

// Three ranks, every type and operation. The numbers are small, so each step is exact in each type,
// but for the average of 7, 1 and 2: 10 / 3 in the type's own precision.
TEST_P(Groups, RanksReduceNumbersOfEachType) {
  ServerGroup group({3, GetParam()});
  group.form("g");
  const std::vector<std::vector<int>> mine = {{7, 2}, {1, 4}, {2, 6}};
  const std::map<std::string, std::vector<double>> reduced = {{"sum", {10, 12}},
                                                              {"prod", {14, 48}},
                                                              {"max", {7, 6}},
                                                              {"min", {1, 2}},
                                                              {"avg", {10.0 / 3, 4}}};
  const std::map<std::string, double> thirds = {{"float16", 3.333984375},
                                                {"bfloat16", 3.328125},
                                                {"float32", 3.3333332538604736},
                                                {"float64", 10.0 / 3}};
  for (const std::string type : {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16",
                                 "float32", "float64", "bfloat16"}) {
    for (const auto& [op, values] : reduced) {
      std::vector<std::string> transfers;
      for (std::size_t rank = 0; rank < 3; ++rank) {
        transfers.push_back(group.start(
            "g", "all_reduce", {{"values", mine[rank]}, {"op", op}, {"dtype", type}}, {rank})[0]);
      }
      const bool has_fractions = thirds.contains(type);
      std::vector<double> expected = values;
      if (op == "avg") expected[0] = has_fractions ? thirds.at(type) : 3;
      for (std::size_t rank = 0; rank < 3; ++rank) {
        const json ended = group.ended(rank, transfers[rank]);
        EXPECT_EQ(ended.at("state"), "done") << type << " " << op << ": " << ended;
        const json got = ended.at("values");
        EXPECT_EQ(got.get<std::vector<double>>(), expected) << type << " " << op;
        EXPECT_EQ(got.at(0).is_number_integer(), !has_fractions) << type;
      }
    }
  }
}

TEST_P(Groups, ReductionsWrapOrBecomeNull) {
  ServerGroup group({2, GetParam()});
  group.form("g");
  const auto reduced = [&](const json& values, const std::string& op, const std::string& type) {
    const auto all =
        group.run("g", "all_reduce", {{"values", values}, {"op", op}, {"dtype", type}});
    return all[0].at("values");
  };
  EXPECT_EQ(reduced({100, -128}, "sum", "int8"), json({-56, 0}));
  EXPECT_EQ(reduced({200}, "sum", "uint8"), json({144}));
  EXPECT_EQ(reduced({-7}, "avg", "int32"), json({-7}));
  EXPECT_EQ(reduced({60'000.0}, "sum", "float16"), json({nullptr}));
  EXPECT_EQ(reduced({-0.5, 1e300}, "prod", "float64"), json({0.25, nullptr}));
  EXPECT_EQ(reduced({4'294'967'295u}, "max", "uint32"), json({4'294'967'295u}));
}

TEST_P(Groups, MismatchedReductionsFailAndTheGroupContinues) {
  ServerGroup group({2, GetParam()});
  group.make_cache("c", mixed_layouts);
  group.form("g");
  const json three = {{"values", {1, 2, 3}}, {"op", "sum"}};
  const json four = {{"values", {1, 2, 3, 4}}, {"op", "sum"}};
  const json least = {{"values", {1, 2, 3}}, {"op", "min"}};
  for (const auto& [operation, body] :
       {std::pair("all_reduce", four), std::pair("all_reduce", least),
        std::pair("all_reduce", json{{"values", {1, 2, 3}}, {"op", "sum"}, {"dtype", "uint64"}}),
        std::pair("agree", body_of(keys(0, 3)))}) {
    const auto mine = group.start("g", "all_reduce", three, {0});
    const auto other = group.start("g", operation, body, {1});
    for (const json& ended : {group.ended(0, mine[0]), group.ended(1, other[0])}) {
      EXPECT_EQ(ended.at("state"), "failed");
      EXPECT_EQ(ended.at("error").at("code"), "state_conflict") << ended;
      EXPECT_FALSE(ended.contains("values"));
    }
  }
  for (const json& ended : group.run("g", "all_reduce", three)) {
    EXPECT_EQ(ended.at("values"), json({2, 4, 6})) << ended;
  }
}

TEST_P(Groups, RefusesInvalidReductions) {
  ServerGroup group({1, GetParam()}, {{"max_values", 3}});
  group.form("g");
  Rest& rest = *group[0].rest;
  const auto refused = [&](const json& body, const std::string& code) {
    EXPECT_THAT(rest.post("/v1/groups/g/all_reduce", body), is_problem(400, code)) << body;
  };
  refused({{"values", json::array()}, {"op", "sum"}}, "out_of_range");
  refused({{"values", {1, 2, 3, 4}}, {"op", "sum"}}, "out_of_range");
  refused({{"values", {1, std::int64_t{1} << 53}}, {"op", "sum"}}, "out_of_range");
  refused({{"values", {1.5}}, {"op", "sum"}}, "wrong_type");
  refused({{"values", {"1"}}, {"op", "sum"}}, "wrong_type");
  refused({{"values", {1}}, {"op", "mean"}}, "out_of_range");
  refused({{"values", {1}}, {"op", "sum"}, {"dtype", "int16"}}, "out_of_range");
  refused({{"values", {128}}, {"op", "sum"}, {"dtype", "int8"}}, "out_of_range");
  refused({{"values", {-1}}, {"op", "sum"}, {"dtype", "uint64"}}, "out_of_range");
  refused({{"values", {65'536}}, {"op", "sum"}, {"dtype", "float16"}}, "out_of_range");
  refused({{"values", {1e39}}, {"op", "sum"}, {"dtype", "float32"}}, "out_of_range");
  refused({{"values", {true}}, {"op", "sum"}, {"dtype", "float64"}}, "wrong_type");
  refused({{"values", {0.5}}, {"op", "sum"}, {"dtype", "uint8"}}, "wrong_type");
  refused({{"values", {1}}}, "missing_field");
  refused({{"op", "sum"}}, "missing_field");
  refused({{"values", {1}}, {"op", "sum"}, {"keys", json::array()}}, "unknown_field");
  EXPECT_THAT(rest.post("/v1/groups/x/all_reduce", {{"values", {1}}, {"op", "sum"}}),
              is_problem(404, "unknown_group"));
  for (const json& ended : group.run("g", "all_reduce", {{"values", {1, 2.0, 3}}, {"op", "max"}})) {
    EXPECT_EQ(ended.at("values"), json({1, 2, 3}));
  }
}

TEST_P(Groups, ParentTravelsWithItsBlock) {
  ServerGroup group({2, GetParam()});
  group.make_cache("c", mixed_layouts);
  group.form("g");
  store(group[0], 0);
  store(group[0], 1, "?parent=" + key(0));
  group.run("g", "broadcast", body_of(keys(0, 2), {{"root", 0}}));
  bool found = false;
  const json listed = group[1].rest->get("/v1/caches/c/blocks").document();
  for (const json& one : listed.at("blocks")) {
    if (one.at("key") != key(1)) continue;
    EXPECT_EQ(one.at("parent"), key(0));
    found = true;
  }
  EXPECT_TRUE(found);
}

TEST_P(Groups, NamesEveryKeyThatDidNotArrive) {
  ServerGroup group({2, GetParam()});
  group.make_cache("c", [](std::size_t rank) {
    return cache_body({.device = rank == 0 ? 8U : 2U, .offload = "never"});
  });
  group.form("g");
  for (int n = 0; n < 3; ++n) store(group[0], n);
  const json lease = group[1]
                         .rest->post("/v1/caches/c/allocate", {{"count", 1}, {"tier", "device"}})
                         .document()
                         .at("lease");
  // No rank has the fourth block, and only one of the other three fits.
  const auto ended = group.run("g", "broadcast", body_of(keys(0, 4), {{"root", 0}}));
  EXPECT_EQ(ended[0].at("state"), "failed");
  ASSERT_EQ(ended[0].at("failures").size(), 1U) << ended[0];
  EXPECT_EQ(ended[0].at("failures").at(0).at("key"), key(3));
  EXPECT_EQ(ended[0].at("failures").at(0).at("code"), "unknown_key");
  EXPECT_EQ(ended[1].at("state"), "failed");
  EXPECT_EQ(ended[1].at("blocks_done"), 1);
  ASSERT_EQ(ended[1].at("failures").size(), 3U) << ended[1];
  expect_intact(group, 1, 0);
  for (int n = 1; n < 4; ++n) EXPECT_FALSE(holds(group, 1, n)) << n;
  EXPECT_EQ(group.state("g", 1), "ready") << "the group continues";
  EXPECT_TRUE(group[1].rest->del("/v1/leases/" + lease.get<std::string>()).ok());
}

// A batch must not evict the blocks of an earlier batch: the transfer has counted them as present.
TEST_P(Groups, LaterBatchDoesNotEvictEarlierBlocks) {
  constexpr int kKeys = 1500;  // more than a batch of 1,024
  constexpr int kRoom = 1100;
  ServerGroup group({2, GetParam()});
  group.make_cache("c", [](std::size_t rank) {
    return cache_body(
        {.pinned = static_cast<std::uint32_t>(rank == 0 ? kKeys : kRoom), .offload = "never"});
  });
  group.form("g");
  const json parents(std::vector<json>(kKeys, nullptr));
  ASSERT_THAT(group[0].rest->post_bytes(
                  "/v1/caches/c/write",
                  write_body({{"keys", keys(0, kKeys)}, {"parents", parents}}, blocks(0, kKeys))),
              has_status(200));
  store(group[1], 7);  // the least recently used there
  const auto ended = group.run("g", "broadcast", body_of(keys(0, kKeys), {{"root", 0}}));
  EXPECT_EQ(ended[0].at("state"), "done");
  EXPECT_EQ(ended[1].at("state"), "failed");
  const int came = ended[1].at("blocks_done");
  EXPECT_GE(came, 1024);
  EXPECT_LE(came, kRoom);
  ASSERT_EQ(ended[1].at("failures").size(), static_cast<std::size_t>(kKeys - came));
  std::set<std::string> missing;
  for (const json& failure : ended[1].at("failures")) {
    EXPECT_EQ(failure.at("code"), "no_capacity");
    missing.insert(failure.at("key"));
  }
  for (int n = 0; n < kKeys; ++n) EXPECT_EQ(holds(group, 1, n), !missing.contains(key(n))) << n;
  const json tier = group[1].rest->get("/v1/caches/c").document().at("tiers").at("pinned");
  EXPECT_EQ(tier.at("blocks").at("evictable"), came) << "nothing is still held";
  expect_intact(group, 1, 7);
}

TEST_P(Groups, MetricsCountSentAndReceivedBlocks) {
  ServerGroup group({2, GetParam()});
  group.make_cache("c", mixed_layouts);
  group.form("g");
  for (int n = 0; n < 3; ++n) store(group[0], n);
  group.run("g", "broadcast", body_of(keys(0, 3), {{"root", 0}}));
  group.run("g", "broadcast", body_of(keys(8, 1), {{"root", 0}}));  // nobody has it
  const auto count_of = [&](std::size_t rank, const std::string& series) {
    const std::string text = group[rank].rest->get("/metrics").body;
    const std::size_t at = text.find("\n" + series + " ");
    return at == std::string::npos ? -1 : std::stoll(text.substr(at + series.size() + 2));
  };
  const std::string of_broadcasts = R"({kind="broadcast",)";
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::string moved = of_broadcasts + R"(direction=")" + (rank == 0 ? "sent" : "received");
    const std::string not_moved =
        of_broadcasts + R"(direction=")" + (rank == 0 ? "received" : "sent");
    EXPECT_EQ(count_of(rank, "cairn_collective_blocks_total" + moved + "\"}"), 3);
    EXPECT_EQ(count_of(rank, "cairn_collective_blocks_total" + not_moved + "\"}"), 0);
    EXPECT_EQ(count_of(rank, "cairn_collective_bytes_total" + moved + "\"}"),
              static_cast<long long>(3 * kBlockBytes));
    EXPECT_EQ(
        count_of(rank, "cairn_collective_operations_total" + of_broadcasts + R"(outcome="done"})"),
        1);
    EXPECT_EQ(count_of(rank, "cairn_collective_operations_total" + of_broadcasts +
                                 R"(outcome="failed"})"),
              1);
    EXPECT_EQ(count_of(rank, R"(cairn_collective_duration_seconds_count{kind="broadcast"})"), 2);
    EXPECT_EQ(count_of(rank, R"(cairn_groups{state="ready"})"), 1);
    EXPECT_EQ(count_of(rank, R"(cairn_group_ranks{state="ready"})"), 2);
    EXPECT_EQ(count_of(rank, "cairn_group_failures_total"), 0);
  }
  EXPECT_THAT(group[1].rest->del("/v1/groups/g"), has_status(204));
  // The remaining rank's group fails at its next operation.
  const auto agree = group.start("g", "agree", body_of(keys(0, 1)), {0});
  EXPECT_EQ(group.ended(0, agree[0]).at("state"), "failed");
  EXPECT_EQ(count_of(0, "cairn_group_failures_total"), 1);
  EXPECT_EQ(count_of(1, "cairn_group_failures_total"), 0) << "this rank left";
}

TEST_P(Groups, BroadcastSkipsBlocksThatARankHas) {
  ServerGroup group({2, GetParam()});
  group.make_cache("c", mixed_layouts);
  group.form("g");
  for (std::size_t rank = 0; rank < 2; ++rank) store(group[rank], 0);
  const auto ended = group.run("g", "broadcast", body_of(keys(0, 1), {{"root", 0}}));
  EXPECT_EQ(ended[1].at("state"), "done");
  EXPECT_EQ(ended[1].at("blocks_done"), 1);
  EXPECT_EQ(ended[1].at("bytes"), 0) << "nothing had to move";
}

TEST(LocalGroups, RefusesWrongRanks) {
  ServerGroup group({3});
  const Reply invited = group.invite("g", 3);
  ASSERT_THAT(invited, has_status(201));
  const std::string unique_id = invited.document().at("unique_id");
  EXPECT_THAT(group.invite("g", 3), is_problem(409, "group_exists"));
  ASSERT_THAT(group.join("g", 1, unique_id, 3), has_status(201));
  const auto as_rank = [&](std::size_t rank, std::size_t world_size, const std::string& id) {
    return group[2].rest->post("/v1/groups", {{"name", "g"},
                                              {"rank", rank},
                                              {"world_size", world_size},
                                              {"device_id", 0},
                                              {"unique_id", id}});
  };
  EXPECT_THAT(as_rank(1, 3, unique_id), is_problem(409, "rank_taken"));
  EXPECT_THAT(as_rank(2, 4, unique_id), is_problem(409, "state_conflict"));
  EXPECT_THAT(as_rank(3, 3, unique_id), is_problem(400, "out_of_range"));
  EXPECT_THAT(as_rank(2, 3, "local:00"), is_problem(400, "malformed"));
  EXPECT_THAT(as_rank(2, 3, "other"), is_problem(400, "malformed"));
  EXPECT_THAT(as_rank(2, 3, ""), is_problem(400, "missing_field"));
  std::string forged = unique_id;
  forged[10] = forged[10] == '0' ? '1' : '0';
  EXPECT_THAT(as_rank(2, 3, forged), is_problem(401, "unauthorized"));
  EXPECT_THAT(group[2].rest->get("/v1/groups/g"), is_problem(404, "unknown_group"));
  // No refusal harmed the group.
  EXPECT_THAT(as_rank(2, 3, unique_id), has_status(201));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(eventually([&] { return group.state("g", rank) == "ready"; }));
  }
  EXPECT_EQ(group[0].rest->get("/v1/groups").document().at("groups").size(), 1U);
}

TEST_P(Groups, MissingRankFailsTheGroup) {
  ServerGroup group({2, GetParam()}, {{"join_timeout_ms", 3'000}});
  const Reply invited = group.invite("g", 3);
  ASSERT_THAT(invited, has_status(201));
  ASSERT_THAT(group.join("g", 1, invited.document().at("unique_id"), 3), has_status(201));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(eventually([&] { return group.state("g", rank) == "failed"; }));
    const json error = group[rank].rest->get("/v1/groups/g").document().at("error");
    // NCCL's ranks connect before all have joined: one may hear that the other gave up.
    const bool heard =
        GetParam() == ServerGroup::Collective::nccl && error.at("code") == "peer_lost";
    EXPECT_TRUE(heard || error.at("code") == "deadline_exceeded") << error;
    EXPECT_THAT(group[rank].rest->del("/v1/groups/g"), has_status(204));
  }
  group.form("g");
}

TEST_P(Groups, MismatchedCallsFailAndTheGroupContinues) {
  ServerGroup group({2, GetParam()}, {{"step_timeout_ms", 20'000}});
  group.make_cache("c", mixed_layouts);
  group.form("g");
  store(group[0], 0);
  const auto gather = group.start("g", "all_gather", body_of(keys(0, 1)), {0});
  const auto agree = group.start("g", "agree", body_of(keys(0, 1)), {1});
  const auto roots0 = group.start("g", "broadcast", body_of(keys(0, 1), {{"root", 0}}), {0});
  const auto roots1 = group.start("g", "broadcast", body_of(keys(0, 1), {{"root", 1}}), {1});
  const auto keys0 = group.start("g", "broadcast", body_of(keys(0, 2), {{"root", 0}}), {0});
  const auto keys1 = group.start("g", "broadcast", body_of(keys(1, 2), {{"root", 0}}), {1});
  for (const auto& [rank, transfer] :
       {std::pair(0U, gather[0]), std::pair(1U, agree[0]), std::pair(0U, roots0[0]),
        std::pair(1U, roots1[0]), std::pair(0U, keys0[0]), std::pair(1U, keys1[0])}) {
    const json ended = group.ended(rank, transfer);
    EXPECT_EQ(ended.at("state"), "failed");
    EXPECT_EQ(ended.at("error").at("code"), "state_conflict") << ended;
  }
  // All ranks noticed the mismatch, so the group continues.
  for (const json& ended : group.run("g", "broadcast", body_of(keys(0, 1), {{"root", 0}}))) {
    EXPECT_EQ(ended.at("state"), "done") << ended;
  }
}

TEST_P(Groups, TheQueueIsBounded) {
  ServerGroup group({2, GetParam()}, {{"max_queued_operations", 2}});
  group.make_cache("c", mixed_layouts);
  const Reply invited = group.invite("g", 2);
  ASSERT_THAT(invited, has_status(201));
  // The other rank has not joined yet, so both operations wait.
  const auto waiting = group.start("g", "agree", body_of(keys(0, 1)), {0, 0});
  EXPECT_THAT(group[0].rest->post("/v1/groups/g/agree", body_of(keys(0, 1))),
              is_problem(429, "queue_full"));
  const Reply cancelled = group[0].rest->del("/v1/transfers/" + waiting[1]);
  EXPECT_EQ(cancelled.document().at("state"), "cancelled");
  ASSERT_THAT(group.join("g", 1, invited.document().at("unique_id"), 2), has_status(201));
  const auto agree = group.start("g", "agree", body_of(keys(0, 1)), {1});
  EXPECT_EQ(group.ended(0, waiting[0]).at("state"), "done") << "asked for before all had joined";
  EXPECT_EQ(group.ended(1, agree[0]).at("state"), "done");
}

TEST_P(Groups, RefusesImpossibleRequests) {
  ServerGroup group({1, GetParam()}, {{"max_groups", 1}});
  group.make_cache("c", mixed_layouts);
  group.form("g");
  Rest& rest = *group[0].rest;
  EXPECT_THAT(group.invite("h", 1), is_problem(429, "too_many"));
  EXPECT_THAT(rest.post("/v1/groups/x/agree", body_of(keys(0, 1))),
              is_problem(404, "unknown_group"));
  EXPECT_THAT(rest.post("/v1/groups/g/broadcast", body_of(keys(0, 1), {{"root", 1}})),
              is_problem(400, "out_of_range"));
  EXPECT_THAT(rest.post("/v1/groups/g/send", body_of(keys(0, 1), {{"peer", 0}})),
              is_problem(400, "out_of_range"));
  EXPECT_THAT(rest.post("/v1/groups/g/send", body_of(keys(0, 1))),
              is_problem(400, "missing_field"));
  EXPECT_THAT(rest.post("/v1/groups/g/agree", {{"cache", "none"}, {"keys", keys(0, 1)}}),
              is_problem(404, "unknown_cache"));
  EXPECT_THAT(rest.post("/v1/groups", {{"name", "g/h"}, {"rank", 0}, {"world_size", 1}}),
              is_problem(400, "malformed"));
  EXPECT_THAT(
      rest.post("/v1/groups", {{"name", "h"}, {"rank", 0}, {"world_size", 1}, {"device_id", 9}}),
      is_problem(422, "impossible"));
  EXPECT_THAT(rest.del("/v1/groups/x"), is_problem(404, "unknown_group"));
  for (const json& ended : group.run("g", "agree", body_of(keys(0, 1)))) {
    EXPECT_EQ(ended.at("agreed_blocks"), 0) << "a group of one";
  }
}

}  // namespace
}  // namespace cairn::e2e
