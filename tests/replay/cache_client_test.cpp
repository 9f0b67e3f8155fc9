#include "client/cache_client.hpp"

#include <gmock/gmock.h>

#include <array>

#include "tests/replay/scripted_server.hpp"

namespace cairn::replay_test {
namespace {

using client::BlockHandle;
using client::CacheClient;
using client::KeyList;
using client::StoreStatus;
using client::Tier;
using nlohmann::json;

// Two keys of two bytes.
constexpr std::array<std::byte, 4> kKeys = {std::byte{0xAB}, std::byte{0x01}, std::byte{0xCD},
                                            std::byte{0x02}};
const KeyList kKeyList(kKeys, 2);
const BlockHandle kHandle{Tier::pinned, 17, 3};
const BlockHandle kWindowHandle{Tier::pinned, 17, 3, "swa"};

// Sends the same response to every request, and keeps the last request.
class CacheClientTest : public testing::Test {
 protected:
  void answers(ScriptedAnswer reply) { reply_ = std::move(reply); }
  json sent() const { return json::parse(last_.body); }

  ReceivedRequest last_;
  ScriptedAnswer reply_;
  ScriptedServer server_{[this](const ReceivedRequest& request) {
    last_ = request;
    return reply_;
  }};
  CacheClient cache_{server_.endpoint()};
};

constexpr const char* kMatchAnswer =
    R"({"matched": 1, "lease": "L1", "expires_at_ms": 99,
        "blocks": [{"key": "ab01", "tier": "pinned", "slot": 17, "generation": 3}]})";

TEST_F(CacheClientTest, MatchesWithThePackedForm) {
  answers(answer(200, kMatchAnswer));
  const auto match = cache_.match("a/b", kKeyList, 500);
  ASSERT_TRUE(match) << match.error().detail;
  EXPECT_EQ(last_.target, "/v1/caches/a%2fb/match?key_bytes=2&lease_ms=500");
  EXPECT_EQ(last_.body, "\xAB\x01\xCD\x02");
  EXPECT_THAT(last_.head, testing::HasSubstr("Content-Type: application/octet-stream\r\n"));
  EXPECT_EQ(match->lease, "L1");
  EXPECT_EQ(match->expires_at_ms, 99);
  EXPECT_THAT(match->blocks, testing::ElementsAre(kHandle));
}

TEST_F(CacheClientTest, MatchesWithJson) {
  answers(answer(200, R"({"matched": 0, "lease": null, "expires_at_ms": 0, "blocks": []})"));
  const auto match = cache_.match_json("c", kKeyList, 0);
  ASSERT_TRUE(match) << match.error().detail;
  EXPECT_EQ(sent(), (json{{"keys", {"ab01", "cd02"}}, {"lease_ms", 0}}));
  EXPECT_EQ(match->lease, "");
  EXPECT_TRUE(match->blocks.empty());
}

TEST_F(CacheClientTest, RefusesAMatchThatIsNoPrefixOfTheKeys) {
  for (
      const char* wrong :
      {R"({"matched": 1, "lease": null, "blocks": [{"key": "cd02", "tier": "pinned", "slot": 1, "generation": 1}]})",
       R"({"matched": 2, "lease": null, "blocks": [{"key": "ab01", "tier": "pinned", "slot": 1, "generation": 1}]})",
       R"({"matched": 1, "lease": null, "blocks": [{"key": "ab01", "tier": "tape", "slot": 1, "generation": 1}]})",
       R"({"matched": 1, "lease": null, "blocks": [{"key": "ab01", "tier": "pinned", "generation": 1}]})",
       R"({"matched": 0})", "[]", "not JSON"}) {
    answers(answer(200, wrong));
    const auto match = cache_.match("c", kKeyList, 0);
    ASSERT_FALSE(match) << wrong;
    EXPECT_EQ(match.error().code, client::kBadAnswer) << wrong;
  }
}

TEST_F(CacheClientTest, MatchesKvGroups) {
  answers(answer(200, R"({"matched": 1, "full_matched": 2, "lease": "L1", "expires_at_ms": 99,
        "blocks": [{"key": "ab01", "tier": "pinned", "slot": 17, "generation": 3,
                    "kv_group": "swa"}]})"));
  const auto match = cache_.match_groups("c", kKeyList, 500);
  ASSERT_TRUE(match) << match.error().detail;
  EXPECT_EQ(last_.body, "\xAB\x01\xCD\x02");
  EXPECT_EQ(match->matched, 1U);
  EXPECT_EQ(match->full_matched, 2U);
  ASSERT_EQ(match->blocks.size(), 1U);
  EXPECT_EQ(match->blocks[0].key, "ab01");
  EXPECT_EQ(match->blocks[0].handle, kWindowHandle);
}

