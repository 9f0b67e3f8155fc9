#include <fstream>

#include "tests/e2e/support/server_group.hpp"

// Groups over NCCL only; groups_test.cpp tests what all groups do. The fakes of libcudart and
// libnccl replace those of NVIDIA.
namespace cairn::e2e {
namespace {

constexpr auto kNccl = ServerGroup::Collective::nccl;
constexpr int kSentBlocks = 6;

json broadcast_of(int count) { return {{"cache", "c"}, {"keys", keys(0, count)}, {"root", 0}}; }

std::string key_path(int n) { return "/v1/caches/c/keys/" + key(n); }

void store(ServerGroup::Rank& rank, int count) {
  for (int n = 0; n < count; ++n) {
    EXPECT_THAT(rank.rest->put_bytes(key_path(n) + "?tier=device", block(n)), has_status(201));
  }
}

std::string of_packing(const std::string& name) {
  return "cairn_allocator_" + name + R"({allocator="group_packing",device="host"})";
}

TEST(NcclGroups, ContiguousDeviceBlocksAreNotPacked) {
  for (const std::string layout : {"fully_contiguous", "first"}) {
    ServerGroup group({2, kNccl});
    group.make_cache("c", [&](std::size_t) {
      return cache_body({.device = 16, .offload = "never", .layout = layout});
    });
    group.form("g");
    store(group[0], kSentBlocks);
    for (const json& ended : group.run("g", "broadcast", broadcast_of(kSentBlocks))) {
      EXPECT_EQ(ended.at("state"), "done") << ended;
    }
    const bool packs = layout != "fully_contiguous";
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(group[rank].rest->metric(of_packing("allocations_total")) > 0, packs) << layout;
      for (int n = 0; n < kSentBlocks; ++n) {
        EXPECT_EQ(group[rank].rest->get(key_path(n)).body, block(n)) << layout;
      }
    }
  }
}

TEST(NcclGroups, BroadcastsFromDeviceToPinnedMemory) {
  ServerGroup group({2, kNccl});
  group.make_cache("c", [&](std::size_t rank) {
    return cache_body({.device = rank == 0 ? 16U : 0U, .pinned = rank == 0 ? 0U : 16U});
  });
  group.form("g");
  store(group[0], kSentBlocks);
  for (const json& ended : group.run("g", "broadcast", broadcast_of(kSentBlocks))) {
    EXPECT_EQ(ended.at("state"), "done") << ended;
  }
  for (int n = 0; n < kSentBlocks; ++n) EXPECT_EQ(group[1].rest->get(key_path(n)).body, block(n));
}

struct Part {
  std::string operation;
  json body;
};

// Runs both ranks' parts of an operation to their ends; returns true if both were done.
bool done_on_both(ServerGroup& group, const Part& first, const Part& second) {
  std::vector<std::pair<std::size_t, std::string>> begun;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const Part& part = rank == 0 ? first : second;
    const Reply asked = group[rank].rest->post("/v1/groups/g/" + part.operation, part.body);
    if (asked.ok()) begun.emplace_back(rank, asked.document().at("transfer"));
  }
  bool all_done = begun.size() == 2;
  for (const auto& [rank, transfer] : begun) {
    all_done = group.ended(rank, transfer).at("state") == "done" && all_done;
  }
  return all_done;
}

// Returns true if every operation was done.
bool exchange_all(ServerGroup& group) {
  const Reply first = group.invite("g", 2);
  if (!first.ok() || !group.join("g", 1, first.document().at("unique_id"), 2).ok()) return false;
  const auto one = [](int peer) {
    return json{{"cache", "c"}, {"keys", keys(0, 1)}, {"peer", peer}};
  };
  if (!done_on_both(group, {"send", one(1)}, {"recv", one(0)})) return false;
  const Part broadcast{"broadcast", broadcast_of(kSentBlocks)};
  if (!done_on_both(group, broadcast, broadcast)) return false;
  const Part gather{"all_gather", {{"cache", "c"}, {"keys", keys(0, kSentBlocks)}}};
  if (!done_on_both(group, gather, gather)) return false;
  const Part numbers{"all_reduce", {{"values", {1, 2}}, {"op", "sum"}}};
  return done_on_both(group, numbers, numbers);
}

