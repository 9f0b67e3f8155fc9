// Servers that advertise the same URL.
#include <gmock/gmock.h>

#include "tests/store/remote_host.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Servers {
  std::unique_ptr<Host> start(const std::string& instance, const std::string& url,
                              RemoteTierConfig::Placement placement) {
    return std::make_unique<Host>(store, RemoteTierConfig{.placement = placement},
                                  TierSizes{.pinned = 4},
                                  ServedTo{.peers = &peers, .url = url, .instance = instance});
  }
  std::unique_ptr<Host> start(const std::string& instance, const std::string& url = "http://a") {
    return start(instance, url, RemoteTierConfig::Placement::holders);
  }
  // Polls each host once a second.
  static void pass(std::initializer_list<Host*> hosts, int seconds) {
    for (int i = 0; i < seconds; ++i) {
      for (Host* host : hosts) {
        host->rig.clock.advance(std::chrono::seconds(1));
        host->tiers.poll();
      }
    }
  }

  MemoryStore store;
  MemoryPeers peers;
};

TEST(RemoteUrlWatch, TwoServersWithOneUrlNameEachOther) {
  Servers servers;
  const auto one = servers.start("h1/1");
  const auto two = servers.start("h2/2");
  const auto other = servers.start("h3/3", "http://b");
  Servers::pass({one.get(), two.get(), other.get()}, 20);
  EXPECT_THAT(one->tiers.same_url(), ElementsAre("h2/2"));
  EXPECT_THAT(two->tiers.same_url(), ElementsAre("h1/1"));
  EXPECT_THAT(other->tiers.same_url(), IsEmpty());
}

TEST(RemoteUrlWatch, NamesNoServerThatHasEnded) {
  Servers servers;
  const auto one = servers.start("h1/1");
  auto two = servers.start("h2/2");
  Servers::pass({one.get(), two.get()}, 20);
  two.reset();
  Servers::pass({one.get()}, 5);
  EXPECT_THAT(one->tiers.same_url(), IsEmpty());
}

// An entry of a killed server stays in the store until it expires.
TEST(RemoteUrlWatch, ARestartIgnoresTheEntryOfItsKilledPredecessor) {
  Servers servers;
  servers.store.holders["cairn-server:http://a"]["h1/0"] = 0;
  const auto one = servers.start("h1/1");
  Servers::pass({one.get()}, 10);
  EXPECT_THAT(one->tiers.same_url(), IsEmpty());
  servers.store.holders["cairn-server:http://a"].erase("h1/0");  // it expires
  Servers::pass({one.get()}, 20);
  EXPECT_THAT(one->tiers.same_url(), IsEmpty());
}

TEST(RemoteUrlWatch, IgnoresMalformedServerNames) {
  Servers servers;
  const auto one = servers.start("h1/1");
  auto& entry = servers.store.holders["cairn-server:http://a"];
  for (const std::string name : {"a\nb/1", "\x1b[2J", "\xff/1", "", "a\"/1"}) entry[name] = 0;
  entry[std::string(2'000, 'a')] = 0;
  entry["h2/2"] = 0;
  Servers::pass({one.get()}, 20);
  EXPECT_THAT(one->tiers.same_url(), ElementsAre("h2/2"));
}

TEST(RemoteUrlWatch, NamesNoServerIfTheStoreIsDown) {
  Servers servers;
  const auto one = servers.start("h1/1");
  const auto two = servers.start("h2/2");
  servers.store.is_down = true;
  Servers::pass({one.get(), two.get()}, 20);
  EXPECT_THAT(one->tiers.same_url(), IsEmpty());
  servers.store.is_down = false;
  Servers::pass({one.get(), two.get()}, 20);
  EXPECT_THAT(one->tiers.same_url(), ElementsAre("h2/2"));
}

TEST(RemoteUrlWatch, WritesNoUrlWithPlacementByValues) {
  Servers servers;
  const auto one = servers.start("h1/1", "http://a", RemoteTierConfig::Placement::values);
  Servers::pass({one.get()}, 20);
  EXPECT_THAT(servers.store.holders, IsEmpty());
}

}  // namespace
}  // namespace cairn::testing