TEST_F(CacheClientTest, NamesTheKvGroup) {
  answers(answer(200, R"({"lease": "L2", "expires_at_ms": 7, "blocks": []})"));
  ASSERT_TRUE(cache_.allocate("c", {.group_counts = {{"full", 2}, {"swa", 1}}, .lease_ms = 5}));
  EXPECT_EQ(sent().at("counts"), (json{{"full", 2}, {"swa", 1}}));
  EXPECT_FALSE(sent().contains("count"));
  answers(answer(200, ""));
  ASSERT_TRUE(cache_.write_slot("c", kWindowHandle, "L2", kKeys));
  EXPECT_THAT(last_.target, testing::EndsWith("&kv_group=swa"));
  answers(answer(200, R"({"blocks": [{"key": "ab01", "status": "committed"}]})"));
  const client::CommitBlock block{kWindowHandle, kKeyList[0], {}};
  ASSERT_TRUE(cache_.commit("c", "L2", {&block, 1}));
  EXPECT_EQ(sent().at("blocks").at(0).at("kv_group"), "swa");
}

TEST_F(CacheClientTest, ReturnsTheServersProblem) {
  answers(answer(503, R"({"status": 503, "code": "unavailable", "detail": "draining"})",
                 "application/problem+json", "Retry-After: 2\r\n"));
  const auto allocation = cache_.allocate("c", {.count = 1});
  ASSERT_FALSE(allocation);
  EXPECT_EQ(allocation.error().status, 503U);
  EXPECT_EQ(allocation.error().code, "unavailable");
  EXPECT_EQ(allocation.error().detail, "draining");
  EXPECT_EQ(allocation.error().retry_after_ms, 2000U);
}

TEST_F(CacheClientTest, QuotesAnErrorThatIsNoProblemDocument) {
  answers(answer(502, "<html>bad gateway</html>", "text/html"));
  const auto gone = cache_.end_lease("L1");
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().status, 502U);
  EXPECT_EQ(gone.error().code, "http_502");
  EXPECT_THAT(gone.error().detail, testing::HasSubstr("bad gateway"));
}

TEST_F(CacheClientTest, Allocates) {
  answers(answer(200, R"({"lease": "L2", "expires_at_ms": 7,
                          "blocks": [{"tier": "pinned", "slot": 17, "generation": 3}]})"));
  const auto allocation = cache_.allocate("c", {.count = 1, .tier = Tier::pinned, .lease_ms = 5});
  ASSERT_TRUE(allocation) << allocation.error().detail;
  EXPECT_EQ(last_.target, "/v1/caches/c/allocate");
  EXPECT_EQ(sent(), (json{{"count", 1}, {"tier", "pinned"}, {"lease_ms", 5}}));
  EXPECT_EQ(allocation->lease, "L2");
  EXPECT_THAT(allocation->blocks, testing::ElementsAre(kHandle));
}

TEST_F(CacheClientTest, WritesIntoASlot) {
  answers({{"HTTP/1.1 204 No Content\r\n\r\n"}});
  ASSERT_TRUE(cache_.write_slot("c", kHandle, "L2", kKeys));
  EXPECT_EQ(last_.method, "PUT");
  EXPECT_EQ(last_.target, "/v1/caches/c/slots/pinned/17/data?generation=3&lease=L2");
  EXPECT_EQ(last_.body, "\xAB\x01\xCD\x02");
}

TEST_F(CacheClientTest, Commits) {
  answers(answer(200, R"({"blocks": [{"status": "committed"}, {"status": "duplicate"}]})"));
  const std::array<client::CommitBlock, 2> blocks = {
      {{kHandle, kKeyList[0], {}}, {{Tier::disk, 1, 2}, kKeyList[1], kKeyList[0]}}};
  const auto statuses = cache_.commit("c", "L2", blocks);
  ASSERT_TRUE(statuses) << statuses.error().detail;
  EXPECT_THAT(*statuses, testing::ElementsAre(StoreStatus::committed, StoreStatus::duplicate));
  EXPECT_EQ(sent(), json::parse(
                        R"({"lease": "L2", "blocks": [
               {"tier": "pinned", "slot": 17, "generation": 3, "key": "ab01"},
               {"tier": "disk", "slot": 1, "generation": 2, "key": "cd02", "parent": "ab01"}]})"));
}

TEST_F(CacheClientTest, RefusesACommitResponseForOtherBlocks) {
  const std::array<client::CommitBlock, 1> blocks = {{{kHandle, kKeyList[0], {}}}};
  for (const char* wrong : {R"({"blocks": []})", R"({"blocks": [{"status": "perhaps"}]})"}) {
    answers(answer(200, wrong));
    const auto statuses = cache_.commit("c", "L2", blocks);
    ASSERT_FALSE(statuses) << wrong;
    EXPECT_EQ(statuses.error().code, client::kBadAnswer);
  }
}

TEST_F(CacheClientTest, RenewsReleasesAndEndsALease) {
  answers(answer(200, R"({"lease": "L2", "expires_at_ms": 1234})"));
  const auto expires_at_ms = cache_.renew_lease("L2", 500);
  ASSERT_TRUE(expires_at_ms) << expires_at_ms.error().detail;
  EXPECT_EQ(*expires_at_ms, 1234);
  EXPECT_EQ(last_.target, "/v1/leases/L2/renew");
  EXPECT_EQ(sent(), (json{{"lease_ms", 500}}));
  ASSERT_TRUE(cache_.release_blocks("L2", {&kHandle, 1}));
  EXPECT_EQ(last_.target, "/v1/leases/L2/release");
  EXPECT_EQ(sent(),
            json::parse(R"({"blocks": [{"tier": "pinned", "slot": 17, "generation": 3}]})"));
  ASSERT_TRUE(cache_.end_lease("L2"));
  EXPECT_EQ(last_.method, "DELETE");
  EXPECT_EQ(last_.target, "/v1/leases/L2");
}

