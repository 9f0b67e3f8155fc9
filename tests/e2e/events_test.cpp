// What is told of what happens: over Server-Sent Events, and over ZeroMQ as a router reads it.
#include <zmq.h>

#include <fstream>

#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"

namespace cairn::e2e {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct SseEvent {
  std::string id;
  std::string name;
  json data;
};

// A client of /v1/events.
class Listener {
 public:
  Listener(const client::Endpoint& endpoint, const std::string& query,
           const std::vector<std::string>& fields = {})
      : connection_(endpoint) {
    connection_.send(head_text("GET", "/v1/events" + query, fields));
    const std::size_t end = wait_for("\r\n\r\n");
    head_ = raw_.substr(0, end);
    raw_.erase(0, end);
    while (text_.find("\n\n") == std::string::npos && more()) {
    }
    text_.erase(0, text_.find("\n\n") + 2);  // the greeting
  }

  const std::string& head() const { return head_; }
  // The next event; an empty name where none comes.
  SseEvent next() {
    while (true) {
      const std::size_t end = text_.find("\n\n");
      if (end == std::string::npos) {
        if (!more()) return {};
        continue;
      }
      const std::string block = text_.substr(0, end + 1);
      text_.erase(0, end + 2);
      if (block.starts_with(":")) continue;
      return {.id = field(block, "id: "),
              .name = field(block, "event: "),
              .data = json::parse(field(block, "data: "))};
    }
  }

 private:
  static std::string field(const std::string& block, const std::string& name) {
    const std::size_t at = block.find(name);
    if (at == std::string::npos) return "";
    return block.substr(at + name.size(), block.find('\n', at) - at - name.size());
  }
  std::size_t wait_for(const std::string& end) {
    while (raw_.find(end) == std::string::npos) {
      const std::string bytes = connection_.receive_some();
      if (bytes.empty()) return raw_.size();
      raw_ += bytes;
    }
    return raw_.find(end) + end.size();
  }
  // Takes one chunk out of raw_; false at the end.
  bool more() {
    const std::size_t line = wait_for("\r\n");
    if (line == raw_.size() && !raw_.ends_with("\r\n")) return false;
    const std::size_t bytes = std::stoul(raw_.substr(0, line), nullptr, 16);
    while (raw_.size() < line + bytes + 2) {
      const std::string more_bytes = connection_.receive_some();
      if (more_bytes.empty()) return false;
      raw_ += more_bytes;
    }
    text_ += raw_.substr(line, bytes);
    raw_.erase(0, line + bytes + 2);
    return bytes > 0;
  }

  RawConnection connection_;
  std::string head_;
  std::string raw_;   // as it came
  std::string text_;  // out of its chunks
};

class EventsTest : public ServedTest {
 protected:
  static void SetUpTestSuite() { start({"--events-kept", "256"}); }
  Listener listen(const TestCache& cache, const std::string& last_id = "") {
    std::vector<std::string> fields;
    if (!last_id.empty()) fields.push_back("Last-Event-ID: " + last_id);
    return {server().endpoint(), "?cache=" + cache.name(), fields};
  }
};

TEST_F(EventsTest, TellsWhatIsStoredAndRemoved) {
  TestCache cache(rest_, {.pinned = 4, .disk = 4});
  Listener listener = listen(cache);
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
  if (event.data.at("keys").size() == 1) {  // else both came at once
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

TEST_F(EventsTest, TellsThatACacheIsEmptyWhenItIsClearedAndWhenItIsDropped) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store(1);
  Listener listener = listen(cache);
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

TEST_F(EventsTest, SaysNothingOfAClearThatLeavesALeasedBlock) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store_prefix(1, 2, "pinned");
  const json held = cache.match(keys(1, 1), 30'000);
  Listener listener = listen(cache);
  EXPECT_TRUE(rest_.post(cache.path("/clear")).ok());
  cache.store(7);
  EXPECT_EQ(listener.next().data.at("keys"), json::array({key(2)}));
  const SseEvent event = listener.next();
  EXPECT_EQ(event.name, "stored");
  EXPECT_EQ(event.data.at("keys"), json::array({key(7)}));
}

TEST_F(EventsTest, GoesOnWhereAClientLeftOff) {
  TestCache cache(rest_, {.pinned = 8});
  std::string id;
  {
    Listener listener = listen(cache);
    cache.store(1);
    id = listener.next().id;
  }
  cache.store(2);
  cache.store(3);
  Listener again = listen(cache, id);
  json told = json::array();
  while (told.size() < 2) {
    const SseEvent event = again.next();
    ASSERT_EQ(event.name, "stored");
    for (const json& each : event.data.at("keys")) told.push_back(each);
  }
  EXPECT_EQ(told, json::array({key(2), key(3)}));
}

TEST_F(EventsTest, TellsAClientThatHasMissedSome) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store(1);
  for (const char* id : {"1", "9223372036854775807"}) {
    Listener listener = listen(cache, id);
    const SseEvent event = listener.next();
    EXPECT_EQ(event.name, "gap") << id;
    EXPECT_GT(event.data.at("lost"), 0) << id;
  }
  EXPECT_THAT(rest_.send({.target = "/v1/events", .headers = {{"Last-Event-ID", "x"}}}),
              is_problem(400, "malformed"));
}

TEST_F(EventsTest, TellsTheTokensThatABlocksMetadataHas) {
  TestCache cache(rest_, {.pinned = 4});
  Listener listener = listen(cache);
  const json allocation = cache.allocate(1, "pinned");
  json block = TestCache::commit_block(allocation.at("blocks").at(0), 1);
  block["metadata"] = {{"tokens", {5, 6, 7, 8}}};
  EXPECT_TRUE(
      rest_.post(cache.path("/commit"), {{"lease", allocation.at("lease")}, {"blocks", {block}}})
          .ok());
  EXPECT_EQ(listener.next().data.at("tokens"), json::array({5, 6, 7, 8}));
}

TEST_F(EventsTest, RefusesACacheThatIsNotThere) {
  EXPECT_THAT(rest_.get("/v1/events?cache=nowhere"), is_problem(404, "unknown_cache"));
  EXPECT_THAT(rest_.get("/v1/events?cashe=x"), is_problem(400, "unknown_field"));
}

// A ZeroMQ socket that connects to the server's.
class Peer {
 public:
  Peer(int kind, const std::string& endpoint)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, kind)) {
    const int patience_ms = 20'000;
    const int linger_ms = 0;
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    if (kind == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "kv", 2);
    zmq_connect(socket_, endpoint.c_str());
  }
  ~Peer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void send(const std::vector<std::string>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      zmq_send(socket_, frames[i].data(), frames[i].size(),
               i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    }
  }
  // Empty where none comes.
  std::vector<std::string> receive() {
    std::vector<std::string> frames;
    int more = 1;
    while (more != 0) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_, 0) < 0) return {};
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    return frames;
  }

 private:
  void* context_;
  void* socket_;
};

