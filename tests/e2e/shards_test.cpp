#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/support/kv_groups.hpp"
#include "tests/e2e/support/mapped_slots.hpp"
#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"
#include "tests/e2e/support/unix_server.hpp"

// Head shards over HTTP: parts of blocks, written by several writers and read apart.
namespace cairn::e2e {
namespace {

constexpr std::size_t kHeads = 4;
constexpr std::size_t kWholeBytes = kLayers * kHeads * kRegionBytes;

json sharded_layout(std::size_t shards = kHeads) {
  return {{"num_layers", kLayers},
          {"outer_dim", kHeads},
          {"page_size", kPageSize},
          {"inner_dim", kInner},
          {"dtype_width_bytes", kDtypeBytes},
          {"shards", shards}};
}

// A block of kHeads heads; the bytes depend on the number.
std::string whole(int n) {
  std::string bytes = block(n);
  return (bytes + block(n + 1000)).substr(0, kWholeBytes);
}

// The part of a block in canonical order, [layer][outer range][page][inner].
std::string part_of(const std::string& bytes, std::size_t shard, std::size_t shards) {
  const std::size_t layer_bytes = bytes.size() / kLayers;
  const std::size_t part_bytes = layer_bytes / shards;
  std::string part;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    part += bytes.substr(layer * layer_bytes + shard * part_bytes, part_bytes);
  }
  return part;
}
std::string part(int n, std::size_t shard, std::size_t shards) {
  return part_of(whole(n), shard, shards);
}

std::string query(std::size_t shard, std::size_t shards) {
  return "?shard=" + std::to_string(shard) + "&shards=" + std::to_string(shards);
}

json sharded_body(const json& tiers, const std::string& offload = "on_evict") {
  return {{"layout", sharded_layout()}, {"tiers", tiers}, {"offload", offload}};
}

struct Kind {
  std::string name;
  std::string tier;
  json of_tier;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"device", "device", {{"num_blocks", 8}}},
      {"device_second",
       "device",
       {{"num_blocks", 8}, {"layout", "layer_separate"}, {"block_dim", "second"}}},
      {"pinned", "pinned", {{"num_blocks", 8}}},
      {"pinned_first",
       "pinned",
       {{"num_blocks", 8}, {"layout", "layer_separate"}, {"block_dim", "first"}}},
      {"pinned_second",
       "pinned",
       {{"num_blocks", 8}, {"layout", "layer_separate"}, {"block_dim", "second"}}},
      {"disk", "disk", {{"num_blocks", 8}}},
      {"pinned_groups", "pinned", {{"size_bytes", 1 << 20}}},
      {"disk_groups", "disk", {{"size_bytes", 1 << 20}}}};
  return all;
}

// Each kind of tier, in caches of one group and of several.
class EachTier : public ServedTest, public testing::WithParamInterface<Kind> {
 protected:
  EachTier() : cache_(TestCache::made_of(rest_, body())) {}
  // A server has a limited number of caches. A lease that a test has lost holds nothing up.
  ~EachTier() override { EXPECT_TRUE(rest_.del(cache_.path("?force=true")).ok()); }

  static bool has_groups() { return GetParam().of_tier.contains("size_bytes"); }
  static json body() {
    const json tiers = {{GetParam().tier, GetParam().of_tier}};
    if (!has_groups()) return sharded_body(tiers);
    json window = window_group();
    json full = full_group();
    full["name"] = "default";
    full["layout"] = sharded_layout();
    return {{"block_tokens", kBlockTokens}, {"kv_groups", {window, full}}, {"tiers", tiers}};
  }

  Reply put(int n, std::size_t shard, std::size_t shards) {
    return rest_.put_bytes(cache_.key_path(n, query(shard, shards)), part(n, shard, shards));
  }
  // With KV groups no match can be whole: the window has no blocks.
  json matched(int first, int count) {
    return cache_.match(keys(first, count), 0).at(has_groups() ? "full_matched" : "matched");
  }
  std::string get(int n, const std::string& of = "") {
    const Reply reply = rest_.get(cache_.key_path(n, of));
    EXPECT_EQ(reply.status, 200u) << reply.body;
    return reply.body;
  }
  int used() {
    return cache_.count(GetParam().tier, "allocated") + cache_.count(GetParam().tier, "committed") +
           cache_.count(GetParam().tier, "evictable");
  }