TEST_F(CacheClientTest, ReadsManyBlocksIntoOnePlace) {
  answers(answer(200, "abcd", "application/octet-stream", "Cairn-Matched: 1\r\n"));
  std::array<std::byte, 8> room{};
  const auto count = cache_.read("c", kKeyList, room);
  ASSERT_TRUE(count) << count.error().detail;
  EXPECT_EQ(*count, 1U);
  EXPECT_EQ(room[3], std::byte{'d'});
  EXPECT_EQ(sent(), (json{{"keys", {"ab01", "cd02"}}}));
}

TEST_F(CacheClientTest, RefusesAReadOfTheWrongLength) {
  std::array<std::byte, 8> room{};
  for (const char* matched : {"2", "3", "", "x"}) {
    answers(answer(200, "abcd", "application/octet-stream",
                   std::string("Cairn-Matched: ") + matched + "\r\n"));
    const auto count = cache_.read("c", kKeyList, room);
    ASSERT_FALSE(count) << matched;
    EXPECT_EQ(count.error().code, client::kBadAnswer);
  }
}

TEST_F(CacheClientTest, WritesManyBlocksWithTheirParents) {
  answers(answer(200, R"({"blocks": [{"status": "committed"}, {"status": "committed"}]})"));
  const std::string blocks = "blocks!!";
  const std::array parent = {std::byte{0xFF}};
  const auto statuses = cache_.write("c", {.keys = kKeyList,
                                           .parent = parent,
                                           .tier = Tier::disk,
                                           .blocks = std::as_bytes(std::span(blocks))});
  ASSERT_TRUE(statuses) << statuses.error().detail;
  const auto length = static_cast<std::size_t>(static_cast<unsigned char>(last_.body[0]));
  EXPECT_EQ(last_.body.substr(1, 3), std::string(3, '\0'));
  EXPECT_EQ(
      json::parse(last_.body.substr(4, length)),
      json::parse(R"({"keys": ["ab01", "cd02"], "parents": ["ff", "ab01"], "tier": "disk"})"));
  EXPECT_EQ(last_.body.substr(4 + length), blocks);
}

TEST_F(CacheClientTest, PutsAndGetsOneKey) {
  answers(answer(201, "{}"));
  const auto stored = cache_.put_key("c", kKeyList[0], kKeys,
                                     {.parent = kKeyList[1], .tier = Tier::disk, .ttl_ms = 9});
  ASSERT_TRUE(stored) << stored.error().detail;
  EXPECT_EQ(*stored, StoreStatus::committed);
  EXPECT_EQ(last_.target, "/v1/caches/c/keys/ab01?parent=cd02&tier=disk&ttl_ms=9");
  answers(answer(200, "abcd", "application/octet-stream", "Cairn-Tier: disk\r\n"));
  std::array<std::byte, 4> room{};
  const auto tier = cache_.get_key("c", kKeyList[0], room);
  ASSERT_TRUE(tier) << tier.error().detail;
  EXPECT_EQ(*tier, Tier::disk);
  EXPECT_EQ(room[0], std::byte{'a'});
}

TEST_F(CacheClientTest, RefusesAShortBlock) {
  answers(answer(200, "abc", "application/octet-stream", "Cairn-Tier: disk\r\n"));
  std::array<std::byte, 4> room{};
  const auto tier = cache_.get_key("c", kKeyList[0], room);
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code, client::kBadAnswer);
}

TEST_F(CacheClientTest, StartsAndFollowsATransfer) {
  answers(answer(202, R"({"transfer": "T1", "state": "running", "blocks_done": 1,
                          "blocks_total": 2, "bytes": 3})"));
  const auto started =
      cache_.start_transfer("c", {.keys = kKeyList, .to = Tier::disk, .move = true, .wait_ms = 4});
  ASSERT_TRUE(started) << started.error().detail;
  EXPECT_EQ(sent(),
            (json{{"keys", {"ab01", "cd02"}}, {"to", "disk"}, {"mode", "move"}, {"wait_ms", 4}}));
  EXPECT_EQ(started->id, "T1");
  EXPECT_FALSE(started->ended());
  EXPECT_EQ(started->blocks_total, 2U);
  answers(answer(200, R"({"transfer": "T1", "state": "done", "blocks_done": 2,
                          "blocks_total": 2, "bytes": 6})"));
  const auto later = cache_.get_transfer("T1", 10);
  ASSERT_TRUE(later) << later.error().detail;
  EXPECT_EQ(last_.target, "/v1/transfers/T1?wait_ms=10");
  EXPECT_TRUE(later->ended());
}

}  // namespace
}  // namespace cairn::replay_test
