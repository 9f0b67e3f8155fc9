// Events over Server-Sent Events, and over ZeroMQ as a router reads them.
#include <fstream>

#include "tests/e2e/support/event_listener.hpp"
#include "tests/e2e/support/served_test.hpp"
#include "tests/e2e/support/zmq_peer.hpp"

namespace cairn::e2e {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class EventsTest : public ServedTest {
 protected:
  static void SetUpTestSuite() { start({"--events-kept", "256"}); }
  EventListener listen(const TestCache& cache, const std::string& last_id = "") {
    std::vector<std::string> fields;
    if (!last_id.empty()) fields.push_back("Last-Event-ID: " + last_id);
    return {server().endpoint(), "?cache=" + cache.name(), fields};
  }
};

TEST_F(EventsTest, ReportsStoredAndRemovedBlocks) {
  TestCache cache(rest_, {.pinned = 4, .disk = 4});
  EventListener listener = listen(cache);
  EXPECT_THAT(listener.head(), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(listener.head(), HasSubstr("Content-Type: text/event-stream"));
  cache.store(1);
  cache.store(2, "?parent=" + key(1));
  SseEvent event = listener.next();
  EXPECT_EQ(event.name, "stored");
  EXPECT_EQ(event.data.at("cache"), cache.name());
  EXPECT_EQ(event.data.at("tier"), "pinned");
  EXPECT_EQ(event.data.at("keys")[0], key(1));
  EXPECT_TRUE(event.data.at("parent").is_null());
  if (event.data.at("keys").size() == 1) {  // otherwise both came in one event
    const std::uint64_t before = std::stoull(event.id);
    event = listener.next();
    EXPECT_EQ(event.data.at("keys"), json::array({key(2)}));
    EXPECT_EQ(event.data.at("parent"), key(1));
    EXPECT_GT(std::stoull(event.id), before);
  }
  cache.transfer({key(2)}, "disk", "move");
  event = listener.next();
  EXPECT_EQ(event.name, "stored");
  EXPECT_EQ(event.data.at("tier"), "disk");
  event = listener.next();
  EXPECT_EQ(event.name, "removed");
  EXPECT_EQ(event.data.at("tier"), "pinned");
  EXPECT_EQ(event.data.at("keys"), json::array({key(2)}));
}

TEST_F(EventsTest, ReportsAClearedAndADeletedCache) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store(1);
  EventListener listener = listen(cache);
  EXPECT_TRUE(rest_.post(cache.path("/clear")).ok());
  EXPECT_EQ(listener.next().name, "removed");
  SseEvent event = listener.next();
  EXPECT_EQ(event.name, "cleared");
  EXPECT_TRUE(event.data.at("tier").is_null());
  EXPECT_EQ(rest_.del(cache.path()).status, 204u);
  event = listener.next();
  EXPECT_EQ(event.name, "cleared");
  EXPECT_EQ(event.data.at("cache"), cache.name());
}

TEST_F(EventsTest, ReportsNoClearThatLeavesALeasedBlock) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store_prefix(1, 2, "pinned");
  const json held = cache.match(keys(1, 1), 30'000);
  EventListener listener = listen(cache);
  EXPECT_TRUE(rest_.post(cache.path("/clear")).ok());
  cache.store(7);
  EXPECT_EQ(listener.next().data.at("keys"), json::array({key(2)}));
  const SseEvent event = listener.next();
  EXPECT_EQ(event.name, "stored");
  EXPECT_EQ(event.data.at("keys"), json::array({key(7)}));
}

TEST_F(EventsTest, ResumesAfterTheLastEventId) {
  TestCache cache(rest_, {.pinned = 8});
  std::string id;
  {
    EventListener listener = listen(cache);
    cache.store(1);
    id = listener.next().id;
  }
  cache.store(2);
  cache.store(3);
  EventListener again = listen(cache, id);
  json reported = json::array();
  while (reported.size() < 2) {
    const SseEvent event = again.next();
    ASSERT_EQ(event.name, "stored");
    for (const json& each : event.data.at("keys")) reported.push_back(each);
  }
  EXPECT_EQ(reported, json::array({key(2), key(3)}));
}

TEST_F(EventsTest, ReportsAGapOfLostEvents) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store(1);
  for (const char* id : {"1", "9223372036854775807"}) {
    EventListener listener = listen(cache, id);
    const SseEvent event = listener.next();
    EXPECT_EQ(event.name, "gap") << id;
    EXPECT_GT(event.data.at("lost"), 0) << id;
  }
  EXPECT_THAT(rest_.send({.target = "/v1/events", .headers = {{"Last-Event-ID", "x"}}}),
              is_problem(400, "malformed"));
}

