// Shadow caches and the optimum, compared with slow reference implementations.
#include "blockmgr/eviction/shadow_caches.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "blockmgr/eviction/optimum.hpp"
#include "blockmgr/eviction/policy.hpp"
#include "tests/blockmgr/eviction_traces.hpp"

namespace cairn {
namespace {

// LRU that evicts from the tail, by its definition.
class NaiveLru {
 public:
  explicit NaiveLru(std::size_t capacity) : capacity_(capacity) {}

  std::uint32_t request(const std::vector<std::uint64_t>& prompt) {
    ++now_;
    std::uint32_t hits = 0;
    while (hits < prompt.size() && present_.contains(prompt[hits])) ++hits;
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      if (!present_.contains(prompt[i])) {
        if (present_.size() == capacity_ && !evict()) break;
        present_[prompt[i]].parent = i > 0 ? prompt[i - 1] : 0;
      }
      // In a request the deepest block counts as the oldest.
      present_[prompt[i]].used = {now_, -static_cast<std::int64_t>(i)};
      pinned_.insert(prompt[i]);
    }
    pinned_.clear();
    return hits;
  }

 private:
  struct Block {
    std::uint64_t parent = 0;
    std::pair<std::uint64_t, std::int64_t> used;
  };
  bool evict() {
    std::set<std::uint64_t> parents;
    for (const auto& [hash, block] : present_) parents.insert(block.parent);
    const Block* oldest = nullptr;
    std::uint64_t victim = 0;
    for (const auto& [hash, block] : present_) {
      if (parents.contains(hash) || pinned_.contains(hash)) continue;
      if (oldest != nullptr && oldest->used < block.used) continue;
      oldest = &block;
      victim = hash;
    }
    return oldest != nullptr && present_.erase(victim) == 1;
  }

  std::size_t capacity_;
  std::uint64_t now_ = 0;
  std::map<std::uint64_t, Block> present_;
  std::set<std::uint64_t> pinned_;
};

TEST(ShadowCaches, LruMatchesItsDefinition) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Trace trace = random_trace(random, 300, 12);
    const std::size_t capacity = 3 + random() % 60;
    NaiveLru naive(capacity);
    ShadowCaches cache({.eviction = EvictionKind::lru,
                        .sizes = {{.capacity_blocks = static_cast<std::uint32_t>(capacity)}}});
    for (std::size_t i = 0; i < trace.prompts.size(); ++i) {
      ASSERT_EQ(cache.request({.blocks = trace.prompts[i]}), naive.request(trace.prompts[i])) << i;
    }
  }
}

TEST(ShadowCaches, AcceptsUnusualRequests) {
  for (const EvictionKind eviction : {EvictionKind::lru, EvictionKind::class_hazard}) {
    SCOPED_TRACE(to_string(eviction));
    ShadowCaches cache(
        {.eviction = eviction, .sizes = {{.capacity_blocks = 4}}, .ghost_blocks = 10});
    std::vector<std::uint64_t> longer(9);
    std::iota(longer.begin(), longer.end(), 100);
    EXPECT_EQ(cache.request({}), 0U);
    EXPECT_EQ(cache.request({.blocks = longer}), 0U);  // more than there is room for
    EXPECT_EQ(cache.request({.blocks = longer}), 4U);
    const std::vector<std::uint64_t> twice = {1, 2, 1, 2};
    EXPECT_EQ(cache.request({.blocks = twice}), 0U);
    EXPECT_EQ(cache.request({.blocks = twice}), 4U);
  }
}

