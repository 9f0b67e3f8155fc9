#include "tests/e2e/support/kv_groups.hpp"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <tuple>

#include "tests/e2e/support/mapped_slots.hpp"
#include "tests/e2e/support/served_test.hpp"

// Caches of several KV groups over HTTP.
namespace cairn::e2e {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json body(const json& tiers = {{"pinned", {{"size_bytes", 1 << 20}}}}) {
  return {{"block_tokens", kBlockTokens},
          {"kv_groups", {full_group(), window_group(), state_group()}},
          {"tiers", tiers}};
}

class KvGroupsTest : public ServedTest {
 protected:
  KvGroupsTest() : KvGroupsTest(body()) {}
  explicit KvGroupsTest(const json& made_of) : cache_(TestCache::made_of(rest_, made_of)) {}

  std::string key_path(int n, const std::string& group) {
    return cache_.key_path(n, "?kv_group=" + group);
  }
  void put(int n, const std::string& group) {
    std::string target = key_path(n, group);
    if (n > 1) target += "&parent=" + key(n - 1);
    const Reply reply = rest_.put_bytes(target, data_of(n, group));
    ASSERT_EQ(reply.status, 201u) << reply.body;
    EXPECT_EQ(reply.document().at("kv_group"), group);
  }
  // Stores keys 1 to 6 of the full group, and the window and the state that end at key 6.
  void store_prompt() {
    for (int n = 1; n <= 6; ++n) put(n, "full");
    for (int n = 5; n <= 6; ++n) put(n, "swa");
    put(6, "state");
  }
  json match(const json& asked) {
    const Reply reply = rest_.post(cache_.path("/match"), asked);
    EXPECT_EQ(reply.status, 200u) << reply.body;
    return reply.document();
  }

