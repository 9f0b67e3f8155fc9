#include <fstream>
#include <set>

#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"

// Transfers between tiers on request, and the lists of blocks and their metadata.
namespace cairn::e2e {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

class TransferTest : public ServedTest {};

struct Pair {
  std::string from;
  std::string to;
  std::string mode;
};
std::vector<Pair> all_pairs() {
  std::vector<Pair> pairs;
  for (const char* from : kTierNames) {
    for (const char* to : kTierNames) {
      for (const char* mode : {"copy", "move"}) {
        if (from != to) pairs.push_back({from, to, mode});
      }
    }
  }
  return pairs;
}
void PrintTo(const Pair& pair, std::ostream* out) {
  *out << pair.mode << " " << pair.from << " " << pair.to;
}
class TransferPairTest : public TransferTest, public testing::WithParamInterface<Pair> {};
INSTANTIATE_TEST_SUITE_P(Pairs, TransferPairTest, testing::ValuesIn(all_pairs()),
                         [](const auto& test) {
                           return test.param.mode + "_" + test.param.from + "_" + test.param.to;
                         });

TEST_P(TransferPairTest, MovesEveryByte) {
  const auto& [from, to, mode] = GetParam();
  TestCache cache(rest_, {.device = 8, .pinned = 8, .disk = 8, .layout = "first"});
  cache.store_prefix(0, 5, from);
  const json done = cache.transfer(keys(0, 5), to, mode);
  EXPECT_EQ(done.at("state"), "done");
  EXPECT_EQ(done.at("blocks_total"), 5);
  EXPECT_EQ(done.at("blocks_done"), 5);
  EXPECT_EQ(done.at("bytes"), 5 * kBlockBytes);
  EXPECT_EQ(cache.count(to, "evictable"), 5);
  EXPECT_EQ(cache.count(from, "evictable"), mode == "copy" ? 5 : 0);
  EXPECT_EQ(cache.count(from, "free"), mode == "copy" ? 3 : 8);
  for (int n = 0; n < 5; ++n) cache.expect_intact(n);
  // Clear the source, so that the new copy is read.
  if (mode == "copy") {
    EXPECT_TRUE(rest_.post(cache.path("/clear"), {{"tier", from}}).ok());
    for (int n = 0; n < 5; ++n) EXPECT_EQ(cache.expect_intact(n), to);
  }
  const std::string route = "from=\"" + from + "\",to=\"" + to + "\"";
  EXPECT_EQ(cache.metric("cairn_transfers_total", route + ",outcome=\"done\""), 5);
  EXPECT_EQ(cache.metric("cairn_transfer_bytes_total", route), 5 * kBlockBytes);
}

TEST_F(TransferTest, TransferOfExistingCopiesIsDoneAtOnce) {
  TestCache cache(rest_, {.device = 8, .disk = 8});
  cache.store_prefix(0, 3, "disk");
  const json done = cache.transfer(keys(0, 3), "disk");
  EXPECT_EQ(done.at("state"), "done");
  EXPECT_EQ(done.at("blocks_done"), 3);
}

TEST_F(TransferTest, ReturnsAtOnceAndReportsItsEnd) {
  TestCache cache(rest_, {.device = 8, .disk = 8});
  cache.store_prefix(0, 8, "device");
  const Reply started =
      rest_.post(cache.path("/transfers"), {{"keys", keys(0, 8)}, {"to", "disk"}});
  EXPECT_TRUE(started.status == 202 || started.status == 200) << testing::PrintToString(started);
  const std::string id = started.document().at("transfer");
  const Reply ended = rest_.get("/v1/transfers/" + id + "?wait_ms=60000");
  ASSERT_THAT(ended, has_status(200));
  EXPECT_EQ(ended.document().at("transfer"), id);
  EXPECT_EQ(ended.document().at("state"), "done");
  EXPECT_EQ(ended.document().at("blocks_done"), 8);
  EXPECT_EQ(rest_.get("/v1/transfers/" + id).document(), ended.document());
}

// None of these requests may hold one of the server's 4,096 waits for a minute.
TEST_F(TransferTest, EndedTransferServesAnyNumberOfWaits) {
  TestCache cache(rest_, {.device = 8, .disk = 8});
  cache.store(1);
  const std::string id = cache.transfer(keys(1, 1), "disk").at("transfer");
  for (int n = 0; n < 4'200; ++n) {
    ASSERT_THAT(rest_.get("/v1/transfers/" + id + "?wait_ms=60000"), has_status(200)) << n;
  }
}

// The requests come in one piece, so that they are faster than their transfers.
TEST(FullTransferQueue, RefusesFurtherTransfers) {
  constexpr int kTransfers = 12;
  constexpr int kBlocks = 4;
  fakes::TempDir folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << json{{"caches", json::array()},
                                {"transfers", {{"max_queued_jobs", 1}, {"workers", 1}}}};
  ServerProcess server({.flags = {"--config", config}});
  Rest rest(server.endpoint());
  json body = cache_body({.device = kTransfers * kBlocks, .disk = kTransfers * kBlocks});
  body["layout"].update({{"page_size", 1'024}, {"inner_dim", 85}});
  TestCache cache = TestCache::made_of(rest, body);
  const std::string bytes(kLayers * kOuter * 1'024 * 85 * kDtypeBytes, 'x');
  for (int n = 0; n < kTransfers * kBlocks; ++n) {
    ASSERT_THAT(rest.put_bytes(cache.key_path(n), bytes), has_status(201));
  }

  std::string requests;
  for (int n = 0; n < kTransfers; ++n) {
    const std::string text = json{{"keys", keys(n * kBlocks, kBlocks)}, {"to", "disk"}}.dump();
    std::vector<std::string> fields = {"Content-Type: application/json",
                                       "Content-Length: " + std::to_string(text.size())};
    if (n == kTransfers - 1) fields.emplace_back("Connection: close");
    requests += head_text("POST", cache.path("/transfers"), fields) + text;
  }
  RawConnection client(server.endpoint());
  ASSERT_TRUE(client.send(requests));
  const std::string answers = client.receive_to_end();
  const auto count = [&](const std::string& text) {
    int found = 0;
    for (auto at = answers.find(text); at != std::string::npos; at = answers.find(text, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(count("HTTP/1.1 "), kTransfers);
  const int refused = count("HTTP/1.1 429 ");
  EXPECT_GT(refused, 0) << answers;
  EXPECT_LT(refused, kTransfers) << answers;
  EXPECT_EQ(count("\r\nRetry-After: "), refused);
  EXPECT_EQ(count("\"code\":\"queue_full\""), refused) << answers;
  EXPECT_EQ(count("\"state\":\"failed\""), 0) << answers;
}

TEST_F(TransferTest, CancelledTransferLeavesOnlyWholeBlocks) {
  TestCache cache(rest_, {.device = 8, .disk = 8});
  cache.store_prefix(0, 8, "device");
  const Reply started =
      rest_.post(cache.path("/transfers"), {{"keys", keys(0, 8)}, {"to", "disk"}});
  const std::string id = started.document().at("transfer");
  EXPECT_TRUE(rest_.del("/v1/transfers/" + id).ok());
  const json ended = rest_.get("/v1/transfers/" + id + "?wait_ms=60000").document();
  const std::string state = ended.at("state");
  EXPECT_TRUE(state == "cancelled" || state == "done") << state;
  const int done = ended.at("blocks_done");
  EXPECT_TRUE(eventually([&] { return cache.count("disk", "allocated") == 0; }));
  EXPECT_EQ(cache.count("disk", "evictable"), done);
  EXPECT_EQ(cache.count("device", "evictable"), 8);
  EXPECT_TRUE(rest_.post(cache.path("/clear"), {{"tier", "device"}}).ok());
  int intact = 0;
  for (int n = 0; n < 8; ++n) {
    if (!cache.holds(n)) continue;
    cache.expect_intact(n);
    ++intact;
  }
  EXPECT_EQ(intact, done);
}

TEST_F(TransferTest, ReportsAnUnknownTransfer) {
  for (const char* id : {"t-ffffffff", "0", "nonsense"}) {
    EXPECT_THAT(rest_.get(std::string("/v1/transfers/") + id), is_problem(404, "unknown_transfer"));
    EXPECT_THAT(rest_.del(std::string("/v1/transfers/") + id), is_problem(404, "unknown_transfer"));
  }
}

TEST_F(TransferTest, RefusesImpossibleTransfers) {
  TestCache cache(rest_, {.device = 4, .disk = 4});
  cache.store(1);
  const auto start = [&](const json& body) { return rest_.post(cache.path("/transfers"), body); };
  EXPECT_THAT(start({{"keys", keys(1, 2)}, {"to", "disk"}}), is_problem(404, "unknown_key"));
  EXPECT_THAT(start({{"keys", keys(1, 1)}, {"to", "pinned"}}), is_problem(422, "unknown_tier"));
  EXPECT_THAT(start({{"keys", keys(1, 1)}, {"to", "tape"}}), is_problem(400));
  EXPECT_THAT(start({{"keys", keys(1, 1)}, {"to", "disk"}, {"mode", "link"}}), is_problem(400));
  EXPECT_EQ(cache.count("disk", "free"), 4);
}

TEST_F(TransferTest, FullyLeasedTierHasNoCapacity) {
  TestCache cache(rest_, {.device = 4, .pinned = 4});
  cache.store_prefix(0, 4, "device");
  const json held = cache.allocate(4, "pinned");
  EXPECT_THAT(rest_.post(cache.path("/transfers"), {{"keys", keys(0, 4)}, {"to", "pinned"}}),
              is_problem(507, "no_capacity"));
  EXPECT_TRUE(rest_.del("/v1/leases/" + held.at("lease").get<std::string>()).ok());
  EXPECT_EQ(cache.transfer(keys(0, 4), "pinned").at("state"), "done");
}

TEST_F(TransferTest, MoveKeepsALeasedSource) {
  TestCache cache(rest_, {.device = 4, .pinned = 4});
  cache.store(1);
  const json match = cache.match(keys(1, 1), 30'000);
  EXPECT_EQ(cache.transfer(keys(1, 1), "pinned", "move").at("state"), "done");
  EXPECT_EQ(cache.count("device", "committed"), 1);
  EXPECT_EQ(cache.expect_intact(1), "device");
}

TEST_F(TransferTest, MatchOnboardsItsBlocks) {
  TestCache cache(rest_, {.device = 4, .pinned = 4, .disk = 4});
  cache.store(0, "?tier=disk");
  cache.store(1, "?tier=pinned");
  cache.store(2);
  const Reply reply = rest_.post(
      cache.path("/match"),
      {{"keys", keys(0, 4)}, {"lease_ms", 30'000}, {"onboard", "device"}, {"wait_ms", 60'000}});
  ASSERT_THAT(reply, has_status(200));
  const json match = reply.document();
  EXPECT_EQ(match.at("matched"), 3);
  for (const json& one : match.at("blocks")) EXPECT_EQ(one.at("tier"), "device");
  const std::string id = match.at("transfer");
  EXPECT_EQ(rest_.get("/v1/transfers/" + id).document().at("state"), "done");
  for (int n = 0; n < 3; ++n) EXPECT_EQ(cache.expect_intact(n), "device");
  EXPECT_EQ(cache.count("device", "committed"), 3) << "the lease holds the new copies too";
  EXPECT_TRUE(rest_.del("/v1/leases/" + match.at("lease").get<std::string>()).ok());
  EXPECT_EQ(cache.count("device", "evictable"), 3);
}

TEST_F(TransferTest, MatchOnboardsInTheBackground) {
  TestCache cache(rest_, {.device = 4, .disk = 4});
  cache.store_prefix(0, 4, "disk");
  const json match = rest_
                         .post(cache.path("/match"),
                               {{"keys", keys(0, 4)}, {"lease_ms", 30'000}, {"onboard", "device"}})
                         .document();
  EXPECT_EQ(match.at("matched"), 4);
  const std::string id = match.at("transfer");
  EXPECT_EQ(rest_.get("/v1/transfers/" + id + "?wait_ms=60000").document().at("state"), "done");
  const json now = cache.match(keys(0, 4), 0);
  for (const json& one : now.at("blocks")) EXPECT_EQ(one.at("tier"), "device");
}

TEST_F(TransferTest, MatchStartsNoTransferIfNothingMoves) {
  TestCache cache(rest_, {.device = 4, .disk = 4});
  cache.store(1);
  const json match =
      rest_.post(cache.path("/match"), {{"keys", keys(1, 1)}, {"onboard", "device"}}).document();
  EXPECT_EQ(match.at("matched"), 1);
  EXPECT_TRUE(match.at("transfer").is_null());
}

TEST_F(TransferTest, EvictOffloadsOneTierAtATime) {
  TestCache cache(rest_, {.device = 4, .pinned = 4, .disk = 4});
  cache.store_prefix(0, 2, "device");
  for (const auto& [from, to] : {std::pair("device", "pinned"), std::pair("pinned", "disk")}) {
    const Reply reply = rest_.post(cache.path("/evict"), {{"keys", keys(0, 2)}, {"tier", from}});
    ASSERT_THAT(reply, has_status(200));
    EXPECT_EQ(reply.document().at("evicted"), 2);
    for (int n = 0; n < 2; ++n) EXPECT_EQ(cache.expect_intact(n), to);
    EXPECT_EQ(cache.count(from, "free"), 4);
  }
  EXPECT_TRUE(rest_.post(cache.path("/evict"), {{"keys", keys(0, 2)}, {"tier", "disk"}}).ok());
  EXPECT_FALSE(cache.holds(0));
  EXPECT_FALSE(cache.holds(1));
}

TEST_F(TransferTest, EvictsFromEveryTierByDefault) {
  TestCache cache(rest_, {.device = 4, .disk = 4});
  cache.store_prefix(0, 2, "device");
  cache.transfer(keys(0, 2), "disk");
  EXPECT_THAT(rest_.post(cache.path("/evict"), {{"keys", keys(0, 2)}}), has_status(200));
  EXPECT_FALSE(cache.holds(0));
  EXPECT_EQ(cache.count("device", "free"), 4);
  EXPECT_EQ(cache.count("disk", "free"), 4);
  EXPECT_EQ(cache.metric("cairn_evictions_total", "tier=\"device\",reason=\"request\""), 2);
}

TEST_F(TransferTest, CountsTheLeasedBlocksThatStay) {
  TestCache cache(rest_, {.device = 4});
  for (int n = 0; n < 3; ++n) cache.store(n);
  cache.match(keys(1, 1), 30'000);
  const json evicted = rest_.post(cache.path("/evict"), {{"keys", keys(0, 2)}}).document();
  EXPECT_EQ(evicted.at("evicted"), 1);
  EXPECT_EQ(evicted.at("leased"), 1);
  const json cleared = rest_.post(cache.path("/clear")).document();
  EXPECT_EQ(cleared.at("evicted"), 1);
  EXPECT_EQ(cleared.at("leased"), 1);
  cache.expect_intact(1);
  EXPECT_EQ(cache.count("device", "free"), 3);
}

TEST_F(TransferTest, ClearsOneTierOrAll) {
  TestCache cache(rest_, {.device = 4, .disk = 4});
  cache.store_prefix(0, 3, "device");
  cache.transfer(keys(0, 2), "disk");
  EXPECT_TRUE(rest_.post(cache.path("/clear"), {{"tier", "device"}}).ok());
  EXPECT_EQ(cache.expect_intact(0), "disk");
  EXPECT_FALSE(cache.holds(2)) << "nothing is offloaded";
  EXPECT_TRUE(rest_.send({"POST", cache.path("/clear"), "", ""}).ok())
      << "no body clears all tiers";
  EXPECT_FALSE(cache.holds(0));
  EXPECT_EQ(cache.count("disk", "free"), 4);
}

TEST_F(TransferTest, ListsBlocksPageByPage) {
  TestCache cache(rest_, {.device = 8, .disk = 8});
  cache.store_prefix(0, 5, "device");
  cache.store_prefix(5, 4, "disk");
  std::multiset<std::string> seen;
  std::string cursor;
  for (int pages = 0; pages < 10; ++pages) {
    const json page = rest_.get(cache.path("/blocks?limit=2" + cursor)).document();
    EXPECT_LE(page.at("blocks").size(), 2U);
    for (const json& one : page.at("blocks")) seen.insert(one.at("key").get<std::string>());
    if (page.at("next_cursor").is_null()) break;
    cursor = "&cursor=" + page.at("next_cursor").get<std::string>();
  }
  const auto all = keys(0, 9);
  EXPECT_EQ(seen, std::multiset<std::string>(all.begin(), all.end()));
}

TEST_F(TransferTest, ListsBlocksByTierAndState) {
  TestCache cache(rest_, {.device = 4, .disk = 4});
  cache.store(0);
  cache.store(1);
  cache.store(2, "?tier=disk");
  cache.match(keys(1, 1), 30'000);
  static_cast<void>(cache.allocate(1, "device"));
  const auto listed = [&](const std::string& query) {
    std::vector<std::string> names;
    const json body = rest_.get(cache.path("/blocks?" + query)).document();
    for (const json& one : body.at("blocks")) {
      names.push_back(one.at("key").is_null() ? "-" : one.at("key").get<std::string>());
    }
    return names;
  };
  EXPECT_THAT(listed("tier=disk"), ElementsAre(key(2)));
  EXPECT_THAT(listed("tier=device&state=committed"), ElementsAre(key(1)));
  EXPECT_THAT(listed("state=evictable"), UnorderedElementsAre(key(0), key(2)));
  EXPECT_THAT(listed("state=allocated"), ElementsAre("-"));
  EXPECT_THAT(rest_.get(cache.path("/blocks?state=lost")), is_problem(400));
  EXPECT_THAT(rest_.get(cache.path("/blocks?tier=pinned")), is_problem(422, "unknown_tier"));
  EXPECT_THAT(rest_.get(cache.path("/blocks?limit=0")), is_problem(400, "out_of_range"));
}

TEST_F(TransferTest, ListsTheDetailsOfABlock) {
  TestCache cache(rest_, {.device = 4});
  cache.store(1, "?parent=" + key(0));
  EXPECT_TRUE(rest_.put(cache.key_path(1) + "/metadata", {{"a", 1}}).ok());
  const json one = rest_.get(cache.path("/blocks")).document().at("blocks").at(0);
  EXPECT_EQ(one.at("tier"), "device");
  EXPECT_EQ(one.at("parent"), key(0));
  EXPECT_EQ(one.at("state"), "evictable");
  EXPECT_EQ(one.at("metadata"), json({{"a", 1}}));
  EXPECT_GT(one.at("last_use_ms").get<std::int64_t>(), 1'600'000'000'000);
  const json handle = cache.match(keys(1, 1), 0).at("blocks").at(0);
  EXPECT_EQ(one.at("slot"), handle.at("slot"));
  EXPECT_EQ(one.at("generation"), handle.at("generation"));
}

TEST_F(TransferTest, KeepsMetadataWithTheKey) {
  TestCache cache(rest_, {.device = 4, .disk = 4});
  cache.store(1);
  const std::string path = cache.key_path(1) + "/metadata";
  const json metadata = {{"model", "m"}, {"layers", {1, 2, 3}}};
  EXPECT_TRUE(rest_.put(path, metadata).ok());
  EXPECT_EQ(rest_.get(path).document(), metadata);
  cache.transfer(keys(1, 1), "disk", "move");
  EXPECT_EQ(rest_.get(path).document(), metadata);
  EXPECT_TRUE(rest_.del(cache.key_path(1)).ok());
  EXPECT_THAT(rest_.get(path), is_problem(404, "unknown_key"));
  EXPECT_THAT(rest_.put(path, metadata), is_problem(404, "unknown_key"));
}

TEST_F(TransferTest, BoundsMetadata) {
  TestCache cache(rest_, {.device = 4});
  cache.store(1);
  const std::string path = cache.key_path(1) + "/metadata";
  EXPECT_TRUE(rest_.put(path, {{"t", std::string(4096 - 8, 'x')}}).ok()) << "4 KiB fit";
  EXPECT_THAT(rest_.put(path, {{"t", std::string(4096 - 7, 'x')}}), is_problem(413));
  for (const json& wrong : {json::array(), json(1), json("text"), json()}) {
    EXPECT_THAT(rest_.put(path, wrong), is_problem(400)) << wrong;
  }
  EXPECT_EQ(rest_.get(path).document().at("t").get<std::string>().size(), 4096U - 8);
}

}  // namespace
}  // namespace cairn::e2e
