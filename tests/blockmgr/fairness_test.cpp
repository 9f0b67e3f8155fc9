// A token that asks for everything takes little from the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

const auto kOthers = std::make_shared<const std::string>("others");
const auto kGreedy = std::make_shared<const std::string>("greedy");

class FairnessTest : public ::testing::TestWithParam<EvictionKind> {
 protected:
  static constexpr std::uint32_t kPinned = 200;
  static constexpr int kSteps = 2'000;
  static constexpr int kConversations = 30;
  static constexpr int kBlocksEach = 6;

  struct Acts {
    bool pins = false;
    bool hints = false;
    bool retains = false;
    bool prefetches = false;
  };

  // The share of the others' blocks that their requests find in memory, in percent. Half of the
  // requests are those of the greedy token, and half of those are for new prompts.
  double found_by_others(const Acts& acts) {
    CacheConfig config = small_cache({.pinned = kPinned, .disk = 2 * kPinned});
    config.name = "fair" + std::to_string(++caches_);
    config.eviction = GetParam();
    cache_ = rig_.cache(config);
    std::mt19937 random(7);
    std::uint64_t asked = 0;
    std::uint64_t found = 0;
    std::vector<std::vector<BlockKey>> greedy;
    for (int step = 0; step < kSteps; ++step) {
      rig_.clock.advance_ms(50);
      const double at = std::uniform_real_distribution<>(0, 1)(random);
      const auto conversation = static_cast<std::uint64_t>(kConversations * at * at * at);
      const std::uint64_t in_memory =
          request(keys(1 + conversation * kBlocksEach, kBlocksEach), kOthers);
      if (step > kSteps / 4) {
        asked += kBlocksEach;
        found += in_memory;
      }
      if (greedy.empty() || random() % 2 == 0) {
        greedy.push_back(keys(1'000'000 + static_cast<std::uint64_t>(step) * 10, kBlocksEach));
        request(greedy.back(), kGreedy);
      } else {
        request(greedy[greedy.size() - 1 - random() % std::min<std::size_t>(greedy.size(), 50)],
                kGreedy);
      }
      const std::size_t most = std::min<std::size_t>(greedy.size(), 30);
      for (std::size_t i = 0; i < most; ++i) act(acts, greedy[greedy.size() - 1 - i]);
    }
    return 100.0 * static_cast<double>(found) / static_cast<double>(asked);
  }

 private:
  // As an engine: it uses what it finds, and stores the rest. Returns how many blocks were in
  // memory.
  std::uint64_t request(const std::vector<BlockKey>& prompt, const LeaseHolder& holder) {
    MatchResult match;
    EXPECT_TRUE(cache_->match(views(prompt), 10'000, match, {}, holder));
    std::uint64_t in_memory = 0;
    for (const auto& block : match.blocks) in_memory += block.tier == Tier::pinned ? 1u : 0u;
    if (match.lease) {
      const std::vector<KeyView> there = views(prompt);
      EXPECT_TRUE(cache_->onboard({.lease = *match.lease,
                                   .keys = std::span(there).first(match.blocks.size()),
                                   .tier = Tier::pinned}));
      rig_.scheduler->wait_idle();
      EXPECT_TRUE(cache_->release(*match.lease, {}));
    }
    const std::size_t here = match.blocks.size();
    if (here < prompt.size()) {
      const std::vector<BlockKey> rest(prompt.begin() + static_cast<std::ptrdiff_t>(here),
                                       prompt.end());
      std::optional<BlockKey> parent;
      if (here > 0) parent = prompt[here - 1];
      EXPECT_TRUE(rig_.put(*cache_, {.keys = rest, .parent = parent, .holder = holder}));
    }
    return in_memory;
  }

  void act(const Acts& acts, const std::vector<BlockKey>& prompt) {
    constexpr std::uint32_t kLongMs = 600'000;
    if (acts.pins) {
      EXPECT_TRUE(cache_->pin({.keys = prompt, .ttl_ms = kLongMs, .holder = kGreedy}));
    }
    if (acts.retains) {
      EXPECT_TRUE(
          cache_->retain({.keys = prompt, .priority = 100, .ttl_ms = kLongMs, .holder = kGreedy}));
    }
    if (acts.hints) {
      const std::vector<KeyView> named = views(prompt);
      const ReuseHint soon{.kind = ReuseHint::Kind::within, .within_ms = 1'000};
      EXPECT_TRUE(cache_->hint({.keys = named, .reuse = soon, .holder = kGreedy}));
    }
    if (acts.prefetches) {
      EXPECT_TRUE(cache_->prefetch({.keys = prompt, .holder = kGreedy}));
      rig_.scheduler->wait_idle();
    }
  }

  Rig rig_;
  std::shared_ptr<Cache> cache_;
  int caches_ = 0;
};

// Its pins keep a tenth of the tier, and all its guesses together a twentieth.
TEST_P(FairnessTest, OneTokenThatAsksForEverythingTakesLittleFromTheOthers) {
  const double without = found_by_others({});
  EXPECT_GT(without, 50);
  EXPECT_LT(without, 90);
  EXPECT_GE(found_by_others({.hints = true, .retains = true, .prefetches = true}), without - 2);
  // LRU has more use for the tenth that is pinned.
  const double points = GetParam() == EvictionKind::lru ? 3 : 2;
  EXPECT_GE(found_by_others({.pins = true, .hints = true, .retains = true, .prefetches = true}),
            without - points);
}

INSTANTIATE_TEST_SUITE_P(Orders, FairnessTest,
                         ::testing::Values(EvictionKind::lru, EvictionKind::class_hazard),
                         [](const auto& order) { return std::string(to_string(order.param)); });

}  // namespace
}  // namespace cairn::testing