TEST(NcclGroups, FailedCallLeavesNoWrongBytesAndBlocksNoRank) {
  int failed = 0;
  for (const std::string call :
       {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclAllGather", "ncclBroadcast", "ncclSend",
        "ncclRecv", "ncclAllReduce", "ncclGroupStart", "ncclGroupEnd", "async"}) {
    bool reached = true;
    for (int n = 1; reached && n < 64; n += 1 + n / 4) {
      const std::string plan = "CAIRN_FAKE_NCCL_FAIL=" + call + ":" + std::to_string(n) + ":1";
      ServerGroup group({2, kNccl, {plan}},
                        {{"join_timeout_ms", 1'000}, {"step_timeout_ms", 2'000}});
      group.make_cache("c", [](std::size_t) { return cache_body({.device = 16}); });
      store(group[0], kSentBlocks);
      reached = !exchange_all(group);
      failed += reached ? 1 : 0;
      for (std::size_t rank = 0; rank < 2; ++rank) {
        for (int key_number = 0; key_number < kSentBlocks; ++key_number) {
          const Reply reply = group[rank].rest->get(key_path(key_number));
          const bool may_be_missing = reached && rank == 1;
          EXPECT_TRUE(reply.body == block(key_number) || (may_be_missing && reply.status == 404))
              << plan << ": rank " << rank << ", block " << key_number;
        }
        EXPECT_EQ(group[rank].rest->get("/readyz").status, 200) << "the device still works";
      }
      // A rank that has all blocks may not have heard of the failure yet.
      EXPECT_TRUE(!reached || group.state("g", 0) != "ready" || group.state("g", 1) != "ready")
          << plan;
    }
    // The server polls NCCL's state as often as time allows.
    EXPECT_TRUE(!reached || call == "async") << call;
  }
  EXPECT_GT(failed, 20);
  RecordProperty("failed", failed);
}

TEST(NcclGroups, DeviceThatBreaksUnderAGroupIsLost) {
  // An illegal address, during the group's work.
  ServerGroup group({2, kNccl, {"CAIRN_FAKE_CUDA_FAIL=cudaLaunchHostFunc:2:700"}},
                    {{"step_timeout_ms", 2'000}});
  group.form("g");
  const Part numbers{"all_reduce", {{"values", {1, 2}}, {"op", "sum"}}};
  EXPECT_FALSE(done_on_both(group, numbers, numbers));
  const Reply ready = group[0].rest->get("/readyz");
  EXPECT_EQ(ready.status, 503) << ready.body;
  EXPECT_EQ(group[1].rest->get("/readyz").status, 200);
}

TEST(NcclGroups, ReductionsReuseBuffersOfTheirKind) {
  ServerGroup group({2, kNccl});
  group.form("g");
  const auto reduce = [&](const json& values, const std::string& op) {
    const Part part{"all_reduce", {{"values", values}, {"op", op}}};
    EXPECT_TRUE(done_on_both(group, part, part));
  };
  for (int again = 0; again < 3; ++again) {
    reduce({1, 2}, "sum");
    reduce({1, 2}, "min");
    reduce({1, 2, 3}, "sum");
  }
  const auto count = [&](const std::string& name) {
    return group[1].rest->metric("cairn_allocator_" + name +
                                 R"({allocator="reductions",device="0"})");
  };
  EXPECT_EQ(count("cache_misses_total"), 3);
  EXPECT_EQ(count("cache_hits_total"), 6);
  // The device's reserved memory already includes them.
  const json device = group[1].rest->get("/v1/devices").document().at("devices").at(0);
  for (const json& one : device.at("allocators")) {
    if (one.at("allocator") == "device0") {
      EXPECT_EQ(device.at("reserved_bytes"), one.at("reserved_bytes"));
    }
  }
  // More kinds than there are buffers: the least recently used ones are freed.
  for (std::size_t length = 4; length < 24; ++length) {
    reduce(json(std::vector<int>(length, 1)), "max");
  }
  EXPECT_EQ(count("cache_misses_total"), 23);
  EXPECT_EQ(count("frees_total"), 23 - 16);
  reduce({1, 2}, "sum");
  EXPECT_EQ(count("cache_misses_total"), 24);
}

TEST(NcclGroups, RanksReduceTheirNumbers) {
  const fakes::TempDir folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"caches": [], "groups": {"collective": "nccl"}})";
  ServerProcess server({.flags = {"--runtime", "cuda", "--config", config},
                        .environment = {"LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER}});
  Rest rest(server.endpoint());
  const Reply first =
      rest.post("/v1/groups", {{"name", "a"}, {"rank", 0}, {"world_size", 2}, {"device_id", 0}});
  ASSERT_THAT(first, has_status(201));
  EXPECT_EQ(first.document().at("collective"), "nccl");
  ASSERT_THAT(rest.post("/v1/groups", {{"name", "b"},
                                       {"rank", 1},
                                       {"world_size", 2},
                                       {"device_id", 1},
                                       {"unique_id", first.document().at("unique_id")}}),
              has_status(201));
  const std::map<std::string, json> reduced = {{"sum", {1, 12}}, {"min", {-3, 5}}, {"max", {4, 7}}};
  for (const auto& [op, values] : reduced) {
    const Reply asked = rest.post("/v1/groups/a/all_reduce", {{"values", {4, 5}}, {"op", op}});
    ASSERT_TRUE(asked.ok()) << asked.body;
    const json other =
        rest.post("/v1/groups/b/all_reduce", {{"values", {-3, 7}}, {"op", op}, {"wait_ms", 30'000}})
            .document();
    const json mine =
        rest.get("/v1/transfers/" + asked.document().at("transfer").get<std::string>() +
                 "?wait_ms=30000")
            .document();
    for (const json& ended : {mine, other}) {
      EXPECT_EQ(ended.at("state"), "done") << ended;
      EXPECT_EQ(ended.at("values"), values) << op;
    }
  }
  EXPECT_EQ(server.stop(), 0) << server.output();
}

}  // namespace
}  // namespace cairn::e2e