  TestCache cache_;
};

TEST_F(KvGroupsTest, AMatchListsWhatEachGroupNeeds) {
  store_prompt();
  json found = match({{"keys", keys(1, 8)}});
  EXPECT_EQ(found.at("matched"), 6);
  EXPECT_EQ(found.at("full_matched"), 6);
  EXPECT_THAT(listed(found), ElementsAre("full1", "full2", "full3", "full4", "full5", "full6",
                                         "swa5", "swa6", "state6"));
  EXPECT_EQ(cache_.count("pinned", "committed"), 9);
  EXPECT_TRUE(rest_.del("/v1/leases/" + found.at("lease").get<std::string>()).ok());
  EXPECT_EQ(cache_.count("pinned", "committed"), 0);

  found = match({{"keys", keys(1, 8)}, {"have", 4}, {"lease_ms", 0}});
  EXPECT_EQ(found.at("matched"), 6);
  EXPECT_THAT(listed(found), ElementsAre("full5", "full6", "swa5", "swa6", "state6"));
  EXPECT_EQ(found.at("lease"), nullptr);

  // No state ends at key 5, so nothing of the prompt can be used.
  found = match({{"keys", keys(1, 5)}});
  EXPECT_EQ(found.at("matched"), 0);
  EXPECT_EQ(found.at("full_matched"), 5);
  EXPECT_THAT(found.at("blocks"), IsEmpty());
}

TEST_F(KvGroupsTest, AllocatedBlocksOfSeveralGroupsAreCommittedTogether) {
  const Reply allocated =
      rest_.post(cache_.path("/allocate"),
                 {{"counts", {{"full", 2}, {"swa", 2}, {"state", 1}}}, {"tier", "pinned"}});
  ASSERT_EQ(allocated.status, 200u) << allocated.body;
  const json answer = allocated.document();
  const std::string lease = answer.at("lease");
  json blocks = json::array();
  const std::vector<int> names = {1, 2, 1, 2, 2};
  for (std::size_t i = 0; i < names.size(); ++i) {
    json block = answer.at("blocks").at(i);
    const std::string group = block.at("kv_group");
    EXPECT_EQ(group, i < 2 ? "full" : i < 4 ? "swa" : "state");
    const Reply written = rest_.put_bytes(cache_.data_path(block, lease, "&kv_group=" + group),
                                          data_of(names[i], group));
    EXPECT_EQ(written.status, 204u) << written.body;
    block["key"] = key(names[i]);
    if (names[i] > 1) block["parent"] = key(names[i] - 1);
    blocks.push_back(block);
  }
  const Reply committed =
      rest_.post(cache_.path("/commit"), {{"lease", lease}, {"blocks", blocks}, {"release", true}});
  ASSERT_EQ(committed.status, 200u) << committed.body;
  const json found = match({{"keys", keys(1, 2)}});
  EXPECT_EQ(found.at("matched"), 2);
  for (const json& block : found.at("blocks")) {
    const int n = block.at("key") == key(1) ? 1 : 2;
    const std::string group = block.at("kv_group");
    EXPECT_EQ(rest_.get(key_path(n, group)).body, data_of(n, group));
  }
  // Part of the lease is given up.
  json last = found.at("blocks").back();
  const Reply released =
      rest_.post("/v1/leases/" + found.at("lease").get<std::string>() + "/release",
                 {{"blocks", json::array({last})}});
  EXPECT_EQ(released.document().at("released"), 1);
}

TEST_F(KvGroupsTest, PackedAnswersHaveTheNumberOfTheGroup) {
  store_prompt();
  std::string packed;
  for (int n = 1; n <= 8; ++n) {
    packed += from_hex(key(n));
  }
  const Reply reply = rest_.send({.method = "POST",
                                  .target = cache_.path("/match?lease_ms=0&have=5&key_bytes=" +
                                                        std::to_string(packed.size() / 8)),
                                  .body = packed,
                                  .content_type = "application/octet-stream",
                                  .headers = {{"Accept", "application/octet-stream"}}});
  ASSERT_EQ(reply.status, 200u) << reply.body;
  EXPECT_EQ(reply.header("Cairn-Matched"), "6");
  EXPECT_EQ(reply.header("Cairn-Full-Matched"), "6");
  std::uint32_t count = 0;
  std::memcpy(&count, reply.body.data(), sizeof count);
  ASSERT_EQ(count, 4u);
  ASSERT_EQ(reply.body.size(), 32 + 4 * 16u);
  std::vector<int> groups;
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(reply.body[32 + 16 * i], 1) << "pinned";
    groups.push_back(reply.body[32 + 16 * i + 1]);
    EXPECT_EQ(reply.body[32 + 16 * i + 2], 0);
  }
  EXPECT_THAT(groups, ElementsAre(0, 1, 1, 2));
}

TEST_F(KvGroupsTest, BulkReadsAndWritesTakeOneGroup) {
  std::string blocks;
  for (int n = 1; n <= 3; ++n) blocks += data_of(n, "swa");
  const std::string header = json{{"keys", keys(1, 3)}, {"kv_group", "swa"}}.dump();
  const auto length = static_cast<std::uint32_t>(header.size());
  std::string upload(sizeof length, '\0');
  std::memcpy(upload.data(), &length, sizeof length);
  const Reply written = rest_.post_bytes(cache_.path("/write"), upload + header + blocks);
  ASSERT_EQ(written.status, 200u) << written.body;
  const Reply read = rest_.post(cache_.path("/read"), {{"keys", keys(1, 4)}, {"kv_group", "swa"}});
  EXPECT_EQ(read.header("Cairn-Matched"), "3");
  EXPECT_EQ(read.body, blocks);
  EXPECT_EQ(rest_.post(cache_.path("/read"), {{"keys", keys(1, 4)}, {"kv_group", "full"}})
                .header("Cairn-Matched"),
            "0");
}