std::uint64_t number_of(const std::string& frame) {
  std::uint64_t number = 0;
  for (char byte : frame) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

json bytes_of(const std::string& hex) {
  const std::string bytes = from_hex(hex);
  return json::binary({bytes.begin(), bytes.end()});
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
  // A subscriber that is known to be heard: what is published before it has joined is lost to it.
  std::unique_ptr<Peer> subscribe(TestCache& cache) {
    auto peer = std::make_unique<Peer>(ZMQ_SUB, endpoint_);
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
  // Batches until one holds the key's event of that name.
  static json wait_for(Peer& peer, const std::function<bool(const json&)>& wanted,
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

TEST_F(ZmqEvents, PublishesWhatARouterReads) {
  serve({});
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
  ASSERT_EQ(stored.size(), 7u);
  EXPECT_EQ(stored.at(2), stored.at(1).size() == 1 ? bytes_of(key(1)) : json(nullptr));
  EXPECT_EQ(stored.at(3), json::array());
  EXPECT_EQ(stored.at(4), kPageSize);
  EXPECT_TRUE(stored.at(5).is_null());
  EXPECT_EQ(stored.at(6), "CPU");

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

TEST_F(ZmqEvents, WritesMapsAndNumbersWhereThatIsSet) {
  serve({{"events", "maps"}, {"hashes", "int64"}, {"rank", 3}});
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
  EXPECT_EQ(json::from_msgpack(frames[2]).at(2), 3);
}

TEST_F(ZmqEvents, ReplaysWhatASubscriberMissed) {
  serve({});
  TestCache cache(*rest_, {.pinned = 16});
  cache.store(1);
  cache.store(2);
  // Replay is asked for until both are there: they are published a moment after they are stored.
  std::vector<std::string> numbers;
  json told = json::array();
  EXPECT_TRUE(eventually([&] {
    Peer late(ZMQ_REQ, replay_);
    late.send({std::string(8, '\0')});
    // A REQ socket is given one answer a request; a router reads them with a DEALER.
    return !late.receive().empty();
  }));
  EXPECT_TRUE(eventually([&] {
    told = json::array();
    numbers.clear();
    Peer late(ZMQ_DEALER, replay_);
    late.send({"", std::string(8, '\0')});
    while (true) {
      const auto frames = late.receive();  // [empty, number, payload]
      if (frames.size() != 3) return false;
      if (frames[1] == std::string(8, '\xff')) break;
      numbers.push_back(frames[1]);
      const json batch = json::from_msgpack(frames[2]);
      for (const json& event : batch.at(1)) {
        for (const json& hash : event.at(1)) told.push_back(hash);
      }
    }
    return told.size() == 2;
  }));
  EXPECT_EQ(told, json::array({bytes_of(key(1)), bytes_of(key(2))}));
  EXPECT_EQ(number_of(numbers.front()), 0u);
  Peer later(ZMQ_DEALER, replay_);
  std::string from(8, '\0');
  from.back() = static_cast<char>(numbers.size());
  later.send({"", from});
  EXPECT_EQ(later.receive().at(1), std::string(8, '\xff')) << "nothing is newer";
}

}  // namespace
}  // namespace cairn::e2e
