// Events about values in the store that servers share.
#include <gmock/gmock.h>

#include "tests/e2e/shared_server.hpp"
#include "tests/e2e/support/event_listener.hpp"
#include "tests/e2e/support/zmq_peer.hpp"

namespace cairn::e2e {
namespace {

EventListener listen(const SharedHost& host, const TestCache& cache) {
  return {host.server.endpoint(), "?cache=" + cache.name()};
}

std::string summary(const SseEvent& event) {
  return event.name + " " + event.data.at("tier").get<std::string>() + " " +
         event.data.at("keys").dump();
}
std::string of_key(const std::string& what, int n) { return what + " " + json{key(n)}.dump(); }

TEST(SharedEventsTest, ReportsStoredAndMissingSharedBlocks) {
  const RedisProcess redis;
  SharedHost one(redis);
  one.wait_until_ready();
  TestCache cache = TestCache::made_of(one.rest, shared_body());
  EventListener listener = listen(one, cache);
  cache.store(1);
  EXPECT_EQ(summary(listener.next()), of_key("stored pinned", 1));
  EXPECT_EQ(summary(listener.next()), of_key("stored shared", 1));
  cache.store(2, "?parent=" + key(1));
  EXPECT_EQ(summary(listener.next()), of_key("stored pinned", 2));
  const SseEvent second = listener.next();
  EXPECT_EQ(summary(second), of_key("stored shared", 2));
  EXPECT_EQ(second.data.at("parent"), key(1));
  // The store evicts without notice.
  redis.ask({"FLUSHALL"});
  ASSERT_EQ(one.rest.del(cache.key_path(1)).status, 204U);
  EXPECT_EQ(summary(listener.next()), of_key("removed pinned", 1));
  const json match = one.rest.post(cache.path("/match"), {{"keys", {key(1)}}}).document();
  EXPECT_EQ(match.at("shared_matched"), 0);
  EXPECT_EQ(summary(listener.next()), of_key("removed shared", 1));
}

TEST(SharedEventsTest, ReportsOnlyItsOwnSharedBlocks) {
  TwoHosts hosts;
  auto& [redis, one, other, here, there] = hosts;
  here.store(1);
  wait_for_values(redis, 1);
  EventListener listener = listen(other, there);
  const auto metric = [&](const std::string& event) {
    return hosts.there.metric("cairn_shared_blocks_total", "event=\"" + event + "\"");
  };
  there.store(1);
  EXPECT_TRUE(eventually([&] { return metric("there_already") == 1; }));
  there.store(2);
  EXPECT_EQ(summary(listener.next()), of_key("stored pinned", 1));
  EXPECT_EQ(summary(listener.next()), of_key("stored pinned", 2));
  EXPECT_EQ(summary(listener.next()), of_key("stored shared", 2));
}

TEST(SharedEventsTest, ReportsAWrongValueAsRemoved) {
  TwoHosts hosts;
  auto& [redis, one, other, here, there] = hosts;
  here.store(1);
  wait_for_values(redis, 1);
  redis.ask({"SETRANGE", redis.ask({"KEYS", "cairn:*"}), "0", "CAIRNSV0"});
  EventListener listener = listen(other, there);
  const json match =
      other.rest.post(there.path("/match"), {{"keys", {key(1)}}, {"wait_ms", 30'000}}).document();
  EXPECT_EQ(match.at("matched"), 0);
  EXPECT_EQ(summary(listener.next()), of_key("removed shared", 1));
}

// The events of its own tiers already report where the blocks are.
TEST(SharedEventsTest, HoldersPlacementPublishesOnce) {
  const RedisProcess redis;
  SharedHost one(redis);
  one.wait_until_ready();
  TestCache cache = TestCache::made_of(one.rest, shared_body({{"placement", "holders"}}));
  EventListener listener = listen(one, cache);
  cache.store(1);
  wait_for_values(redis, 1);
  ASSERT_EQ(one.rest.del(cache.key_path(1)).status, 204U);
  EXPECT_TRUE(eventually([&] { return blocks_in(redis) == 0; }));
  cache.store(2);
  EXPECT_EQ(summary(listener.next()), of_key("stored pinned", 1));
  EXPECT_EQ(summary(listener.next()), of_key("removed pinned", 1));
  EXPECT_EQ(summary(listener.next()), of_key("stored pinned", 2));
}

TEST(SharedEventsTest, PublishesSharedBlocksAsRemote) {
  const RedisProcess redis;
  const fakes::TempDir folder;
  const std::string endpoint = "ipc://" + (folder.path() / "events").string();
  const json zmq = {{"zmq", {{"endpoint", endpoint}, {"topic", "kv"}, {"events", "maps"}}}};
  SharedHost one(redis, json::object(), {}, {{"events", zmq}});
  TestCache cache = TestCache::made_of(one.rest, shared_body());
  ZmqPeer router(ZMQ_SUB, endpoint);
  // The router misses events that are published before it has joined.
  json stored;
  for (int n = 0; stored.is_null() && n < 1'000; ++n) {
    const json allocation = cache.allocate(1, "pinned");
    json block = TestCache::commit_block(allocation.at("blocks").at(0), n);
    block["metadata"] = {{"tokens", {5, 6, 7, 8}}};
    ASSERT_TRUE(
        one.rest
            .post(cache.path("/commit"), {{"lease", allocation.at("lease")}, {"blocks", {block}}})
            .ok());
    ASSERT_TRUE(one.rest.del("/v1/leases/" + allocation.at("lease").get<std::string>()).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    while (stored.is_null()) {
      const auto frames = router.receive_now();
      if (frames.empty()) break;
      const json batch = json::from_msgpack(frames[2]);
      for (const json& event : batch.at(1)) {
        if (event.at("type") == "BlockStored" && event.at("medium") == "REMOTE") stored = event;
      }
    }
  }
  ASSERT_FALSE(stored.is_null());
  EXPECT_EQ(stored.at("block_hashes").size(), 1U);
  EXPECT_EQ(stored.at("token_ids"), json::array({5, 6, 7, 8}));
  EXPECT_EQ(stored.at("block_size"), kPageSize);
  EXPECT_FALSE(stored.contains("locality"));
}

}  // namespace
}  // namespace cairn::e2e