  TestCache cache_;
};

INSTANTIATE_TEST_SUITE_P(Shards, EachTier, testing::ValuesIn(kinds()),
                         [](const auto& test) { return test.param.name; });

TEST_P(EachTier, TwoWritersMakeOneBlockInAnyOrder) {
  for (const std::size_t first : {std::size_t{0}, std::size_t{1}}) {
    const int n = first == 0 ? 1 : 2;
    const Reply begun = put(n, first, 2);
    EXPECT_EQ(begun.status, 201u) << begun.body;
    EXPECT_EQ(begun.document().at("status"), "pending");
    EXPECT_EQ(begun.document().at("shards"),
              first == 0 ? json::array({0, 1}) : json::array({2, 3}));
    EXPECT_EQ(matched(n, 1), 0);
    EXPECT_EQ(rest_.get(cache_.key_path(n)).status, 404u);
    const Reply ended = put(n, 1 - first, 2);
    EXPECT_EQ(ended.status, 201u) << ended.body;
    EXPECT_EQ(ended.document().at("status"), "committed");
    EXPECT_EQ(matched(n, 1), 1);
    EXPECT_TRUE(get(n) == whole(n));
  }
  EXPECT_EQ(used(), 2);
  EXPECT_EQ(cache_.counts().at("leases"), 0);
}

TEST_P(EachTier, PartsOfEachSizeAreReadApart) {
  ASSERT_EQ(rest_.put_bytes(cache_.key_path(1), whole(1)).status, 201u);
  for (const std::size_t shards : {1u, 2u, 4u}) {
    for (std::size_t shard = 0; shard < shards; ++shard) {
      EXPECT_EQ(get(1, query(shard, shards)), part(1, shard, shards));
    }
  }
  const Reply range =
      rest_.send({.target = cache_.key_path(1, query(1, 2)), .headers = {{"Range", "bytes=3-9"}}});
  EXPECT_EQ(range.status, 206u);
  EXPECT_EQ(range.body, part(1, 1, 2).substr(3, 7));
  const Reply head = rest_.head(cache_.key_path(1, query(1, 2)));
  EXPECT_EQ(head.header("Content-Length"), std::to_string(kWholeBytes / 2));
}

// What two ranks stored, four load, and the other way round.
TEST_P(EachTier, PartsOfSeveralSizesMakeABlock) {
  EXPECT_EQ(put(1, 3, 4).document().at("status"), "pending");
  EXPECT_EQ(put(1, 0, 2).document().at("status"), "pending");
  // A part that is there in part.
  EXPECT_EQ(put(1, 1, 2).document().at("status"), "committed");
  EXPECT_TRUE(get(1) == whole(1));
  EXPECT_EQ(get(1, query(2, 4)), part(1, 2, 4));
}

TEST_P(EachTier, APartThatIsThereIsADuplicate) {
  ASSERT_EQ(put(1, 0, 2).status, 201u);
  const std::string other(kWholeBytes / 2, 'x');
  const Reply again = rest_.put_bytes(cache_.key_path(1, query(0, 2)), other);
  EXPECT_EQ(again.status, 200u);
  EXPECT_EQ(again.document().at("status"), "duplicate");
  ASSERT_EQ(put(1, 1, 2).status, 201u);
  EXPECT_TRUE(get(1) == whole(1));
  const Reply late = rest_.put_bytes(cache_.key_path(1, query(1, 2)), other);
  EXPECT_EQ(late.status, 200u);
  EXPECT_EQ(late.document().at("status"), "duplicate");
  EXPECT_TRUE(get(1) == whole(1));
}

TEST_P(EachTier, AWholeBlockReplacesItsParts) {
  ASSERT_EQ(put(1, 0, 2).status, 201u);
  EXPECT_EQ(rest_.put_bytes(cache_.key_path(1), whole(1)).status, 201u);
  EXPECT_TRUE(get(1) == whole(1));
  EXPECT_EQ(used(), 1);
  EXPECT_EQ(put(1, 1, 2).document().at("status"), "duplicate");
}