TEST_F(KvGroupsTest, WithoutAGroupAKeyIsDroppedFromAll) {
  store_prompt();
  EXPECT_EQ(rest_.post(cache_.path("/evict"), {{"keys", keys(6, 1)}, {"kv_group", "swa"}})
                .document()
                .at("evicted"),
            1);
  EXPECT_EQ(rest_.get(key_path(6, "swa")).status, 404u);
  EXPECT_EQ(rest_.get(key_path(6, "state")).status, 200u);
  EXPECT_EQ(rest_.del(cache_.key_path(6)).status, 204u);
  EXPECT_EQ(rest_.get(key_path(6, "state")).status, 404u);
  EXPECT_EQ(rest_.get(key_path(6, "full")).status, 404u);
  EXPECT_THAT(rest_.del(cache_.key_path(6)), is_problem(404, "unknown_key"));
  EXPECT_EQ(rest_.del(key_path(5, "full")).status, 204u);
}

class KvGroupTiersTest : public KvGroupsTest {
 protected:
  KvGroupTiersTest()
      : KvGroupsTest(body({{"device", {{"size_bytes", 1 << 20}}},
                           {"pinned", {{"size_bytes", 1 << 20}}},
                           {"disk", {{"size_bytes", 1 << 20}}}})) {}
};