TEST_F(EventsTest, ReportsTheTokensInABlocksMetadata) {
  TestCache cache(rest_, {.pinned = 4});
  EventListener listener = listen(cache);
  const json allocation = cache.allocate(1, "pinned");
  json block = TestCache::commit_block(allocation.at("blocks").at(0), 1);
  block["metadata"] = {{"tokens", {5, 6, 7, 8}}};
  EXPECT_TRUE(
      rest_.post(cache.path("/commit"), {{"lease", allocation.at("lease")}, {"blocks", {block}}})
          .ok());
  EXPECT_EQ(listener.next().data.at("tokens"), json::array({5, 6, 7, 8}));
}

TEST_F(EventsTest, RefusesAnUnknownCache) {
  EXPECT_THAT(rest_.get("/v1/events?cache=nowhere"), is_problem(404, "unknown_cache"));
  EXPECT_THAT(rest_.get("/v1/events?cashe=x"), is_problem(400, "unknown_field"));
}

std::uint64_t number_of(const std::string& frame) {
  std::uint64_t number = 0;
  for (char byte : frame) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

class ZmqEvents : public testing::Test {
 protected:
  void serve(const json& form) {
    json zmq = {{"endpoint", endpoint_}, {"replay_endpoint", replay_}, {"topic", "kv@{cache}"}};
    if (!form.is_null()) zmq.update(form);
    std::ofstream(folder_.path() / "config")
        << json{{"caches", json::array()}, {"events", {{"zmq", zmq}}}};
    server_ = std::make_unique<ServerProcess>(
        ServerSetup{.flags = {"--config", (folder_.path() / "config").string()}});
    rest_ = std::make_unique<Rest>(server_->endpoint());
  }
  // Returns a subscriber that has joined: it misses events that are published before that.
  std::unique_ptr<ZmqPeer> subscribe(TestCache& cache) {
    auto peer = std::make_unique<ZmqPeer>(ZMQ_SUB, endpoint_);
    std::atomic<bool> joined{false};
    std::thread knocking([&] {
      for (int n = 1000; !joined; ++n) {
        cache.store(n);
        EXPECT_TRUE(rest_->del(cache.key_path(n)).ok());
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
    EXPECT_FALSE(peer->receive().empty());
    joined = true;
    knocking.join();
    return peer;
  }
  // Receives batches until one has a wanted event.
  static json wait_for(ZmqPeer& peer, const std::function<bool(const json&)>& wanted,
                       std::vector<std::string>& frames) {
    while (true) {
      frames = peer.receive();
      if (frames.empty()) return {};
      const json batch = json::from_msgpack(frames[2]);
      for (const json& event : batch.at(1)) {
        if (wanted(event)) return event;
      }
    }
  }

  fakes::TempDir folder_;
  const std::string endpoint_ = "ipc://" + (folder_.path() / "events").string();
  const std::string replay_ = "ipc://" + (folder_.path() / "replay").string();
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<Rest> rest_;
};

const json kOldForm = {{"events", "arrays"}, {"hashes", "bytes"}};

TEST_F(ZmqEvents, PublishesWhatARouterReads) {
  serve(kOldForm);
  TestCache cache(*rest_, {.pinned = 16});
  auto router = subscribe(cache);
  cache.store(1);
  cache.store(2, "?parent=" + key(1));
  std::vector<std::string> frames;
  const json stored = wait_for(
      *router,
      [](const json& event) {
        const json& hashes = event.at(1);
        return event.at(0) == "BlockStored" && hashes.back() == bytes_of(key(2));
      },
      frames);
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0], "kv@" + cache.name());
  EXPECT_EQ(frames[1].size(), 8u);
  const json batch = json::from_msgpack(frames[2]);
  ASSERT_EQ(batch.size(), 3u);
  EXPECT_GT(batch.at(0).get<double>(), 1.6e9) << "seconds";
  EXPECT_EQ(batch.at(2), 0);
  ASSERT_EQ(stored.size(), 8u);
  EXPECT_EQ(stored.at(2), stored.at(1).size() == 1 ? bytes_of(key(1)) : json(nullptr));
  EXPECT_EQ(stored.at(3), json::array());
  EXPECT_EQ(stored.at(4), kPageSize);
  EXPECT_TRUE(stored.at(5).is_null());
  EXPECT_EQ(stored.at(6), "CPU");
  EXPECT_TRUE(stored.at(7).is_null());

  const std::uint64_t number = number_of(frames[1]);
  EXPECT_TRUE(rest_->del(cache.key_path(2)).ok());
  const json removed = wait_for(
      *router, [](const json& event) { return event.at(0) == "BlockRemoved"; }, frames);
  EXPECT_GE(number_of(frames[1]), number);
  EXPECT_EQ(removed, json::array({"BlockRemoved", json::array({bytes_of(key(2))}), "CPU"}));

  EXPECT_EQ(rest_->del(cache.path()).status, 204u);
  EXPECT_EQ(
      wait_for(
          *router, [](const json& event) { return event.at(0) == "AllBlocksCleared"; }, frames),
      json::array({"AllBlocksCleared"}));
}

TEST_F(ZmqEvents, WritesMapsAndNumbersByDefault) {
  serve({{"rank", 3}});
  TestCache cache(*rest_, {.pinned = 16});
  auto router = subscribe(cache);
  EXPECT_EQ(rest_->put_bytes(cache.path("/keys/0102030405060708090a"), block(1)).status, 201u);
  std::vector<std::string> frames;
  const json stored = wait_for(
      *router,
      [](const json& event) {
        return event.at("type") == "BlockStored" &&
               event.at("block_hashes") == json::array({0x030405060708090aull});
      },
      frames);
  EXPECT_TRUE(stored.at("parent_block_hash").is_null());
  EXPECT_EQ(stored.at("block_size"), kPageSize);
  EXPECT_EQ(stored.at("medium"), "CPU");
  EXPECT_EQ(stored.at("locality"), "LOCAL");
  EXPECT_TRUE(stored.at("lora_name").is_null());
  EXPECT_EQ(json::from_msgpack(frames[2]).at(2), 3);
}

// A block without tokens must not remove the tokens of the blocks reported with it.
TEST_F(ZmqEvents, KeepsTokensBesideABlockWithoutTokens) {
  serve({});
  TestCache cache(*rest_, {.pinned = 16});
  auto router = subscribe(cache);
  const json allocation = cache.allocate(3, "pinned");
  json blocks = json::array();
  for (int n = 0; n < 3; ++n) {
    json block =
        TestCache::commit_block(allocation.at("blocks").at(static_cast<std::size_t>(n)), n);
    if (n > 0) block["parent"] = key(n - 1);
    if (n != 1) block["metadata"] = {{"tokens", {10 * n, 1, 2, 3}}};
    blocks.push_back(block);
  }
  EXPECT_TRUE(
      rest_->post(cache.path("/commit"), {{"lease", allocation.at("lease")}, {"blocks", blocks}})
          .ok());
  const auto hash = [](int n) {
    const json bytes = bytes_of(key(n));
    std::uint64_t number = 0;
    for (const auto byte : bytes.get_binary()) number = number << 8 | byte;
    return json(number);
  };
  std::map<json, json> reported;  // by its hash
  while (reported.size() < 3) {
    const auto frames = router->receive();
    ASSERT_FALSE(frames.empty());
    const json batch = json::from_msgpack(frames[2]);
    for (const json& event : batch.at(1)) {
      if (event.at("type") != "BlockStored") continue;
      for (int n = 0; n < 3; ++n) {
        if (event.at("block_hashes") == json::array({hash(n)})) reported[hash(n)] = event;
      }
    }
  }
  for (int n = 0; n < 3; ++n) {
    const json& stored = reported.at(hash(n));
    EXPECT_EQ(stored.at("token_ids"), n == 1 ? json::array() : json::array({10 * n, 1, 2, 3}));
    EXPECT_EQ(stored.at("parent_block_hash"), n == 0 ? json(nullptr) : hash(n - 1));
  }
}

TEST_F(ZmqEvents, ReplaysMissedBatches) {
  serve(kOldForm);
  TestCache cache(*rest_, {.pinned = 16});
  cache.store(1);
  cache.store(2);
  // Ask for a replay until it has both: blocks are published a moment after they are stored.
  std::vector<std::string> numbers;
  json reported = json::array();
  EXPECT_TRUE(eventually([&] {
    ZmqPeer late(ZMQ_REQ, replay_);
    late.send({std::string(8, '\0')});
    // A REQ socket gets one reply per request; a router uses a DEALER.
    return !late.receive().empty();
  }));
  EXPECT_TRUE(eventually([&] {
    reported = json::array();
    numbers.clear();
    ZmqPeer late(ZMQ_DEALER, replay_);
    late.send({"", std::string(8, '\0')});
    while (true) {
      const auto frames = late.receive();  // [empty, number, payload]
      if (frames.size() != 3) return false;
      if (frames[1] == std::string(8, '\xff')) break;
      numbers.push_back(frames[1]);
      const json batch = json::from_msgpack(frames[2]);
      for (const json& event : batch.at(1)) {
        for (const json& hash : event.at(1)) reported.push_back(hash);
      }
    }
    return reported.size() == 2;
  }));
  EXPECT_EQ(reported, json::array({bytes_of(key(1)), bytes_of(key(2))}));
  EXPECT_EQ(number_of(numbers.front()), 0u);
  ZmqPeer later(ZMQ_DEALER, replay_);
  std::string from(8, '\0');
  from.back() = static_cast<char>(numbers.size());
  later.send({"", from});
  EXPECT_EQ(later.receive().at(1), std::string(8, '\xff')) << "no batch is newer";
}

// More batches than the queues of a socket hold.
TEST_F(ZmqEvents, ReplaysThousandsOfBatchesAndEnds) {
  serve({});
  TestCache one(*rest_, {.pinned = 1'500});
  TestCache other(*rest_, {.pinned = 1'500});
  constexpr int kStored = 2'500;
  // A batch has blocks of one cache.
  for (int n = 0; n < kStored; ++n) (n % 2 == 0 ? one : other).store(n);
  std::vector<std::uint64_t> numbers;
  EXPECT_TRUE(eventually([&] {
    numbers.clear();
    std::size_t reported = 0;
    ZmqPeer late(ZMQ_DEALER, replay_);
    late.send({"", std::string(8, '\0')});
    while (true) {
      const auto frames = late.receive();
      if (frames.size() != 3) return false;
      if (frames[1] == std::string(8, '\xff')) break;
      numbers.push_back(number_of(frames[1]));
      const json batch = json::from_msgpack(frames[2]);
      for (const json& event : batch.at(1)) reported += event.at("block_hashes").size();
    }
    return reported == kStored;
  }));
  ASSERT_GT(numbers.size(), 1'000U);
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], i);
}

TEST_F(ZmqEvents, RefusesABadEndpointAtStart) {
  std::ofstream(folder_.path() / "config")
      << json{{"caches", json::array()}, {"events", {{"zmq", {{"endpoint", "inproc://events"}}}}}};
  ChildProcess program({CAIRN_SERVER_PROGRAM, "--listen", "127.0.0.1:0", "--data-dir",
                        (folder_.path() / "data").string(), "--config",
                        (folder_.path() / "config").string()});
  EXPECT_NE(program.wait(), 0);
}

}  // namespace
}  // namespace cairn::e2e