TEST_P(EachTier, ManyPartsAreWrittenAndReadAtOnce) {
  for (std::size_t shard = 0; shard < 2; ++shard) {
    std::string parts;
    for (int n = 1; n <= 3; ++n) parts += part(n, shard, 2);
    const Reply written = rest_.post_bytes(cache_.path("/write" + query(shard, 2)),
                                           write_body({{"keys", keys(1, 3)}}, parts));
    ASSERT_EQ(written.status, 200u) << written.body;
    const json answer = written.document();
    for (const json& block : answer.at("blocks")) {
      EXPECT_EQ(block.at("status"), shard == 0 ? "pending" : "committed");
    }
  }
  EXPECT_EQ(used(), 3);
  for (const std::size_t shards : {2u, 4u}) {
    for (std::size_t shard = 0; shard < shards; ++shard) {
      const Reply read =
          rest_.post(cache_.path("/read" + query(shard, shards)), {{"keys", keys(1, 4)}});
      EXPECT_EQ(read.header("Cairn-Matched"), "3");
      std::string expected;
      for (int n = 1; n <= 3; ++n) expected += part(n, shard, shards);
      EXPECT_EQ(read.body, expected);
    }
  }
}

// Each rank has its own lease and its own slots.
TEST_P(EachTier, CommitsUnderSeveralLeasesMakeOneBlock) {
  std::array<std::string, 2> leases;
  for (std::size_t shard = 0; shard < 2; ++shard) {
    const json allocated = cache_.allocate(2, GetParam().tier);
    leases[shard] = allocated.at("lease");
    json blocks = json::array();
    for (int n = 1; n <= 2; ++n) {
      const json& handle = allocated.at("blocks").at(static_cast<std::size_t>(n) - 1);
      const Reply written =
          rest_.put_bytes(cache_.data_path(handle, leases[shard], "&" + query(shard, 2).substr(1)),
                          part(n, shard, 2));
      ASSERT_EQ(written.status, 204u) << written.body;
      json one = TestCache::commit_block(handle, n);
      // The second says nothing of its parts: they are those that were written.
      if (shard == 0) one.update({{"shard", 0}, {"shards", 2}});
      blocks.push_back(one);
    }
    const Reply committed =
        rest_.post(cache_.path("/commit"), {{"lease", leases[shard]}, {"blocks", blocks}});
    ASSERT_EQ(committed.status, 200u) << committed.body;
    const json answer = committed.document();
    for (const json& one : answer.at("blocks")) {
      EXPECT_EQ(one.at("status"), shard == 0 ? "pending" : "committed");
      if (shard == 0) {
        EXPECT_EQ(one.at("shards"), json::array({0, 1}));
      }
    }
    EXPECT_EQ(matched(1, 2), shard == 0 ? 0 : 2);
  }
  EXPECT_TRUE(get(1) == whole(1));
  EXPECT_TRUE(get(2) == whole(2));
  EXPECT_EQ(used(), 2);
  // The lease that completed the blocks holds them.
  EXPECT_EQ(cache_.count(GetParam().tier, "committed"), 2);
  for (const std::string& lease : leases) EXPECT_TRUE(rest_.del("/v1/leases/" + lease).ok());
  EXPECT_EQ(cache_.count(GetParam().tier, "committed"), 0);
  EXPECT_EQ(cache_.counts().at("leases"), 0);
}

// The slot has both parts, and its owner commits one of them.
TEST_P(EachTier, OnlyThePartsThatACommitNamesAreThere) {
  const json allocated = cache_.allocate(1, GetParam().tier);
  const std::string lease = allocated.at("lease");
  const json& handle = allocated.at("blocks").at(0);
  ASSERT_EQ(rest_.put_bytes(cache_.data_path(handle, lease), whole(7)).status, 204u);
  ASSERT_EQ(
      rest_.put_bytes(cache_.data_path(handle, lease, "&" + query(0, 2).substr(1)), part(1, 0, 2))
          .status,
      204u);
  json one = TestCache::commit_block(handle, 1);
  one.update({{"shard", 0}, {"shards", 2}});
  const Reply committed =
      rest_.post(cache_.path("/commit"), {{"lease", lease}, {"blocks", {one}}, {"release", true}});
  EXPECT_EQ(committed.document().at("blocks").at(0).at("shards"), json::array({0, 1}));
  EXPECT_EQ(put(1, 1, 2).document().at("status"), "committed");
  EXPECT_TRUE(get(1) == whole(1));
}