TEST_F(KvGroupTiersTest, TransfersMoveAllGroupsOfAKeyAndAMatchBringsThemUp) {
  store_prompt();
  const json moved = cache_.transfer({key(5), key(6)}, "disk", "move");
  EXPECT_EQ(moved.at("state"), "done");
  EXPECT_EQ(moved.at("blocks_done"), 5);
  const json found = match({{"keys", keys(1, 6)}, {"onboard", "device"}, {"wait_ms", 10'000}});
  EXPECT_EQ(found.at("matched"), 6);
  for (const json& block : found.at("blocks")) EXPECT_EQ(block.at("tier"), "device");
  for (int n = 5; n <= 6; ++n) {
    EXPECT_EQ(rest_.get(key_path(n, "full")).body, data_of(n, "full"));
    EXPECT_EQ(rest_.get(key_path(n, "swa")).body, data_of(n, "swa"));
  }
  EXPECT_EQ(rest_.get(key_path(6, "state")).body, data_of(6, "state"));
}

TEST_F(KvGroupsTest, ListingsStatusAndMetricsNameTheGroups) {
  store_prompt();
  const json status = rest_.get(cache_.path()).document();
  EXPECT_EQ(status.at("block_tokens"), kBlockTokens);
  EXPECT_EQ(status.at("kv_groups").at(1).at("window_tokens"), 2 * kBlockTokens + 1);
  const json& groups = status.at("tiers").at("pinned").at("kv_groups");
  EXPECT_EQ(groups.at("full").at("blocks"), 6);
  EXPECT_EQ(groups.at("swa").at("bytes"), 2 * bytes_of_group("swa"));
  EXPECT_EQ(groups.at("state").at("block_bytes"), bytes_of_group("state"));
  EXPECT_EQ(cache_.metric("cairn_kv_group_bytes", R"(tier="pinned",kv_group="swa")"),
            2.0 * static_cast<double>(bytes_of_group("swa")));
  const json list = rest_.get(cache_.path("/blocks?limit=100")).document().at("blocks");
  EXPECT_EQ(list.size(), 9u);
  EXPECT_EQ(list.back().at("kv_group"), "state");
}

TEST_F(KvGroupsTest, ATierChangesItsSizeInBytes) {
  store_prompt();
  const Reply changed =
      rest_.send({.method = "PATCH",
                  .target = cache_.path(),
                  .body = json{{"tiers", {{"pinned", {{"size_bytes", 1 << 16}}}}}}.dump(),
                  .content_type = "application/json"});
  ASSERT_EQ(changed.status, 200u) << changed.body;
  EXPECT_EQ(changed.document().at("tiers").at("pinned").at("size_bytes"), 1 << 16);
  EXPECT_EQ(match({{"keys", keys(1, 8)}, {"lease_ms", 0}}).at("matched"), 6);
  for (int n = 1; n <= 6; ++n) EXPECT_EQ(rest_.get(key_path(n, "full")).body, data_of(n, "full"));
}

// The windows and states of a key once counted as blocks that follow it, so a hint for a full block
// with both was not believed.
TEST_F(KvGroupsTest, AHintIsBelievedForAPromptWithWindowsAndStates) {
  store_prompt();
  const json hinted =
      rest_.post(cache_.path("/hints"), {{"keys", keys(1, 6)}, {"reuse", "never"}}).document();
  EXPECT_EQ(hinted.at("blocks"), 9) << hinted;
  EXPECT_EQ(hinted.at("shared"), 0);
}

// Blocks have three sizes.
class SmallTierOfGroups : public KvGroupsTest {
 protected:
  SmallTierOfGroups() : KvGroupsTest(unpadded()) {}
  static json unpadded() {
    json made = body({{"pinned", {{"size_bytes", 1 << 14}}}});
    for (json& group : made["kv_groups"]) group["layout"]["alignment"] = 64;
    return made;
  }
};

TEST_F(SmallTierOfGroups, MemoryGoesFromOneGroupToAnother) {
  const std::string moved = R"(tier="pinned")";
  const auto store = [this](int n, const std::string& group) {
    EXPECT_EQ(rest_.put_bytes(key_path(n, group), data_of(n, group)).status, 201u);
  };
  for (int n = 1; n <= 60; ++n) store(n, "full");
  EXPECT_EQ(cache_.metric("cairn_kv_group_slabs_moved_total", moved), 0);
  for (int n = 101; n <= 180; ++n) {
    store(n, "full");
    store(n, "state");
  }
  EXPECT_GT(cache_.metric("cairn_kv_group_slabs_moved_total", moved), 0);
  const json status = rest_.get(cache_.path()).document();
  const json& groups = status.at("tiers").at("pinned").at("kv_groups");
  EXPECT_GT(groups.at("state").at("blocks"), 15);
  for (int n = 1; n <= 180; ++n) {
    for (const std::string group : {"full", "state"}) {
      const Reply read = rest_.get(key_path(n, group));
      if (read.status == 200) {
        EXPECT_EQ(read.body, data_of(n, group));
      }
    }
  }
}

TEST_F(KvGroupsTest, ALeasedGroupKeepsAllBlocksOfItsKey) {
  store_prompt();
  const json found = match({{"keys", keys(1, 6)}, {"have", 6}});
  EXPECT_THAT(listed(found), ElementsAre("swa5", "swa6", "state6"));
  EXPECT_THAT(rest_.del(cache_.key_path(6)), is_problem(409, "leased"));
  EXPECT_EQ(rest_.get(key_path(6, "full")).status, 200u);
}

TEST_F(KvGroupsTest, AMatchInOneGroupFindsItsBlocksAlone) {
  for (int n = 3; n <= 5; ++n) put(n, "swa");
  const json found = match({{"keys", keys(3, 6)}, {"kv_group", "swa"}});
  EXPECT_EQ(found.at("matched"), 3);
  EXPECT_THAT(listed(found), ElementsAre("swa3", "swa4", "swa5"));
  EXPECT_THAT(rest_.del(key_path(4, "swa")), is_problem(409, "leased"));
  EXPECT_EQ(match({{"keys", keys(3, 6)}, {"kv_group", "state"}}).at("matched"), 0);
  const std::string path = cache_.path("/match");
  EXPECT_THAT(rest_.post(path, {{"keys", keys(3, 6)}, {"kv_group", "other"}}),
              is_problem(422, "unknown_kv_group"));
  EXPECT_THAT(rest_.post(path, {{"keys", keys(3, 6)}, {"kv_group", "full"}, {"have", 1}}),
              is_problem(400, "malformed"));
  EXPECT_THAT(rest_.post(path, {{"tokens", {1, 2, 3, 4}}, {"kv_group", "full"}}),
              is_problem(400, "malformed"));
}

class MappedGroups : public KvGroupsTest {
 protected:
  MappedGroups() : tier_(exported()) {}
  const json& exported() {
    const Reply reply = rest_.post(cache_.path("/tiers/pinned/export"));
    EXPECT_EQ(reply.status, 200u) << reply.body;
    exported_ = reply.document();
    return exported_;
  }
  // The blocks of all groups begin at the distance of a slot, and are in one piece.
  std::size_t offset_of(const json& block) const {
    const json& strides =
        exported_.at("kv_groups").at(block.at("kv_group").get<std::string>()).at("strides");
    return exported_.at("regions").at(0).at("offset_bytes").get<std::size_t>() +
           block.at("slot").get<std::size_t>() * strides.at("block_bytes").get<std::size_t>();
  }

  json exported_;
  MappedTier tier_;
};

TEST_F(MappedGroups, BlocksOfEachGroupAreReadInPlace) {
  store_prompt();
  const json found = match({{"keys", keys(1, 6)}});
  ASSERT_EQ(found.at("blocks").size(), 9u);
  for (const json& block : found.at("blocks")) {
    const std::string group = block.at("kv_group");
    int n = 1;
    while (block.at("key") != key(n)) ++n;
    EXPECT_EQ(tier_.read_at(offset_of(block), bytes_of_group(group)), data_of(n, group));
  }
}

TEST_F(MappedGroups, TheStridesAreThoseOfTheGroupsShapes) {
  const json& groups = exported_.at("kv_groups");
  EXPECT_EQ(groups.size(), 3u);
  EXPECT_EQ(exported_.at("layout"), "fully_contiguous");
  EXPECT_FALSE(exported_.contains("shape"));
  EXPECT_EQ(groups.at("full").at("shape").at("page_size"), kBlockTokens);
  EXPECT_EQ(groups.at("state").at("shape").at("page_size"), 1);
  for (const auto& [name, outer, piece_bytes] :
       {std::tuple("full", 2, kBlockTokens * 8 * 2), std::tuple("swa", 2, kBlockTokens * 8 * 2),
        std::tuple("state", 1, 32 * 2)}) {
    EXPECT_EQ(groups.at(name).at("strides").at("outer_bytes"), piece_bytes) << name;
    EXPECT_EQ(groups.at(name).at("strides").at("layer_bytes"), outer * piece_bytes) << name;
  }
}

TEST_F(MappedGroups, BlocksOfEachGroupAreWrittenInPlace) {
  const json allocated =
      rest_
          .post(cache_.path("/allocate"),
                {{"counts", {{"full", 1}, {"swa", 1}, {"state", 1}}}, {"tier", "pinned"}})
          .document();
  json blocks = json::array();
  for (json block : allocated.at("blocks")) {
    tier_.write_at(offset_of(block), data_of(1, block.at("kv_group").get<std::string>()));
    block["key"] = key(1);
    blocks.push_back(block);
  }
  const Reply committed =
      rest_.post(cache_.path("/commit"),
                 {{"lease", allocated.at("lease")}, {"blocks", blocks}, {"release", true}});
  ASSERT_EQ(committed.status, 200u) << committed.body;
  for (const std::string group : {"full", "swa", "state"}) {
    EXPECT_EQ(rest_.get(key_path(1, group)).body, data_of(1, group)) << group;
  }
}

TEST_F(KvGroupsTest, TheSameBodyMakesTheSameCacheAndOthersAreRefused) {
  json same = body();
  EXPECT_EQ(rest_.put(cache_.path(), same).status, 200u);
  same["kv_groups"][1]["window_tokens"] = 5;
  EXPECT_THAT(rest_.put(cache_.path(), same), is_problem(409, "cache_exists"));
  const std::string other = "/v1/caches/other";
  const auto refused = [&](auto&& change) {
    json wrong = body();
    change(wrong);
    const Reply reply = rest_.put(other, wrong);
    return std::to_string(reply.status) + " " + reply.code();
  };
  EXPECT_EQ(refused([](json& b) { b["layout"] = layout(1, 1, 4, 1); }), "400 malformed");
  EXPECT_EQ(refused([](json& b) { b.erase("block_tokens"); }), "400 missing_field");
  EXPECT_EQ(refused([](json& b) { b.erase("kv_groups"); }), "400 malformed");
  EXPECT_EQ(refused([](json& b) { b["tiers"]["pinned"] = {{"num_blocks", 4}}; }), "400 malformed");
  EXPECT_EQ(refused([](json& b) { b["tiers"]["pinned"]["num_blocks"] = 4; }), "400 malformed");
  EXPECT_EQ(refused([](json& b) { b["kv_groups"][0]["window_tokens"] = 4; }), "400 malformed");
  EXPECT_EQ(refused([](json& b) { b["kv_groups"][0]["kind"] = "half"; }), "400 out_of_range");
  EXPECT_EQ(refused([](json& b) { b["kv_groups"][0]["size"] = 4; }), "400 unknown_field");
  EXPECT_EQ(refused([](json& b) { b["kv_groups"] = json::array(); }), "400 out_of_range");
  EXPECT_EQ(refused([](json& b) { b["block_tokens"] = 3; }), "422 impossible_shape");
  EXPECT_EQ(refused([](json& b) { b["kv_groups"][0]["name"] = "swa"; }), "422 impossible");
}

TEST_F(KvGroupsTest, AGroupThatIsNotThereIsRefusedByName) {
  const auto unknown = is_problem(422, "unknown_kv_group");
  EXPECT_THAT(rest_.get(cache_.key_path(1)), unknown) << "there is no group default";
  EXPECT_THAT(rest_.get(key_path(1, "other")), unknown);
  EXPECT_THAT(rest_.put_bytes(key_path(1, "other"), data_of(1, "full")), unknown);
  EXPECT_THAT(rest_.del(key_path(1, "other")), unknown);
  EXPECT_THAT(rest_.get(cache_.path("/keys/" + key(1) + "/metadata?kv_group=other")), unknown);
  EXPECT_THAT(rest_.post(cache_.path("/allocate"), {{"count", 1}}), unknown);
  EXPECT_THAT(rest_.post(cache_.path("/allocate"), {{"counts", {{"other", 1}}}}), unknown);
  EXPECT_THAT(rest_.post(cache_.path("/read"), {{"keys", keys(1, 1)}}), unknown);
  EXPECT_THAT(rest_.post(cache_.path("/evict"), {{"keys", keys(1, 1)}, {"kv_group", "other"}}),
              unknown);
  EXPECT_THAT(rest_.post(cache_.path("/allocate"), {{"count", 1}, {"counts", {{"full", 1}}}}),
              is_problem(400, "malformed"));
  EXPECT_THAT(rest_.post(cache_.path("/allocate"), {{"counts", json::object()}}),
              is_problem(400, "out_of_range"));
  const Reply reply = rest_.get(key_path(1, "other"));
  EXPECT_THAT(reply.document().at("detail").get<std::string>(), HasSubstr("full, swa, state"));
}

TEST_F(KvGroupsTest, AOneGroupCacheHasTheGroupDefault) {
  TestCache one(rest_, {.pinned = 8});
  one.store(1, "?kv_group=default");
  EXPECT_EQ(rest_.get(one.key_path(1, "?kv_group=default")).status, 200u);
  EXPECT_THAT(rest_.get(one.key_path(1, "?kv_group=full")), is_problem(422, "unknown_kv_group"));
  const json allocation =
      rest_.post(one.path("/allocate"), {{"counts", {{"default", 2}}}}).document();
  EXPECT_EQ(allocation.at("blocks").size(), 2u);
  EXPECT_FALSE(allocation.at("blocks").at(0).contains("kv_group"));
  // The caller has the first block itself.
  one.store(3);
  const json found =
      rest_.post(one.path("/match"), {{"keys", {key(2), key(3)}}, {"have", 1}}).document();
  EXPECT_EQ(found.at("matched"), 2);
  ASSERT_EQ(found.at("blocks").size(), 1u);
  EXPECT_EQ(found.at("blocks").at(0).at("key"), key(3));
}

TEST_F(KvGroupsTest, TokensBecomeKeysOfBlockTokens) {
  json tokens = json::array();
  for (int i = 0; i < 2 * kBlockTokens + 1; ++i) tokens.push_back(i);
  const json found = match({{"tokens", tokens}, {"lease_ms", 0}});
  EXPECT_EQ(found.at("matched"), 0);
  EXPECT_EQ(found.at("full_matched"), 0);
}

// A server that has its cache only from its own memory of it.
TEST(KvGroupsRestart, AServerFindsTheGroupsAndTheirBlocksAgain) {
  const fakes::TempDir folder;
  const auto start = [&folder] {
    std::ofstream(folder.path() / "config.json") << R"({"caches": []})";
    return std::make_unique<ServerProcess>(
        ServerSetup{.flags = {"--config", (folder.path() / "config.json").string()},
                    .data_dir = folder.path() / "data"});
  };
  const json kept =
      body({{"pinned", {{"size_bytes", 1 << 18}}}, {"disk", {{"size_bytes", 1 << 19}}}});
  const std::string path = "/v1/caches/kept";
  auto server = start();
  {
    Rest rest(server->endpoint());
    ASSERT_THAT(rest.put(path, kept), has_status(201));
    for (const std::string group : {"full", "swa", "state"}) {
      for (int n = 1; n <= 3; ++n) {
        const std::string target = path + "/keys/" + key(n) + "?tier=disk&kv_group=" + group;
        ASSERT_THAT(rest.put_bytes(target, data_of(n, group)), has_status(201));
      }
    }
  }
  for (const bool killed : {false, true}) {
    killed ? server->kill() : static_cast<void>(server->stop());
    server = start();
    Rest rest(server->endpoint());
    const json found =
        rest.post(path + "/match", {{"keys", keys(1, 4)}, {"lease_ms", 0}}).document();
    EXPECT_EQ(found.at("matched"), 3);
    for (const json& block : found.at("blocks")) EXPECT_EQ(block.at("tier"), "disk");
    for (const std::string group : {"full", "swa", "state"}) {
      for (int n = 1; n <= 3; ++n) {
        EXPECT_EQ(rest.get(path + "/keys/" + key(n) + "?kv_group=" + group).body,
                  data_of(n, group));
      }
    }
    EXPECT_THAT(rest.put(path, kept), has_status(200)) << "the same body is the same cache";
  }
}

TEST(KvGroupsRestart, AConfiguredCacheKeepsTheSizeThatAClientGaveIt) {
  const fakes::TempDir folder;
  json cache = body({{"pinned", {{"size_bytes", 1 << 18}}}});
  cache["name"] = "kept";
  std::ofstream(folder.path() / "config.json") << json{{"caches", json::array({cache})}};
  const auto start = [&folder] {
    return std::make_unique<ServerProcess>(
        ServerSetup{.flags = {"--config", (folder.path() / "config.json").string()},
                    .data_dir = folder.path() / "data"});
  };
  const auto size = [](Rest& rest) {
    return rest.get("/v1/caches/kept").document().at("tiers").at("pinned").at("size_bytes");
  };
  auto server = start();
  {
    Rest rest(server->endpoint());
    EXPECT_EQ(size(rest), 1 << 18);
    const Reply changed =
        rest.send({.method = "PATCH",
                   .target = "/v1/caches/kept",
                   .body = json{{"tiers", {{"pinned", {{"size_bytes", 1 << 17}}}}}}.dump(),
                   .content_type = "application/json"});
    ASSERT_THAT(changed, has_status(200));
  }
  server->stop();
  server = start();
  Rest rest(server->endpoint());
  EXPECT_EQ(size(rest), 1 << 17);
}

}  // namespace
}  // namespace cairn::e2e
