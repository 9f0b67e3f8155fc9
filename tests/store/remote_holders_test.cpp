// A store records the holders of blocks; their servers send the blocks.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/store/remote_host.hpp"

namespace cairn::testing {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Write = RemoteTierConfig::Write;

RemoteTierConfig holders(Write write = Write::on_commit, std::uint64_t ttl_ms = 60'000) {
  return {.placement = RemoteTierConfig::Placement::holders, .write = write, .ttl_ms = ttl_ms};
}

struct Fleet {
  std::unique_ptr<Host> host(const std::string& name, TierSizes sizes = {.pinned = 16},
                             const RemoteTierConfig& shared = holders()) {
    return std::make_unique<Host>(store, shared, sizes,
                                  ServedTo{.peers = &peers, .url = "http://" + name});
  }
  // The holders of the only entry.
  std::map<std::string, std::uint8_t>& only_entry() { return store.holders.begin()->second; }

  MemoryStore store;
  MemoryPeers peers;
};

TransferState state_of(Host& host, const RemoteTier::Beyond& beyond) {
  return host.rig.manager->transfer(beyond.transfers.at(0)).value().state;
}

TEST(RemoteHolders, AHostReadsBlocksFromAnotherHost) {
  Fleet fleet;
  const auto one = fleet.host("one");
  const auto other = fleet.host("other");
  one->put(keys(1, 5));
  EXPECT_THAT(fleet.store.values, IsEmpty());
  EXPECT_THAT(fleet.store.holders, SizeIs(5));
  const auto beyond = other->look(keys(1, 8));
  EXPECT_EQ(beyond.blocks, 5u);
  EXPECT_EQ(state_of(*other, beyond), TransferState::done);
  EXPECT_EQ(other->matched(keys(1, 8)), 5u);
  for (const BlockKey& each : keys(1, 5)) {
    EXPECT_EQ(other->rig.read(*other->cache, each).value(), bytes_of(each));
  }
  EXPECT_EQ(other->cache->parent(key(3)), key(2));
  EXPECT_EQ(other->tier->stats().fetched_blocks, 5u);
  EXPECT_EQ(one->tier->stats().announced, 5u);
}

TEST(RemoteHolders, ReadsManyBlocksWithFewRequests) {
  Fleet fleet;
  const auto one = fleet.host("one", {.pinned = 64});
  const auto other = fleet.host("other", {.pinned = 64});
  one->put(keys(1, 64));
  EXPECT_EQ(other->look(keys(1, 64)).blocks, 64u);
  EXPECT_EQ(other->matched(keys(1, 64)), 64u);
  EXPECT_THAT(fleet.peers.asked, SizeIs(4));
}

// A response ends before the first missing block and says nothing about later ones.
TEST(RemoteHolders, AMissingBlockRemovesOnlyItsOwnHolder) {
  Fleet fleet;
  const auto one = fleet.host("one");
  const auto other = fleet.host("other");
  one->put(keys(1, 5));
  ASSERT_TRUE(one->cache->erase(key(3)));
  EXPECT_EQ(state_of(*other, other->look(keys(1, 5))), TransferState::failed);
  EXPECT_EQ(other->matched(keys(1, 5)), 2u);
  EXPECT_THAT(fleet.store.holders, SizeIs(4));
  EXPECT_EQ(other->tier->stats().absent, 1u);
  EXPECT_THAT(fleet.peers.asked, SizeIs(2));
}

TEST(RemoteHolders, ReadingABlockMakesAHostItsHolder) {
  Fleet fleet;
  const auto one = fleet.host("one");
  const auto other = fleet.host("other");
  one->put(keys(1, 1));
  EXPECT_EQ(other->look(keys(1, 1)).blocks, 1u);
  other->settle();
  EXPECT_THAT(fleet.only_entry(), SizeIs(2));
}

// Puts the blocks one by one, a minute apart.
void put_in_turn(Host& host, const std::vector<std::uint64_t>& numbers) {
  for (const std::uint64_t number : numbers) {
    host.put(keys(number, 1));
    host.rig.clock.advance(std::chrono::minutes(1));
  }
}

// Puts block 10, then the prefix of blocks 1 to 3, then block 40.
void put_with_a_prefix_between(Host& host) {
  put_in_turn(host, {10});
  host.put(keys(1, 3));
  host.rig.clock.advance(std::chrono::minutes(1));
  put_in_turn(host, {40});
}

// So that few hosts keep the same blocks.
TEST(RemoteHolders, EvictsABlockReadByAnotherHostBeforeOlderBlocks) {
  Fleet fleet;
  const auto one = fleet.host("one", {.pinned = 4});
  const auto other = fleet.host("other");
  put_in_turn(*one, {10, 20, 30, 40});
  EXPECT_EQ(other->look(keys(20, 1)).blocks, 1u);
  one->put(keys(50, 1));
  EXPECT_EQ(one->matched(keys(20, 1)), 0u);
  EXPECT_EQ(one->matched(keys(10, 1)), 1u);
  EXPECT_EQ(other->matched(keys(20, 1)), 1u);
}

TEST(RemoteHolders, EvictsAPrefixReadByAnotherHostFromItsTail) {
  Fleet fleet;
  const auto one = fleet.host("one", {.pinned = 5});
  const auto other = fleet.host("other");
  put_with_a_prefix_between(*one);
  EXPECT_EQ(other->look(keys(1, 3)).blocks, 3u);
  one->put(keys(50, 1));
  EXPECT_EQ(one->matched(keys(1, 3)), 2u);
  EXPECT_EQ(one->matched(keys(10, 1)), 1u);
}

// If a conversation continues on another host, its last blocks are not used here again.
TEST(RemoteHolders, EvictsDescendantsOfAPrefixReadByAnotherHost) {
  Fleet fleet;
  const auto one = fleet.host("one", {.pinned = 5});
  const auto other = fleet.host("other");
  put_with_a_prefix_between(*one);
  EXPECT_EQ(other->look(keys(1, 2)).blocks, 2u);
  for (const std::uint64_t number : {50u, 60u, 70u}) one->put(keys(number, 1));
  EXPECT_EQ(one->matched(keys(1, 3)), 0u);
  EXPECT_EQ(one->matched(keys(10, 1)), 1u);
  EXPECT_EQ(one->matched(keys(40, 1)), 1u);
}

// Otherwise hosts would read a system prompt from each other again and again.
TEST(RemoteHolders, KeepsABlockReadByAnotherHostIfUsedHere) {
  Fleet fleet;
  const auto one = fleet.host("one", {.pinned = 4});
  const auto other = fleet.host("other");
  put_in_turn(*one, {10, 20, 30, 40});
  EXPECT_EQ(one->matched(keys(20, 1)), 1u);
  EXPECT_EQ(other->look(keys(20, 1)).blocks, 1u);
  one->put(keys(50, 1));
  EXPECT_EQ(one->matched(keys(20, 1)), 1u);
  EXPECT_EQ(one->matched(keys(10, 1)), 0u);
}

TEST(RemoteHolders, WithdrawsBlocksThatLeaveTheHost) {
  Fleet fleet;
  const auto one = fleet.host("one", {.pinned = 2});
  one->put(keys(1, 2));
  one->put(keys(10, 2));
  EXPECT_THAT(fleet.store.holders, SizeIs(2));
  ASSERT_TRUE(one->cache->erase(key(11)));
  one->settle();
  EXPECT_THAT(fleet.store.holders, SizeIs(1));
  EXPECT_EQ(one->tier->stats().withdrawn, 3u);
}

TEST(RemoteHolders, AnnouncesTheNewTierOfAMovedBlock) {
  Fleet fleet;
  const auto one = fleet.host("one", {.pinned = 1, .disk = 4});
  one->put(keys(1, 1));
  EXPECT_EQ(fleet.only_entry().begin()->second, index_of(Tier::pinned));
  const std::string name = fleet.store.holders.begin()->first;
  one->put(keys(10, 1));
  one->settle();
  EXPECT_EQ(fleet.store.holders.at(name).begin()->second, index_of(Tier::disk));
}

TEST(RemoteHolders, TheOnlyHolderFindsNoOtherHolder) {
  Fleet fleet;
  const auto one = fleet.host("one");
  one->put(keys(1, 2));
  EXPECT_EQ(one->look(keys(1, 2)).blocks, 0u);
  EXPECT_THAT(fleet.peers.asked, IsEmpty());
}

// The odds that one holder is the first choice for none of 64 blocks are 2^-64.
constexpr std::uint64_t kMany = 64;

TEST(RemoteHolders, ReadsFromTheNextHolderIfOneIsDown) {
  Fleet fleet;
  const auto one = fleet.host("one", {.pinned = kMany});
  const auto two = fleet.host("two", {.pinned = kMany});
  const auto other = fleet.host("other", {.pinned = kMany});
  one->put(keys(1, kMany));
  two->put(keys(1, kMany));
  fleet.peers.down.insert("http://one");
  const auto beyond = other->look(keys(1, kMany));
  EXPECT_EQ(state_of(*other, beyond), TransferState::done);
  EXPECT_EQ(other->matched(keys(1, kMany)), kMany);
  EXPECT_THAT(fleet.peers.asked, Contains("http://one"));
}

TEST(RemoteHolders, SpreadsReadsOverAllHolders) {
  Fleet fleet;
  const auto one = fleet.host("one", {.pinned = kMany});
  const auto two = fleet.host("two", {.pinned = kMany});
  const auto other = fleet.host("other", {.pinned = kMany});
  one->put(keys(1, kMany));
  two->put(keys(1, kMany));
  EXPECT_EQ(other->look(keys(1, kMany)).blocks, kMany);
  EXPECT_THAT(fleet.peers.asked, Contains("http://one"));
  EXPECT_THAT(fleet.peers.asked, Contains("http://two"));
}

TEST(RemoteHolders, PrefersHoldersInMemoryToHoldersOnDisk) {
  Fleet fleet;
  const auto slow = fleet.host("slow", {.disk = 16});
  const auto quick = fleet.host("quick");
  const auto other = fleet.host("other");
  ASSERT_TRUE(slow->rig.put(*slow->cache, {.keys = keys(1, 8), .tier = Tier::disk}));
  slow->settle();
  quick->put(keys(1, 8));
  EXPECT_EQ(other->look(keys(1, 8)).blocks, 8u);
  EXPECT_THAT(fleet.peers.asked, ::testing::Each("http://quick"));
}

TEST(RemoteHolders, AMissingHolderIsAMissAndIsSparedForAWhile) {
  Fleet fleet;
  const auto one = fleet.host("one");
  const auto other = fleet.host("other");
  one->put(keys(1, 3));
  fleet.peers.down.insert("http://one");
  const auto beyond = other->look(keys(1, 3));
  EXPECT_EQ(beyond.blocks, 3u);
  EXPECT_EQ(state_of(*other, beyond), TransferState::failed);
  EXPECT_EQ(other->matched(keys(1, 3)), 0u);
  EXPECT_EQ(other->look(keys(1, 3)).blocks, 0u);
  EXPECT_EQ(other->tier->stats().probes_spared, 1u);
  EXPECT_EQ(other->cache->stats().leases, 0u);
}

TEST(RemoteHolders, RemovesAHolderThatNoLongerHasTheBlock) {
  Fleet fleet;
  const auto one = fleet.host("one");
  const auto other = fleet.host("other");
  one->put(keys(1, 1));
  ASSERT_TRUE(one->cache->erase(key(1)));
  const auto beyond = other->look(keys(1, 1));
  EXPECT_EQ(state_of(*other, beyond), TransferState::failed);
  EXPECT_EQ(other->tier->stats().absent, 1u);
  EXPECT_THAT(fleet.store.holders, IsEmpty());
}

// Every byte of a response is checked.
TEST(RemoteHolders, AFlippedBitIsAMissAndRemovesTheHolder) {
  Fleet fleet;
  const auto one = fleet.host("one");
  for (std::size_t at = 0; at < 64 + kRemoteHeaderBytes; ++at) {
    one->put(keys(1, 1));
    const auto other = fleet.host("other");
    fleet.peers.spoil = [at](const std::string&, Bytes& answer) {
      answer[answer.size() - 1 - at] ^= std::byte{0x10};
    };
    const auto beyond = other->look(keys(1, 1));
    EXPECT_EQ(state_of(*other, beyond), TransferState::failed);
    EXPECT_EQ(other->matched(keys(1, 1)), 0u) << at;
    EXPECT_THAT(fleet.store.holders, IsEmpty()) << at;
    ASSERT_TRUE(one->cache->erase(key(1)));
    one->settle();
  }
}

TEST(RemoteHolders, CountsAWrongResponseAndReadsFromTheNextHolder) {
  Fleet fleet;
  const auto one = fleet.host("one", {.pinned = kMany});
  const auto two = fleet.host("two", {.pinned = kMany});
  const auto other = fleet.host("other", {.pinned = kMany});
  one->put(keys(1, kMany));
  two->put(keys(1, kMany));
  fleet.peers.spoil = [](const std::string& server, Bytes& answer) {
    if (server == "http://one") answer.front() ^= std::byte{1};
  };
  EXPECT_EQ(state_of(*other, other->look(keys(1, kMany))), TransferState::done);
  for (const BlockKey& each : keys(1, kMany)) {
    EXPECT_EQ(other->rig.read(*other->cache, each).value(), bytes_of(each));
  }
  const auto wrong = other->tier->stats().wrong;
  EXPECT_GT(wrong[static_cast<std::size_t>(WrongValue::checksum)], 0u);
}

TEST(RemoteHolders, CountsTruncatedAndSwappedResponsesByReason) {
  Fleet fleet;
  const auto one = fleet.host("one");
  const auto other = fleet.host("other");
  one->put(keys(1, 2));
  fleet.peers.spoil = [](const std::string&, Bytes& answer) { answer.pop_back(); };
  EXPECT_EQ(state_of(*other, other->look(keys(1, 1))), TransferState::failed);
  Bytes first;
  fleet.peers.spoil = [&](const std::string&, Bytes& answer) {
    if (first.empty()) first = answer;
    answer = first;
  };
  EXPECT_EQ(state_of(*other, other->look(keys(2, 1))), TransferState::done);
  other->rig.clock.advance(std::chrono::seconds(1));
  one->put(keys(3, 1));
  EXPECT_EQ(state_of(*other, other->look(keys(3, 1))), TransferState::failed);
  const auto wrong = other->tier->stats().wrong;
  EXPECT_EQ(wrong[static_cast<std::size_t>(WrongValue::length)], 1u);
  EXPECT_EQ(wrong[static_cast<std::size_t>(WrongValue::key)], 1u);
}

TEST(RemoteHolders, SkipsAMalformedEntry) {
  Fleet fleet;
  const auto one = fleet.host("one");
  const auto other = fleet.host("other");
  one->put(keys(1, 1));
  fleet.only_entry()["nonsense"] = 0;
  fleet.only_entry()["1 http://one a/../b"] = 0;
  EXPECT_EQ(state_of(*other, other->look(keys(1, 1))), TransferState::done);
  EXPECT_EQ(other->tier->stats().wrong[static_cast<std::size_t>(WrongValue::header)], 2u);
}

TEST(RemoteHolders, IgnoresHoldersOfAnotherNamespace) {
  Fleet fleet;
  const auto one = fleet.host("one");
  RemoteTierConfig elsewhere = holders();
  elsewhere.name_space = "elsewhere";
  const auto other = fleet.host("other", {.pinned = 16}, elsewhere);
  one->put(keys(1, 1));
  EXPECT_EQ(other->look(keys(1, 1)).blocks, 0u);
}

TEST(RemoteHolders, SecondUseAnnouncesABlockWhenAMatchFindsIt) {
  Fleet fleet;
  const auto one = fleet.host("one", {.pinned = 16}, holders(Write::second_use));
  one->put(keys(1, 3));
  EXPECT_THAT(fleet.store.holders, IsEmpty());
  const auto found = keys(1, 2);
  ASSERT_EQ(one->rig.match(*one->cache, found, 1'000).blocks.size(), 2u);
  one->tier->matched(views(found));
  one->settle();
  EXPECT_THAT(fleet.store.holders, SizeIs(2));
}

TEST(RemoteHolders, AnnouncesBlocksAgainBeforeTheyExpire) {
  Fleet fleet;
  const auto one = fleet.host("one");
  one->put(keys(1, 5));
  fleet.store.holders.clear();  // as if they expired
  for (int i = 0; i < 20; ++i) {
    one->rig.clock.advance(std::chrono::seconds(1));
    one->tiers.poll();
  }
  EXPECT_THAT(fleet.store.holders, SizeIs(5));
  // Once in each third of the TTL.
  EXPECT_LE(fleet.store.announced, 5u + 2 * 5u);
}

TEST(RemoteHolders, AnnouncesAllBlocksOnceTheStoreIsBack) {
  Fleet fleet;
  const auto one = fleet.host("one");
  fleet.store.is_down = true;
  one->put(keys(1, 3));
  EXPECT_EQ(one->look(keys(10, 3)).blocks, 0u);
  EXPECT_EQ(one->matched(keys(1, 3)), 3u);
  fleet.store.is_down = false;
  for (int i = 0; i < 10; ++i) {
    one->rig.clock.advance(std::chrono::seconds(1));
    one->tiers.poll();
  }
  EXPECT_THAT(fleet.store.holders, SizeIs(3));
}

TEST(RemoteHolders, AnnouncesAllBlocksWhicheverStoreCallFails) {
  for (int failing = 1;; ++failing) {
    Fleet fleet;
    const auto one = fleet.host("one");
    const auto other = fleet.host("other");
    fleet.store.failing_call = failing;
    one->put(keys(1, 3));
    one->put(keys(10, 3));
    const auto beyond = other->look(keys(1, 3));
    EXPECT_EQ(other->matched(keys(1, 3)), beyond.blocks) << failing;
    for (const BlockKey& each : keys(1, 3)) {
      const auto back = other->rig.read(*other->cache, each);
      if (back) {
        EXPECT_EQ(*back, bytes_of(each));
      }
    }
    EXPECT_EQ(other->cache->stats().leases, 0u);
    const bool failed = fleet.store.calls >= failing;
    for (int i = 0; i < 10; ++i) {
      one->rig.clock.advance(std::chrono::seconds(1));
      one->tiers.poll();
    }
    EXPECT_THAT(fleet.store.holders, SizeIs(6)) << failing;
    if (!failed) break;
  }
}

TEST(RemoteHolders, ReadsFromTheNextHolderWhicheverReadFails) {
  for (int failing = 1; failing <= 4; ++failing) {
    Fleet fleet;
    const auto one = fleet.host("one", {.pinned = 64});
    const auto two = fleet.host("two", {.pinned = 64});
    const auto other = fleet.host("other", {.pinned = 64});
    one->put(keys(1, 64));
    two->put(keys(1, 64));
    fleet.peers.failing_call = failing;
    EXPECT_EQ(state_of(*other, other->look(keys(1, 64))), TransferState::done) << failing;
    EXPECT_EQ(other->matched(keys(1, 64)), 64u) << failing;
    EXPECT_THAT(fleet.peers.asked, SizeIs(::testing::Gt(4u))) << failing;
  }
}

TEST(RemoteHolders, RefusesOnEvictAndAShortTtl) {
  Rig rig({.options = with_store()});
  CacheConfig config = small_cache({.pinned = 4});
  config.shared = holders(Write::on_evict);
  EXPECT_EQ(rig.manager->create_cache(config).error().code, ErrorCode::impossible);
  config.shared = holders(Write::on_commit, 10);
  EXPECT_EQ(rig.manager->create_cache(config).error().code, ErrorCode::out_of_range);
}

TEST(RemoteHolders, RequireAnAdvertisedUrl) {
  BlockManagerOptions options = with_store();
  options.is_advertised = false;
  Rig rig({.options = options});
  CacheConfig config = small_cache({.pinned = 4});
  config.shared = holders();
  const auto refused = rig.manager->create_cache(config);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().detail, ::testing::HasSubstr("shared.advertise"));
}

TEST(RemoteHolder, ReadsBackAWrittenEntry) {
  const RemoteHolder whole{.url = "https://10.0.0.7:7070",
                           .cache = "llama",
                           .host = "b00t",
                           .unix_path = "/run/a b/cairn.sock"};
  const auto read = RemoteHolder::read(whole.text()).value();
  EXPECT_EQ(read.url, whole.url);
  EXPECT_EQ(read.cache, whole.cache);
  EXPECT_EQ(read.host, whole.host);
  EXPECT_EQ(read.unix_path, whole.unix_path);
  for (const char* wrong :
       {"", "1", "1 ", "1 http://a", "1 http://a b/c", "2 http://a b", "1  b"}) {
    EXPECT_FALSE(RemoteHolder::read(wrong)) << wrong;
  }
}

TEST(RemoteHolder, RefusesAnEntryWithAnInvalidUrl) {
  for (const std::string url :
       {"unix:/run/other.sock", "http://a\x1b[2J", "http://\xff\xfe", "http://a\nb", "ftp://a", "a",
        "http://a/b", "http://a:0", "http://", "https://a\"b"}) {
    EXPECT_FALSE(RemoteHolder::read("1 " + url + " llama")) << url;
  }
}

TEST(RemoteHolder, LeavesOutAnInvalidSocketPath) {
  for (const std::string path : {"relative", "/run/../etc/x", "/a\nb", "/\x1b[2J", "/\xff"}) {
    const auto read = RemoteHolder::read("1 http://a llama b00t " + path);
    ASSERT_TRUE(read) << path;
    EXPECT_EQ(read->unix_path, "") << path;
  }
  const auto read = RemoteHolder::read(std::string("1 http://a llama b00t /a\0b", 26));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->unix_path, "");
}

}  // namespace
}  // namespace cairn::testing
