// Values in a real cluster. Each name goes to the node of its slot, also after the slot moves.
#include <map>
#include <numeric>
#include <thread>

#include "tests/store/store_client.hpp"
#include "transport/store/redis_slots.hpp"

namespace cairn::testing {
namespace {

// Two primaries, half of the slots each.
class RedisCluster : public ::testing::Test {
 protected:
  void SetUp() override {
    for (RedisProcess* node : {&first_, &second_}) {
      ids_.push_back(node->ask({"CLUSTER", "MYID"}));
    }
    ASSERT_EQ(first_.ask({"CLUSTER", "ADDSLOTSRANGE", "0", "8191"}), "OK");
    ASSERT_EQ(second_.ask({"CLUSTER", "ADDSLOTSRANGE", "8192", "16383"}), "OK");
    ASSERT_EQ(first_.ask({"CLUSTER", "SET-CONFIG-EPOCH", "1"}), "OK");
    ASSERT_EQ(second_.ask({"CLUSTER", "SET-CONFIG-EPOCH", "2"}), "OK");
    ASSERT_EQ(first_.ask({"CLUSTER", "MEET", "127.0.0.1", std::to_string(second_.port())}), "OK");
    for (const RedisProcess* node : {&first_, &second_}) {
      while (node->ask({"CLUSTER", "INFO"}).find("cluster_state:ok") == std::string::npos) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }
  // A name in the first node's slots.
  static std::string name_of_first() {
    for (int i = 0;; ++i) {
      const std::string name = "n" + std::to_string(i);
      if (redis_slot_of(name) < 8192) return name;
    }
  }

  RedisProcess first_{{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}};
  RedisProcess second_{{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}};
  std::vector<std::string> ids_;
};

TEST_F(RedisCluster, EachNameGoesToItsNode) {
  StoreClient store(second_);
  store.until_ready();
  std::vector<std::string> names;
  for (unsigned i = 0; i < 50; ++i) {
    names.push_back("v" + std::to_string(i));
    EXPECT_TRUE(store.write(names.back(), some_bytes(10'000, i)).value());
  }
  EXPECT_GT(std::stoi(first_.ask({"DBSIZE"})), 5);
  EXPECT_GT(std::stoi(second_.ask({"DBSIZE"})), 5);
  for (unsigned i = 0; i < 50; ++i) {
    std::string back(10'000, '\0');
    EXPECT_TRUE(store.read(names[i], back).value());
    EXPECT_TRUE(back == some_bytes(10'000, i));
  }
  EXPECT_THAT(store.probe(names), ::testing::Each(RemoteStore::Presence::present));
}

TEST_F(RedisCluster, ReportsDurationsByNode) {
  StoreClient store(second_);
  store.until_ready();
  const auto writes = [&] {
    std::map<std::string, std::uint64_t> all;
    for (const auto& node : (*store).stats().by_node) {
      const auto& counts = node.operations[static_cast<std::size_t>(StoreOperation::write)].counts;
      all[node.node] = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    }
    return all;
  };
  std::map<std::string, std::uint64_t> expected;
  for (int i = 0; i < 20; ++i) {
    const std::string name = "w" + std::to_string(i);
    ASSERT_TRUE(store.write(name, "some").value());
    ++expected[redis_slot_of(name) < 8192 ? first_.address() : second_.address()];
  }
  ASSERT_EQ(expected.size(), 2U);
  EXPECT_EQ(writes(), expected);
}

TEST_F(RedisCluster, FollowsASlotWhileItMovesAndAfterwards) {
  StoreClient store(first_);
  store.until_ready();
  const std::string name = name_of_first();
  const std::string slot = std::to_string(redis_slot_of(name));
  ASSERT_TRUE(store.write(name, "moving").value());
  ASSERT_EQ(second_.ask({"CLUSTER", "SETSLOT", slot, "IMPORTING", ids_[0]}), "OK");
  ASSERT_EQ(first_.ask({"CLUSTER", "SETSLOT", slot, "MIGRATING", ids_[1]}), "OK");
  ASSERT_EQ(first_.ask({"MIGRATE", "127.0.0.1", std::to_string(second_.port()), name, "0", "5000"}),
            "OK");
  std::string back(6, '\0');
  EXPECT_TRUE(store.read(name, back).value());  // ASK
  EXPECT_EQ(back, "moving");
  for (RedisProcess* node : {&second_, &first_}) {
    ASSERT_EQ(node->ask({"CLUSTER", "SETSLOT", slot, "NODE", ids_[1]}), "OK");
  }
  back.assign(6, '\0');
  EXPECT_TRUE(store.read(name, back).value());  // MOVED
  EXPECT_EQ(back, "moving");
}

TEST_F(RedisCluster, AKilledNodeLosesOnlyItsOwnNames) {
  StoreClient store(first_);
  store.until_ready();
  const std::string name = name_of_first();
  std::string other;
  for (int i = 0; other.empty(); ++i) {
    if (redis_slot_of("o" + std::to_string(i)) >= 8192) other = "o" + std::to_string(i);
  }
  ASSERT_TRUE(store.write(name, "first").value());
  ASSERT_TRUE(store.write(other, "other").value());
  second_.kill();
  std::string back(5, '\0');
  EXPECT_EQ(store.read(other, back).error().code, ErrorCode::unavailable);
  EXPECT_TRUE(store.read(name, back).value());
  EXPECT_EQ(back, "first");
}

}  // namespace
}  // namespace cairn::testing
