// The holders of names, in a real redis-server.
#include <csignal>
#include <thread>

#include "tests/store/store_client.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;

TEST(RedisHolders, ReportsHoldersWithTheirMarks) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  EXPECT_EQ(store.announce({"a", "b"}, "one", 60'000, 1), 2u);
  EXPECT_EQ(store.announce({"b"}, "two", 60'000, 2), 1u);
  EXPECT_THAT(store.holders({"a", "b", "c"}),
              ElementsAre(Optional(ElementsAre("one/1")), Optional(ElementsAre("one/1", "two/2")),
                          Optional(IsEmpty())));
}

TEST(RedisHolders, AnnouncingAgainReplacesTheMark) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  store.announce({"a"}, "one", 60'000, 1);
  store.announce({"a"}, "one", 60'000, 2);
  EXPECT_THAT(store.holders({"a"}), ElementsAre(Optional(ElementsAre("one/2"))));
}

TEST(RedisHolders, WithdrawRemovesAHolderAndTheLastRemovesTheEntry) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  store.announce({"a"}, "one");
  store.announce({"a"}, "two");
  (*store).withdraw({.names = {"a", "never"}, .who = "one"});
  EXPECT_THAT(store.holders({"a"}), ElementsAre(Optional(ElementsAre("two/0"))));
  (*store).withdraw({.names = {"a"}, .who = "two"});
  EXPECT_THAT(store.holders({"a"}), ElementsAre(Optional(IsEmpty())));
  EXPECT_EQ(redis.ask({"DBSIZE"}), "0");
}

TEST(RedisHolders, HoldersExpireUnlessTheyAnnounceAgain) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  store.announce({"b"}, "one", 50);
  store.announce({"b"}, "two", 60'000);
  // Announced last, so it expires last: once it is gone, "one" has expired in "b", too.
  store.announce({"a"}, "one", 50);
  while (redis.ask({"EXISTS", "a"}) != "0") {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // The entry lasts as long as its last holder. The next announcement removes expired holders.
  EXPECT_EQ(store.announce({"b"}, "three", 50), 1u);
  EXPECT_THAT(store.holders({"b"}), ElementsAre(Optional(ElementsAre("three/0", "two/0"))));
  EXPECT_GT(std::stoi(redis.ask({"PTTL", "b"})), 1'000);
}

TEST(RedisHolders, ReturnsAtMostEightHolders) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  for (int i = 0; i < 40; ++i) store.announce({"a"}, "host" + std::to_string(i));
  EXPECT_THAT(store.holders({"a"}), ElementsAre(Optional(SizeIs(8))));
}

TEST(RedisHolders, DoesNotWaitForAStoppedStore) {
  RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  store.announce({"a"}, "one");
  redis.signal(SIGSTOP);
  EXPECT_THAT(store.holders({"a"}, std::chrono::milliseconds(2)), ElementsAre(std::nullopt));
  redis.signal(SIGCONT);
  EXPECT_THAT(store.holders({"a"}), ElementsAre(Optional(ElementsAre("one/0"))));
}

TEST(RedisHolders, ANameOfAnotherTypeHasNoHolders) {
  const RedisProcess redis;
  StoreClient store(redis);
  store.until_ready();
  ASSERT_EQ(redis.ask({"SET", "a", "text"}), "OK");
  EXPECT_EQ(store.announce({"a", "b"}, "one"), 1u);
  EXPECT_THAT(store.holders({"a"}), ElementsAre(std::nullopt));
}

}  // namespace
}  // namespace cairn::testing