// Caches that get the same requests learn the same. The shared beginnings of conversations are left
// out, since the first size decides whether they are hubs.
TEST(ShadowCaches, EachSizeHitsAsItDoesAlone) {
  constexpr std::uint32_t kGhosts = 65'536;
  const std::vector<std::uint32_t> sizes = {400, 150, 60};  // the longest prompt fits
  for (const EvictionKind eviction : {EvictionKind::lru, EvictionKind::class_hazard}) {
    SCOPED_TRACE(to_string(eviction));
    std::mt19937_64 random(11);
    Trace trace = conversations(random, {.requests = 3'000, .open = 30});
    for (auto& prompt : trace.prompts) prompt.erase(prompt.begin());
    ShadowCaches together({.eviction = eviction,
                           .sizes = {{.capacity_blocks = sizes[0]},
                                     {.capacity_blocks = sizes[1]},
                                     {.capacity_blocks = sizes[2]}},
                           .ghost_blocks = kGhosts});
    std::vector<ShadowCaches> alone;
    for (const std::uint32_t size : sizes) {
      alone.emplace_back(ShadowCaches::Options{
          .eviction = eviction, .sizes = {{.capacity_blocks = size}}, .ghost_blocks = kGhosts});
    }
    for (std::size_t i = 0; i < trace.prompts.size(); ++i) {
      const ShadowRequest request{.blocks = trace.prompts[i],
                                  .unix_ms = static_cast<std::int64_t>(100 * i),
                                  .end = {.output_tokens = static_cast<std::uint32_t>(i % 300)}};
      together.request(request);
      for (std::size_t size = 0; size < sizes.size(); ++size) {
        ASSERT_EQ(together.hits(size), alone[size].request(request))
            << "request " << i << " in " << sizes[size] << " blocks";
      }
    }
  }
}

// The room keeps a block that it had no room for, since another block follows it. It must remember
// the newer history: the older one would count twice.
TEST(ShadowRoom, RemembersABlockItHadNoRoomFor) {
  const auto policy = make_eviction_policy({.eviction = EvictionKind::class_hazard});
  ShadowRoom room(*policy, EvictionKind::class_hazard, {.capacity_blocks = 2});
  const BlockHistory first{.request = 1, .uses = 1};
  const auto ask = [&room](std::uint64_t hash, const BlockHistory& history) {
    const BlockHistory* const there = room.ask(hash);
    const bool is_known = there != nullptr && there->request == history.request;
    room.make_room();
    room.keep(hash, history);
    return is_known;
  };
  room.begin(1);
  for (const std::uint64_t hash : {1U, 2U}) ask(hash, first);
  for (const std::size_t number : {1U, 0U}) room.list(number, first);
  const BlockHistory second{.request = 2, .uses = 2};
  room.begin(2);
  EXPECT_TRUE(ask(2, first));  // it follows 1
  ask(3, second);              // there is no room
  EXPECT_EQ(room.ask(1), nullptr);
  EXPECT_FALSE(room.holds(2));
  room.note_unkept(1, second);
  room.list(0, second);
  room.begin(3);
  EXPECT_TRUE(ask(1, second));
}

TEST(ShadowCaches, SampledSizeMatchesACacheOfTheSample) {
  constexpr std::uint32_t kOneIn = 4;
  std::mt19937_64 random(12);
  const Trace trace = conversations(random, {.requests = 2'000, .open = 30});
  ShadowCaches both(
      {.sizes = {{.capacity_blocks = 200}, {.capacity_blocks = 40, .one_in = kOneIn}}});
  ShadowCaches of_sample({.sizes = {{.capacity_blocks = 40}}});
  for (std::size_t i = 0; i < trace.prompts.size(); ++i) {
    std::vector<std::uint64_t> sample = trace.prompts[i];
    std::erase_if(sample, [](std::uint64_t hash) { return hash % kOneIn != 0; });
    both.request({.blocks = trace.prompts[i]});
    ASSERT_EQ(both.hits(1), of_sample.request({.blocks = sample})) << "request " << i;
  }
}

// The most hits of all possible evictions, by trying each.
class EveryWay {
 public:
  EveryWay(const Trace& trace, std::size_t capacity) : trace_(trace), capacity_(capacity) {
    for (const auto& prompt : trace.prompts) {
      for (std::size_t i = 1; i < prompt.size(); ++i) parents_[prompt[i]] = prompt[i - 1];
    }
  }
  std::uint64_t best() { return best_from(0, {}); }

 private:
  using Blocks = std::set<std::uint64_t>;
  std::uint64_t best_from(std::size_t request, const Blocks& present) {
    if (request == trace_.prompts.size()) return 0;
    const auto [known, is_new] = memo_.try_emplace({request, present}, 0);
    if (!is_new) return known->second;
    const auto& prompt = trace_.prompts[request];
    std::uint64_t hits = 0;
    while (hits < prompt.size() && present.contains(prompt[hits])) ++hits;
    const std::uint64_t best = hits + store(request, hits, present);
    return memo_[{request, present}] = best;
  }
  // Stores the prompt's blocks from `at` on.
  std::uint64_t store(std::size_t request, std::size_t at, const Blocks& present) {
    const auto& prompt = trace_.prompts[request];
    if (at == prompt.size()) return best_from(request + 1, present);
    if (present.size() < capacity_) {
      Blocks more = present;
      more.insert(prompt[at]);
      return store(request, at + 1, more);
    }
    Blocks parents;
    for (const std::uint64_t block : present) {
      if (const auto found = parents_.find(block); found != parents_.end()) {
        parents.insert(found->second);
      }
    }
    std::uint64_t best = 0;
    bool any = false;
    for (const std::uint64_t block : present) {
      if (parents.contains(block) || std::ranges::count(prompt, block) > 0) continue;
      any = true;
      Blocks fewer = present;
      fewer.erase(block);
      best = std::max(best, store(request, at, fewer));
    }
    return any ? best : best_from(request + 1, present);
  }

  const Trace& trace_;
  std::size_t capacity_;
  std::map<std::uint64_t, std::uint64_t> parents_;
  std::map<std::pair<std::size_t, Blocks>, std::uint64_t> memo_;
};

TEST(Optimum, MatchesExhaustiveSearch) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Trace trace = random_trace(random, 9, 4);
    const std::size_t capacity = 2 + random() % 4;
    EXPECT_EQ(optimum_hits(trace.requests(), static_cast<std::uint32_t>(capacity)),
              EveryWay(trace, capacity).best());
  }
}

TEST(Optimum, NoOnlineOrderBeatsIt) {
  std::mt19937_64 random(7);
  const Trace trace = random_trace(random, 3000, 20);
  for (const std::uint32_t capacity : {10U, 100U, 1000U}) {
    const std::uint64_t most = optimum_hits(trace.requests(), capacity);
    for (const EvictionKind eviction : {EvictionKind::lru, EvictionKind::class_hazard}) {
      ShadowCaches cache({.eviction = eviction,
                          .sizes = {{.capacity_blocks = capacity}},
                          .ghost_blocks = 8 * capacity});
      std::uint64_t hits = 0;
      for (const ShadowRequest& request : trace.requests()) hits += cache.request(request);
      EXPECT_LE(hits, most) << to_string(eviction) << " at " << capacity;
    }
  }
}

}  // namespace
}  // namespace cairn