TEST_P(EachTier, AllPartsInOneSlotAreAWholeBlock) {
  const json allocated = cache_.allocate(1, GetParam().tier);
  const std::string lease = allocated.at("lease");
  const json& handle = allocated.at("blocks").at(0);
  for (std::size_t shard = 0; shard < 4; ++shard) {
    ASSERT_EQ(rest_
                  .put_bytes(cache_.data_path(handle, lease, "&" + query(shard, 4).substr(1)),
                             part(1, shard, 4))
                  .status,
              204u);
  }
  const Reply committed = rest_.post(
      cache_.path("/commit"), {{"lease", lease}, {"blocks", {TestCache::commit_block(handle, 1)}}});
  EXPECT_EQ(committed.document().at("blocks").at(0).at("status"), "committed");
  EXPECT_TRUE(get(1) == whole(1));
}

TEST_P(EachTier, ConcurrentWritersStoreEachBlockOnce) {
  constexpr int kKeys = 4;
  std::vector<std::thread> writers;
  for (std::size_t shard = 0; shard < 4; ++shard) {
    for (int copy = 0; copy < 2; ++copy) {
      writers.emplace_back([this, shard] {
        Rest rest(server().endpoint());
        for (int n = 1; n <= kKeys; ++n) {
          const Reply reply =
              rest.put_bytes(cache_.key_path(n, query(shard, 4)), part(n, shard, 4));
          EXPECT_TRUE(reply.status == 200 || reply.status == 201) << reply.body;
        }
      });
    }
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(matched(1, kKeys), kKeys);
  for (int n = 1; n <= kKeys; ++n) EXPECT_TRUE(get(n) == whole(n));
  EXPECT_EQ(used(), kKeys);
  EXPECT_EQ(cache_.counts().at("leases"), 0);
}

// The part that a dead writer began is written by another.
TEST_P(EachTier, AWriterThatDiesLeavesThePartToOthers) {
  {
    RawConnection dying(server().endpoint());
    const std::string bytes = part(1, 0, 2);
    ASSERT_TRUE(
        dying.send("PUT " + cache_.key_path(1, query(0, 2)) +
                   " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
                   "Content-Length: " +
                   std::to_string(bytes.size()) + "\r\n\r\n" + bytes.substr(0, bytes.size() / 2)));
    ASSERT_TRUE(eventually([&] { return cache_.count(GetParam().tier, "allocated") == 1; }));
    // Meanwhile both parts come from others, the first into a slot of its own.
    EXPECT_EQ(put(1, 1, 2).document().at("status"), "pending");
  }
  EXPECT_EQ(put(1, 0, 2).status, 201u);
  EXPECT_TRUE(get(1) == whole(1));
  EXPECT_EQ(used(), 1);
}

// Blocks in two tiers, and parts that come from another tier than the block.
class SeveralTiersTest : public ServedTest {
 protected:
  SeveralTiersTest()
      : cache_(TestCache::made_of(rest_, sharded_body({{"device", {{"num_blocks", 4}}},
                                                       {"pinned", {{"num_blocks", 4}}},
                                                       {"disk", {{"num_blocks", 8}}}}))) {}
  TestCache cache_;
};

TEST_F(SeveralTiersTest, PartsInSeveralTiersMakeOneBlock) {
  int n = 0;
  for (const char* one : kTierNames) {
    for (const char* other : kTierNames) {
      ++n;
      for (std::size_t shard = 0; shard < 2; ++shard) {
        const json allocated = cache_.allocate(1, shard == 0 ? one : other);
        const json& handle = allocated.at("blocks").at(0);
        const std::string lease = allocated.at("lease");
        ASSERT_EQ(rest_
                      .put_bytes(cache_.data_path(handle, lease, "&" + query(shard, 2).substr(1)),
                                 part(n, shard, 2))
                      .status,
                  204u);
        const Reply committed =
            rest_.post(cache_.path("/commit"), {{"lease", lease},
                                                {"blocks", {TestCache::commit_block(handle, n)}},
                                                {"release", true}});
        ASSERT_EQ(committed.status, 200u) << committed.body;
      }
      const Reply read = rest_.get(cache_.key_path(n));
      EXPECT_EQ(read.status, 200u) << one << " " << other;
      EXPECT_EQ(read.body, whole(n));
      EXPECT_EQ(read.header("Cairn-Tier"), one);
      EXPECT_EQ(cache_.counts().at("leases"), 0);
    }
  }
}

TEST_F(SeveralTiersTest, ABlockOfPartsMovesThroughTheTiers) {
  for (std::size_t shard = 0; shard < 2; ++shard) {
    ASSERT_EQ(rest_.put_bytes(cache_.key_path(1, query(shard, 2)), part(1, shard, 2)).status, 201u);
  }
  EXPECT_EQ(cache_.transfer(keys(1, 1), "disk", "move").at("state"), "done");
  const Reply read = rest_.get(cache_.key_path(1, query(3, 4)));
  EXPECT_EQ(read.header("Cairn-Tier"), "disk");
  EXPECT_EQ(read.body, part(1, 3, 4));
}

class ShardsTest : public ServedTest {};

TEST_F(ShardsTest, APutOfAPartSaysWhereTheBlockWillBe) {
  const TestCache cache =
      TestCache::made_of(rest_, sharded_body({{"pinned", {{"num_blocks", 4}}}}));
  for (std::size_t shard = 0; shard < 2; ++shard) {
    const Reply reply = rest_.put_bytes(cache.key_path(1, query(shard, 2)), part(1, shard, 2));
    EXPECT_EQ(reply.status, 201u);
    EXPECT_EQ(reply.document().at("status"), shard == 0 ? "pending" : "committed");
    EXPECT_EQ(reply.header("Location"), cache.key_path(1));
  }
}

TEST_F(ShardsTest, SaysWhatIsWrong) {
  const TestCache cache =
      TestCache::made_of(rest_, sharded_body({{"pinned", {{"num_blocks", 4}}}}));
  const std::string bytes(kWholeBytes / 2, 'x');
  const auto put = [&](const std::string& of) {
    return rest_.put_bytes(cache.key_path(1, of), bytes);
  };
  EXPECT_THAT(put("?shard=2&shards=2"), is_problem(422, "impossible"));
  EXPECT_THAT(put("?shard=0&shards=3"), is_problem(422, "impossible"));
  EXPECT_THAT(put("?shard=0&shards=8"), is_problem(422, "impossible"));
  EXPECT_THAT(put("?shard=0"), is_problem(400, "missing_field"));
  EXPECT_THAT(put("?shards=2"), is_problem(400, "missing_field"));
  EXPECT_THAT(put("?shard=-1&shards=2"), is_problem(400, "out_of_range"));
  EXPECT_THAT(put("?shard=0&shards=0"), is_problem(400, "out_of_range"));
  EXPECT_THAT(put("?shard=a&shards=2"), is_problem(400, "wrong_type"));
  EXPECT_THAT(put("?shard=0&shards=4"), is_problem(413));
  EXPECT_THAT(put("?shard=0&shards=1"), is_problem(400, "wrong_length"));
  EXPECT_THAT(rest_.get(cache.key_path(1, "?shard=4&shards=4")), is_refusal());
  EXPECT_THAT(rest_.get(cache.key_path(1, "?shard=0&shards=2&layer=0&outer=0")),
              is_problem(400, "malformed"));
  EXPECT_THAT(rest_.post(cache.path("/read?shard=3&shards=2"), {{"keys", keys(1, 1)}}),
              is_problem(422, "impossible"));
  EXPECT_THAT(rest_.post_bytes(cache.path("/write?shard=3&shards=2"),
                               write_body({{"keys", keys(1, 1)}}, bytes)),
              is_problem(422, "impossible"));
  EXPECT_THAT(rest_.post(cache.path("/load?shard=1"),
                         {{"agent", "a"}, {"keys", keys(1, 1)}, {"blocks", {0}}}),
              is_problem(400, "missing_field"));
}

TEST_F(ShardsTest, CachesWithoutShardsHaveNoParts) {
  TestCache cache(rest_, {.pinned = 4});
  const std::string bytes(kBlockBytes / 2, 'x');
  EXPECT_THAT(rest_.put_bytes(cache.key_path(1, query(0, 2)), bytes),
              is_problem(422, "impossible"));
  EXPECT_THAT(rest_.put_bytes(cache.key_path(1, query(0, 1)), block(1)),
              is_problem(422, "impossible"));
  const json allocated = cache.allocate(1, "pinned");
  const json& handle = allocated.at("blocks").at(0);
  const std::string lease = allocated.at("lease");
  EXPECT_THAT(rest_.put_bytes(cache.data_path(handle, lease, "&shard=0&shards=2"), bytes),
              is_problem(422, "impossible"));
  json one = TestCache::commit_block(handle, 1);
  one.update({{"shard", 0}, {"shards", 2}});
  EXPECT_THAT(rest_.post(cache.path("/commit"), {{"lease", lease}, {"blocks", {one}}}),
              is_problem(422, "impossible"));
}

TEST_F(ShardsTest, APartIsCommittedOnlyOnceItIsWritten) {
  TestCache cache = TestCache::made_of(rest_, sharded_body({{"pinned", {{"num_blocks", 4}}}}));
  const json allocated = cache.allocate(1, "pinned");
  const json& handle = allocated.at("blocks").at(0);
  const std::string lease = allocated.at("lease");
  json one = TestCache::commit_block(handle, 1);
  one.update({{"shard", 1}, {"shards", 2}});
  const json commit = {{"lease", lease}, {"blocks", {one}}};
  EXPECT_THAT(rest_.post(cache.path("/commit"), commit), is_problem(409, "state_conflict"));
  ASSERT_EQ(
      rest_.put_bytes(cache.data_path(handle, lease, "&shard=2&shards=4"), part(1, 2, 4)).status,
      204u);
  EXPECT_THAT(rest_.post(cache.path("/commit"), commit), is_problem(409, "state_conflict"));
  one.erase("shards");
  EXPECT_THAT(rest_.post(cache.path("/commit"), {{"lease", lease}, {"blocks", {one}}}),
              is_problem(400, "missing_field"));
}

TEST_F(ShardsTest, LayoutsTakeShardsThatDivideTheOuterDimension) {
  const auto make = [&](const json& layout) {
    return rest_.put("/v1/caches/shards-" + std::to_string(layout.at("outer_dim").get<int>()),
                     {{"layout", layout}, {"tiers", {{"pinned", {{"num_blocks", 2}}}}}});
  };
  EXPECT_THAT(make(sharded_layout(3)), is_problem(422, "impossible_shape"));
  EXPECT_THAT(make(sharded_layout(0)), is_problem(400, "out_of_range"));
  json many = sharded_layout(1024);
  many["outer_dim"] = 1024;
  EXPECT_EQ(make(many).status, 201u);
  EXPECT_EQ(make(many).status, 200u);
  EXPECT_EQ(rest_.get("/v1/caches/shards-1024").document().at("layout").at("shards"), 1024);
  many["outer_dim"] = 2048;
  EXPECT_THAT(make(many), is_problem(422, "impossible_shape"));
  json none = sharded_layout();
  none.erase("shards");
  EXPECT_THAT(make(none), is_problem(422, "impossible_shape"));
  json state = state_group();
  state["layout"]["shards"] = 1;
  EXPECT_THAT(rest_.put("/v1/caches/state", {{"block_tokens", kBlockTokens},
                                             {"kv_groups", {state}},
                                             {"tiers", {{"pinned", {{"size_bytes", 1 << 20}}}}}}),
              is_problem(422, "impossible_shape"));
}

// Engines on the same host write their parts in place.
TEST_F(ShardsTest, PartsWrittenInPlaceMakeOneBlock) {
  TestCache cache = TestCache::made_of(rest_, sharded_body({{"pinned", {{"num_blocks", 4}}}}));
  MappedTier mapped(rest_.post(cache.path("/tiers/pinned/export")).document());
  for (std::size_t shard = 0; shard < 2; ++shard) {
    const json allocated = cache.allocate(1, "pinned");
    const json& handle = allocated.at("blocks").at(0);
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      for (std::size_t head = 2 * shard; head < 2 * shard + 2; ++head) {
        mapped.write({handle.at("slot"), layer, head},
                     whole(1).substr((layer * kHeads + head) * kRegionBytes, kRegionBytes));
      }
    }
    json one = TestCache::commit_block(handle, 1);
    one.update({{"shard", shard}, {"shards", 2}});
    const Reply committed =
        rest_.post(cache.path("/commit"),
                   {{"lease", allocated.at("lease")}, {"blocks", {one}}, {"release", true}});
    ASSERT_EQ(committed.status, 200u) << committed.body;
    EXPECT_EQ(committed.document().at("blocks").at(0).at("status"),
              shard == 0 ? "pending" : "committed");
  }
  EXPECT_TRUE(rest_.get(cache.key_path(1)).body == whole(1));
  EXPECT_EQ(cache.count("pinned", "free"), 3);
}

// Two ranks store from their own memory, and four load into theirs.
TEST(ShardsOfAgents, RanksStoreAndLoadTheirParts) {
  constexpr std::size_t kBlocks = 4;
  UnixServer served;
  Rest& rest = served.rest;
  TestCache cache = TestCache::made_of(rest, sharded_body({{"device", {{"num_blocks", 8}}},
                                                           {"pinned", {{"num_blocks", 8}}},
                                                           {"disk", {{"num_blocks", 8}}}}));
  // A rank's blocks, one after the other.
  const auto memory_of = [&](const std::string& name, std::size_t ranks) {
    const std::size_t size_bytes = kBlocks * kWholeBytes / ranks;
    auto file = std::make_shared<const FileDescriptor>(
        ::memfd_create("rank", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(file->get(), static_cast<::off_t>(size_bytes)), 0);
    EXPECT_EQ(::fcntl(file->get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    json shape = sharded_layout();
    shape.erase("shards");
    shape["outer_dim"] = kHeads / ranks;
    const json region = {
        {"kind", "shm"}, {"descriptor", 0}, {"offset_bytes", 0}, {"size_bytes", size_bytes}};
    const Reply made = rest.put("/v1/agents/" + name,
                                {{"num_blocks", kBlocks},
                                 {"layout", "fully_contiguous"},
                                 {"shape", shape},
                                 {"regions", {region}}},
                                {file});
    EXPECT_EQ(made.status, 201u) << made.body;
    return file;
  };
  const auto copy = [&](const std::string& verb, std::size_t shard, std::size_t shards,
                        const json& more) {
    json body = {{"agent", "rank" + std::to_string(shard)}, {"wait_ms", 60'000}};
    body.update(more);
    return rest.post(cache.path("/" + verb + query(shard, shards)), body);
  };
  for (std::size_t shard = 0; shard < 2; ++shard) {
    const auto file = memory_of("rank" + std::to_string(shard), 2);
    for (int n = 1; n <= 3; ++n) {
      const std::string bytes = part(n, shard, 2);
      ASSERT_EQ(::pwrite(file->get(), bytes.data(), bytes.size(),
                         static_cast<::off_t>(static_cast<std::size_t>(n) * bytes.size())),
                static_cast<::ssize_t>(bytes.size()));
    }
    for (const std::string tier : {"device", "pinned"}) {
      // Keys 1 and 2 in one tier, key 3 in the other.
      const json keys_here = tier == "device" ? keys(3, 1) : keys(1, 2);
      const json blocks_here = tier == "device" ? json::array({3}) : json::array({1, 2});
      const Reply stored =
          copy("store", shard, 2, {{"keys", keys_here}, {"blocks", blocks_here}, {"tier", tier}});
      ASSERT_EQ(stored.status, 200u) << stored.body;
      EXPECT_EQ(stored.document().at("state"), "done") << stored.body;
      EXPECT_EQ(stored.document().at("bytes"), keys_here.size() * kWholeBytes / 2);
    }
    EXPECT_THAT(copy("store", shard, 2, {{"keys", keys(9, 1)}, {"blocks", {0}}, {"tier", "disk"}}),
                is_problem(422, "impossible"));
    EXPECT_THAT(copy("store", shard, 4, {{"keys", keys(9, 1)}, {"blocks", {0}}}),
                is_problem(422, "impossible"));
    EXPECT_EQ(cache.match(keys(1, 3), 0).at("matched"), shard == 0 ? 0 : 3);
    EXPECT_TRUE(rest.del("/v1/agents/rank" + std::to_string(shard)).ok());
  }
  for (int n = 1; n <= 3; ++n) EXPECT_TRUE(rest.get(cache.key_path(n)).body == whole(n));
  EXPECT_EQ(cache.count("device", "evictable"), 1);
  EXPECT_EQ(cache.count("pinned", "evictable"), 2);
  EXPECT_EQ(cache.transfer(keys(2, 1), "disk", "move").at("state"), "done");
  for (std::size_t shard = 0; shard < 4; ++shard) {
    const auto file = memory_of("rank" + std::to_string(shard), 4);
    const Reply loaded = copy("load", shard, 4, {{"keys", keys(1, 3)}, {"blocks", {3, 0, 2}}});
    ASSERT_EQ(loaded.status, 200u) << loaded.body;
    EXPECT_EQ(loaded.document().at("state"), "done") << loaded.body;
    const std::size_t places[] = {3, 0, 2};
    for (int n = 1; n <= 3; ++n) {
      std::string bytes(kWholeBytes / 4, '\0');
      ASSERT_EQ(::pread(file->get(), bytes.data(), bytes.size(),
                        static_cast<::off_t>(places[n - 1] * bytes.size())),
                static_cast<::ssize_t>(bytes.size()));
      EXPECT_TRUE(bytes == part(n, shard, 4)) << n << " " << shard;
    }
  }
}

// If room is needed, blocks that lack parts go first.
TEST_F(ShardsTest, ABlockThatLacksPartsMakesRoom) {
  TestCache cache = TestCache::made_of(rest_, sharded_body({{"pinned", {{"num_blocks", 4}}}}));
  for (int n = 1; n <= 4; ++n) {
    ASSERT_EQ(rest_.put_bytes(cache.key_path(n, query(0, 2)), part(n, 0, 2)).status, 201u);
  }
  const std::string lease = cache.allocate(2, "pinned").at("lease");
  ASSERT_TRUE(rest_.del("/v1/leases/" + lease).ok());
  // The two that were begun first have gone.
  for (int n = 1; n <= 4; ++n) {
    const Reply reply = rest_.put_bytes(cache.key_path(n, query(1, 2)), part(n, 1, 2));
    EXPECT_EQ(reply.document().at("status"), n <= 2 ? "pending" : "committed") << n;
  }
}

// Parts that nobody completes.
class AbandonedTest : public ServedTest {
 protected:
  static void SetUpTestSuite() { start({"--partial-block-ms", "200"}); }
};

TEST_F(AbandonedTest, ABlockWithoutItsOtherPartsIsDropped) {
  TestCache cache = TestCache::made_of(rest_, sharded_body({{"pinned", {{"num_blocks", 8}}}}));
  ASSERT_EQ(rest_.put_bytes(cache.key_path(1, query(0, 2)), part(1, 0, 2)).status, 201u);
  const json allocated = cache.allocate(1, "pinned");
  const json& handle = allocated.at("blocks").at(0);
  const std::string lease = allocated.at("lease");
  ASSERT_EQ(
      rest_.put_bytes(cache.data_path(handle, lease, "&shard=0&shards=2"), part(2, 0, 2)).status,
      204u);
  ASSERT_EQ(rest_
                .post(cache.path("/commit"), {{"lease", lease},
                                              {"blocks", {TestCache::commit_block(handle, 2)}},
                                              {"release", true}})
                .status,
            200u);
  ASSERT_TRUE(eventually([&] { return cache.count("pinned", "free") == 8; }));
  EXPECT_EQ(cache.counts().at("leases"), 0);
  // It starts again.
  EXPECT_EQ(rest_.put_bytes(cache.key_path(1, query(1, 2)), part(1, 1, 2)).document().at("status"),
            "pending");
  EXPECT_EQ(rest_.put_bytes(cache.key_path(1, query(0, 2)), part(1, 0, 2)).document().at("status"),
            "committed");
}

}  // namespace
}  // namespace cairn::e2e
