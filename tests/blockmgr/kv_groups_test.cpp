// Caches of several KV groups. The tests compute by brute force which prefix is usable: each group
// must have what a token after the prefix needs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "blockmgr/cache/cache_copy.hpp"
#include "blockmgr/index/config_check.hpp"
#include "tests/blockmgr/snapshot_rig.hpp"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint32_t kBlockTokens = 4;

struct GroupShape {
  KvGroupKind kind = KvGroupKind::full;
  std::uint32_t keys_per_block = 1;
  std::uint32_t window_tokens = 0;
  std::uint32_t state_layers = 4;  // 4: a state as large as a block of one key
};

KvGroupConfig group(const std::string& name, const GroupShape& shape) {
  const bool state = shape.kind == KvGroupKind::state;
  KvGroupConfig config{.name = name, .kind = shape.kind, .window_tokens = shape.window_tokens};
  config.shape = {.num_layers = state ? shape.state_layers : 2u,
                  .outer_dim = state ? 1u : 2u,
                  .page_size = state ? 1u : shape.keys_per_block * kBlockTokens,
                  .inner_dim = state ? 16u : 4u,
                  .dtype_width_bytes = 2,
                  .alignment = 16};
  return config;
}

// If blocks have several sizes, the size of a tier counts the largest.
CacheConfig cache_of(const std::vector<GroupShape>& shapes, TierSizes sizes,
                     OffloadMode offload = OffloadMode::on_evict) {
  CacheConfig config = small_cache(sizes, offload);
  config.shape = {};
  config.block_tokens = kBlockTokens;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    config.kv_groups.push_back(group("g" + std::to_string(i), shapes[i]));
  }
  for (Tier tier : kTiers) {
    auto& made = config.tiers[index_of(tier)];
    const SlotSizes slots = slot_sizes(config, tier);
    if (!made || !slots.are_several()) continue;
    const std::uint32_t units = made->num_blocks * std::ranges::max(slots.block_units);
    made->num_blocks = (units + slots.slab_units - 1) / slots.slab_units * slots.slab_units;
  }
  return config;
}

BlockKey in(const BlockKey& name, KvGroupNumber number) { return BlockKey(name.view().in(number)); }

// The bytes of a key's block in a group, which depend on both.
Bytes group_bytes(const CacheConfig& config, const BlockKey& block) {
  Bytes bytes = bytes_of(block, block_bytes(config.shape_of(block.kv_group())));
  for (std::byte& byte : bytes) byte ^= static_cast<std::byte>(17 * block.kv_group());
  return bytes;
}

class KvGroups : public ::testing::Test {
 protected:
  // Stores the blocks, each under its key and group, in this order.
  Result<> store(Cache& cache, const std::vector<BlockKey>& blocks, Tier tier = Tier::pinned) {
    for (const BlockKey& block : blocks) {
      AllocateRequest request{.count = 1, .tier = tier};
      request.group_counts.assign(block.kv_group() + std::size_t{1}, 0);
      request.group_counts.back() = 1;
      auto allocation = rig.allocate(cache, request);
      if (!allocation) return std::move(allocation).error();
      const BlockHandle handle = allocation->blocks.front();
      EXPECT_EQ(handle.kv_group, block.kv_group());
      auto written = rig.write(cache, {.lease = allocation->lease, .block = handle},
                               group_bytes(cache.config(), block));
      if (!written) return written;
      CommitBlock commit{.handle = handle, .key = block};
      if (parents.contains(block)) commit.parent = parents.at(block);
      auto committed = rig.commit(cache, allocation->lease, {commit});
      if (!committed) return std::move(committed).error();
      if (auto released = cache.release(allocation->lease); !released) return released.error();
    }
    return {};
  }

  GroupMatch match(Cache& cache, const std::vector<BlockKey>& names, std::uint32_t have = 0,
                   std::optional<std::uint32_t> lease_ms = 0) {
    GroupMatch found;
    const std::vector<KeyView> all = views(names);
    const auto done = cache.match_groups({.keys = all, .have = have, .lease_ms = lease_ms}, found);
    if (!done) throw std::runtime_error(done.error().detail);
    return found;
  }

  struct Less {
    bool operator()(const BlockKey& a, const BlockKey& b) const {
      return std::pair(a.kv_group(), a.view().as_text()) <
             std::pair(b.kv_group(), b.view().as_text());
    }
  };
  using Blocks = std::set<BlockKey, Less>;

  void restart() {
    BlockManagerOptions options;
    options.data_dir = rig.dir.path();
    rig.manager =
        std::make_unique<BlockManager>(*rig.runtime, *rig.scheduler, rig.clock, *rig.log, options);
  }

  std::map<BlockKey, BlockKey, Less> parents;  // given with a commit
  SnapshotRig rig;
};

// The blocks that a token after keys[0..n) needs; nullopt if a group cannot serve n.
std::optional<std::set<std::pair<KvGroupNumber, std::uint32_t>>> needed(
    const CacheConfig& config, const std::set<std::pair<KvGroupNumber, std::uint32_t>>& there,
    std::uint32_t n, std::uint32_t num_keys, std::uint32_t have, bool only_full = false) {
  std::set<std::pair<KvGroupNumber, std::uint32_t>> all;
  for (KvGroupNumber g = 0; g < config.kv_groups.size(); ++g) {
    const KvGroupConfig& group = config.kv_groups[g];
    const auto per_block = std::max<std::uint32_t>(
        1, static_cast<std::uint32_t>(group.shape.page_size) / kBlockTokens);
    if (only_full && group.kind != KvGroupKind::full) continue;
    if (group.kind == KvGroupKind::state) {
      if (n > 0) all.emplace(g, n - 1);
      continue;
    }
    const std::uint32_t tokens = n * kBlockTokens;
    for (std::uint32_t token = 0; token < tokens; ++token) {
      if (group.kind == KvGroupKind::window && token + group.window_tokens - 1 < tokens) continue;
      if (group.kind == KvGroupKind::full && n <= have) continue;
      const std::uint32_t run = token / (per_block * kBlockTokens);
      if (group.kind == KvGroupKind::full && (run + 1) * per_block <= have) continue;
      const std::uint32_t last_key = (run + 1) * per_block - 1;
      const bool whole = last_key < num_keys && there.contains({g, last_key});
      const bool is_tail = group.kind == KvGroupKind::full && run == (n - 1) / per_block;
      // A part of a block that the caller has needs no block.
      if (!whole && is_tail && n <= have) continue;
      all.emplace(g, whole || !is_tail ? last_key : n - 1);
    }
  }
  for (const auto& block : all) {
    if (block.second >= num_keys || !there.contains(block)) return std::nullopt;
  }
  return all;
}

struct Model {
  std::string name;
  std::vector<GroupShape> groups;
};

class KvGroupMatch : public KvGroups, public ::testing::WithParamInterface<Model> {};
INSTANTIATE_TEST_SUITE_P(
    Models, KvGroupMatch,
    ::testing::Values(
        Model{"full", {{}}}, Model{"window", {{}, {KvGroupKind::window, 1, 9}}},
        Model{"short_window", {{}, {KvGroupKind::window, 1, 1}, {KvGroupKind::window, 1, 2}}},
        Model{"windows", {{}, {KvGroupKind::window, 1, 4}, {KvGroupKind::window, 1, 13}}},
        Model{"state", {{}, {KvGroupKind::state}}}, Model{"states_only", {{KvGroupKind::state}}},
        Model{"all", {{}, {KvGroupKind::window, 1, 9}, {KvGroupKind::state}}},
        Model{"large_full", {{KvGroupKind::full, 3}, {KvGroupKind::state}}},
        Model{"two_full", {{}, {KvGroupKind::full, 2}}},
        Model{"large_window", {{}, {KvGroupKind::window, 2, 9}}},
        Model{"large_both", {{KvGroupKind::full, 3}, {KvGroupKind::window, 2, 7}}}),
    [](const auto& model) { return model.param.name; });

TEST_P(KvGroupMatch, FindsTheLongestUsablePrefixAndItsBlocks) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr std::uint32_t kKeys = 12;
  const auto cache = rig.cache(cache_of(GetParam().groups, {.pinned = 256}));
  const CacheConfig& config = cache->config();
  const std::vector<BlockKey> names = keys(1, kKeys);
  for (int round = 0; round < 60; ++round) {
    std::set<std::pair<KvGroupNumber, std::uint32_t>> there;
    std::vector<BlockKey> blocks;
    const auto absent_of_ten = random() % 4;
    for (KvGroupNumber g = 0; g < config.kv_groups.size(); ++g) {
      for (std::uint32_t i = 0; i < kKeys; ++i) {
        if (random() % 10 < absent_of_ten) continue;
        there.emplace(g, i);
        blocks.push_back(in(names[i], g));
      }
    }
    ASSERT_TRUE(store(*cache, blocks));
    const auto asked = static_cast<std::uint32_t>(random() % (kKeys + 1));
    const auto have = random() % 3 == 0 ? static_cast<std::uint32_t>(random() % (asked + 1)) : 0;
    const auto found =
        match(*cache, std::vector<BlockKey>(names.begin(), names.begin() + asked), have, 1000);
    std::uint32_t usable = asked;
    while (usable > 0 && !needed(config, there, usable, asked, have)) --usable;
    std::uint32_t full = asked;
    while (full > 0 && !needed(config, there, full, asked, have, true)) --full;
    EXPECT_EQ(found.matched, usable) << "of " << asked << ", have " << have;
    EXPECT_EQ(found.full_matched, full) << "of " << asked << ", have " << have;
    std::set<std::pair<KvGroupNumber, std::uint32_t>> listed;
    for (const GroupMatch::Block& block : found.blocks) {
      EXPECT_TRUE(listed.emplace(block.handle.kv_group, block.key).second);
      const BlockKey name = in(names[block.key], block.handle.kv_group);
      EXPECT_EQ(rig.read(*cache, name).value(), group_bytes(config, name));
    }
    EXPECT_EQ(listed, needed(config, there, found.matched, asked, have).value());
    EXPECT_EQ(cache->stats().tiers[index_of(Tier::pinned)].leased_blocks, found.blocks.size());
    if (found.lease) {
      EXPECT_TRUE(cache->release(*found.lease));
    }
    ASSERT_EQ(cache->clear(std::nullopt).value().leased, 0u);
  }
}

TEST_F(KvGroups, OneKeyNamesABlockInEachGroup) {
  const auto cache = rig.cache(cache_of({{}, {KvGroupKind::state}}, {.pinned = 8}));
  ASSERT_TRUE(store(*cache, {in(key(1), 0), in(key(1), 1)}));
  EXPECT_EQ(rig.read(*cache, in(key(1), 0)).value(), group_bytes(cache->config(), in(key(1), 0)));
  EXPECT_EQ(rig.read(*cache, in(key(1), 1)).value(), group_bytes(cache->config(), in(key(1), 1)));
  ASSERT_TRUE(cache->erase(in(key(1), 0)));
  EXPECT_FALSE(rig.read(*cache, in(key(1), 0)));
  EXPECT_TRUE(rig.read(*cache, in(key(1), 1)));
}

TEST_F(KvGroups, AnAllocationOfSeveralGroupsComesInTheirOrder) {
  const auto cache =
      rig.cache(cache_of({{}, {KvGroupKind::window, 1, 9}, {KvGroupKind::state}}, {.pinned = 8}));
  const auto allocation =
      rig.allocate(*cache, {.count = 5, .group_counts = {2, 0, 3}, .tier = Tier::pinned}).value();
  std::vector<int> groups;
  for (const BlockHandle& block : allocation.blocks) groups.push_back(block.kv_group);
  EXPECT_THAT(groups, ElementsAre(0, 0, 2, 2, 2));
  EXPECT_EQ(rig.allocate(*cache, {.count = 1, .group_counts = {0, 0, 0, 1}, .tier = Tier::pinned})
                .error()
                .code,
            ErrorCode::unknown_kv_group);
}

TEST_F(KvGroups, AHandleOfAnotherGroupIsRefused) {
  const auto cache = rig.cache(cache_of({{}, {KvGroupKind::state}}, {.pinned = 8}));
  const auto allocation =
      rig.allocate(*cache, {.count = 1, .group_counts = {1}, .tier = Tier::pinned}).value();
  BlockHandle other = allocation.blocks.front();
  other.kv_group = 1;
  EXPECT_EQ(cache->write({.lease = allocation.lease, .block = other}).error().code,
            ErrorCode::unknown_slot);
  EXPECT_EQ(
      rig.commit(*cache, allocation.lease, {{.handle = other, .key = in(key(1), 1)}}).error().code,
      ErrorCode::unknown_slot);
  EXPECT_EQ(rig.commit(*cache, allocation.lease,
                       {{.handle = allocation.blocks.front(), .key = in(key(1), 1)}})
                .error()
                .code,
            ErrorCode::state_conflict);
  other.kv_group = 7;
  EXPECT_EQ(cache->write({.lease = allocation.lease, .block = other}).error().code,
            ErrorCode::unknown_kv_group);
}

TEST_F(KvGroups, UnwrittenBlocksAndPiecesReadAsZeros) {
  const auto cache =
      rig.cache(cache_of({{}, {KvGroupKind::state}}, {.device = 4, .pinned = 4, .disk = 4}));
  for (Tier tier : kTiers) {
    for (KvGroupNumber g = 0; g < 2; ++g) {
      const BlockKey name = in(key(10 + index_of(tier)), g);
      ASSERT_TRUE(store(*cache, {name}, tier));
      ASSERT_TRUE(cache->erase(name));
      std::vector<std::uint32_t> counts(g + 1u, 0);
      counts.back() = 1;
      const auto allocation =
          rig.allocate(*cache, {.count = 1, .group_counts = counts, .tier = tier}).value();
      const LayoutConfig& shape = cache->config().shape_of(g);
      const Bytes whole = group_bytes(cache->config(), name);
      const std::uint64_t piece = piece_bytes(shape);
      ASSERT_TRUE(rig.write(*cache,
                            {.lease = allocation.lease,
                             .block = allocation.blocks.front(),
                             .part = PieceSelector{1, 0}},
                            Bytes(whole.begin(), whole.begin() + static_cast<long>(piece))));
      ASSERT_TRUE(rig.commit(*cache, allocation.lease,
                             {{.handle = allocation.blocks.front(), .key = name}}));
      Bytes expected(block_bytes(shape));
      std::copy_n(whole.begin(), piece,
                  expected.begin() + static_cast<long>(shape.outer_dim * piece));
      EXPECT_EQ(rig.read(*cache, name).value(), expected) << to_string(tier);
    }
  }
}

TEST_F(KvGroups, TransfersKeepTheBytesOfEachGroup) {
  const auto cache = rig.cache(cache_of({{}, {KvGroupKind::window, 1, 9}, {KvGroupKind::state}},
                                        {.device = 32, .pinned = 32, .disk = 32}));
  std::vector<BlockKey> blocks;
  for (const BlockKey& name : keys(1, 6)) {
    for (KvGroupNumber g = 0; g < 3; ++g) blocks.push_back(in(name, g));
  }
  ASSERT_TRUE(store(*cache, blocks, Tier::device));
  for (const Tier to : {Tier::pinned, Tier::disk, Tier::device, Tier::disk, Tier::pinned}) {
    const auto moved = rig.transfer(*cache, {.keys = blocks, .to = to, .move = true});
    ASSERT_EQ(moved.state, TransferState::done);
    for (const BlockKey& block : blocks) {
      EXPECT_TRUE(is_in(*cache, to, block)) << to_string(to) << int{block.kv_group()};
      EXPECT_EQ(rig.read(*cache, block).value(), group_bytes(cache->config(), block));
    }
  }
}

TEST_F(KvGroups, AStateGoesBeforeBlocksThatAMatchCanUse) {
  const auto cache =
      rig.cache(cache_of({{}, {KvGroupKind::state}}, {.pinned = 6}, OffloadMode::never));
  parents = {{in(key(2), 0), in(key(1), 0)}};
  ASSERT_TRUE(store(*cache, {in(key(1), 0), in(key(2), 0), in(key(2), 1), in(key(9), 0)}));
  // A state whose full block is not present: no match ends there.
  ASSERT_TRUE(store(*cache, {in(key(30), 1)}));
  ASSERT_TRUE(store(*cache, {in(key(40), 0), in(key(41), 0)}));
  EXPECT_FALSE(rig.read(*cache, in(key(30), 1)));
  EXPECT_EQ(match(*cache, {key(1), key(2)}).matched, 2u);
  // A state goes before the full block that it needs.
  ASSERT_TRUE(cache->erase(in(key(9), 0)));
  ASSERT_TRUE(cache->erase(in(key(40), 0)));
  ASSERT_TRUE(cache->erase(in(key(41), 0)));
  ASSERT_TRUE(store(*cache, {in(key(50), 0), in(key(51), 0), in(key(52), 0), in(key(53), 0)}));
  EXPECT_FALSE(rig.read(*cache, in(key(2), 1)));
  EXPECT_TRUE(rig.read(*cache, in(key(1), 0)));
}

TEST_F(KvGroups, WhatIsKeptUnderAFloodCanBeMatched) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto cache =
      rig.cache(cache_of({{}, {KvGroupKind::state}}, {.pinned = 24}, OffloadMode::never));
  // Prompts that share prefixes, each with a state at its end.
  for (int prompt = 0; prompt < 200; ++prompt) {
    const std::uint64_t first = 1000 * (1 + random() % 8);
    const std::uint64_t length = 1 + random() % 6;
    std::vector<BlockKey> blocks;
    for (std::uint64_t i = 0; i < length; ++i) {
      blocks.push_back(in(key(first + i), 0));
      if (i > 0) parents.insert_or_assign(blocks.back(), in(key(first + i - 1), 0));
    }
    blocks.push_back(in(key(first + length - 1), 1));
    ASSERT_TRUE(store(*cache, blocks));
    const auto found = match(*cache, keys(first, length));
    EXPECT_EQ(found.matched, length);
  }
  for (std::uint64_t chain = 1; chain <= 8; ++chain) {
    const auto found = match(*cache, keys(1000 * chain, 6));
    std::uint64_t states = 0;
    for (std::uint64_t i = 0; i < 6; ++i) {
      const bool there =
          cache->contains(std::vector<KeyView>{in(key(1000 * chain + i), 1).view()})[0];
      if (there) states = i + 1;
    }
    // The last state that is left is usable: its full blocks are there.
    EXPECT_EQ(found.matched, states) << chain;
  }
}

// Prompts of a cache whose states are as large as 6 full blocks. Each has a state at its end.
struct PromptMix {
  std::uint64_t first_key = 0;
  std::uint64_t prompts = 0;  // different ones
  std::uint64_t blocks = 0;   // of each
};

// Requests prompts at random, until they have stored that many units. Returns the share of keys
// that matches found.
double run_mix(Cache& cache, Rig& rig, const PromptMix& mix, std::mt19937& random,
               std::uint64_t units,
               const std::function<Result<>(const std::vector<BlockKey>&)>& store) {
  std::uint64_t asked = 0;
  std::uint64_t found = 0;
  for (std::uint64_t stored = 0; stored < units;) {
    // Some prompts are asked for more often than others.
    const std::uint64_t prompt = std::min(random() % mix.prompts, random() % mix.prompts);
    const auto names = keys(mix.first_key + prompt * mix.blocks, mix.blocks);
    const std::vector<KeyView> all = views(names);
    GroupMatch match;
    EXPECT_TRUE(cache.match_groups({.keys = all, .lease_ms = 0}, match));
    asked += mix.blocks;
    found += match.matched;
    std::vector<BlockKey> missing;
    for (std::uint64_t i = match.full_matched; i < mix.blocks; ++i) {
      missing.push_back(in(names[i], 0));
    }
    if (match.matched < mix.blocks) missing.push_back(in(names.back(), 1));
    EXPECT_TRUE(store(missing));
    rig.scheduler->wait_idle();
    // Requests that find everything count a little, so that the loop ends.
    stored += 1 + missing.size() + (match.matched < mix.blocks ? 5 : 0);
  }
  return static_cast<double>(found) / static_cast<double>(asked);
}

TEST_F(KvGroups, MemoryGoesToTheGroupsThatTheNextPromptsNeed) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const CacheConfig config = cache_of({{}, {.kind = KvGroupKind::state, .state_layers = 24}},
                                      {.pinned = 60}, OffloadMode::never);
  const std::uint64_t units = config.tiers[index_of(Tier::pinned)]->num_blocks;
  const PromptMix few_long{.first_key = 100'000, .prompts = 8, .blocks = 50};
  const PromptMix many_short{.first_key = 1, .prompts = 60, .blocks = 2};
  const auto hits_of = [&](bool begins_with_long) {
    const auto cache = rig.cache(config);
    const auto stores = [&](const std::vector<BlockKey>& blocks) {
      for (std::size_t i = 1; i < blocks.size(); ++i) {
        if (blocks[i].kv_group() == 0) parents.insert_or_assign(blocks[i], blocks[i - 1]);
      }
      return store(*cache, blocks);
    };
    std::mt19937 random(seed);
    if (begins_with_long) {
      run_mix(*cache, rig, few_long, random, 5 * units, stores);
      EXPECT_GT(cache->stats().tiers[index_of(Tier::pinned)].kv_groups[0].blocks, units / 2);
    }
    run_mix(*cache, rig, many_short, random, 2 * units, stores);
    const double hits = run_mix(*cache, rig, many_short, random, 4 * units, stores);
    const TierStats stats = cache->stats().tiers[index_of(Tier::pinned)];
    if (begins_with_long) {
      EXPECT_GT(stats.slabs_moved, 0u);
    }
    EXPECT_TRUE(rig.manager->drop_cache("test", true));
    return hits;
  };
  const double made_for_it = hits_of(false);
  EXPECT_GE(hits_of(true), 0.9 * made_for_it);
}

// Every fourth request is one of 30 prompts, the others never come back. LRU has room for 60
// prompts and 120 come in between, so it finds nothing. An order that learns keeps those that came
// back.
TEST_F(KvGroups, AnOrderThatLearnsKeepsPromptsThatComeBackWithTheirStates) {
  constexpr std::uint64_t kLength = 4;
  const auto found_with = [&](EvictionKind eviction) {
    CacheConfig config =
        cache_of({{}, {KvGroupKind::state}}, {.pinned = 60 * (kLength + 1)}, OffloadMode::never);
    config.name += to_string(eviction);
    config.eviction = eviction;
    const auto cache = rig.cache(config);
    std::uint64_t found = 0;
    for (std::uint64_t i = 0; i < 3000; ++i) {
      const std::uint64_t prompt = i % 4 == 0 ? i / 4 % 30 : 1000 + i;
      const std::uint64_t first = 10 * prompt;
      const GroupMatch there = match(*cache, keys(first, kLength));
      found += there.matched;
      std::vector<BlockKey> missing;
      for (std::uint64_t n = there.full_matched; n < kLength; ++n) {
        missing.push_back(in(key(first + n), 0));
        if (n > 0) parents.insert_or_assign(missing.back(), in(key(first + n - 1), 0));
      }
      if (there.matched < kLength) missing.push_back(in(key(first + kLength - 1), 1));
      EXPECT_TRUE(store(*cache, missing));
    }
    return found;
  };
  EXPECT_EQ(found_with(EvictionKind::lru), 0u);
  // 750 requests come back, and the order learns from the first of them.
  EXPECT_GT(found_with(EvictionKind::class_hazard), 750 * kLength / 2);
}

TEST_F(KvGroups, EventsAndListingsNameTheGroupAndTheKeyBefore) {
  const auto cache = rig.cache(cache_of({{}, {KvGroupKind::state}}, {.pinned = 8}));
  parents = {{in(key(2), 0), in(key(1), 0)}};
  ASSERT_TRUE(store(*cache, {in(key(1), 0), in(key(2), 0), in(key(2), 1)}));
  const auto list = cache->list({.limit = 10}).value().blocks;
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[2].handle.kv_group, 1);
  EXPECT_EQ(list[2].key, in(key(2), 1));
  EXPECT_EQ(list[2].parent, in(key(1), 1));
  std::array<BlockEvent, 8> events;
  const auto read = rig.manager->events().read(0, events);
  ASSERT_EQ(read.count, 3u);
  EXPECT_EQ(events[2].key, in(key(2), 1));
  EXPECT_EQ(events[2].parent, in(key(1), 1));
}

TEST_F(KvGroups, CountsBlocksByGroup) {
  const auto cache = rig.cache(cache_of({{}, {KvGroupKind::state}}, {.pinned = 8}));
  ASSERT_TRUE(store(*cache, {in(key(1), 0), in(key(2), 0), in(key(2), 1)}));
  ASSERT_TRUE(cache->erase(in(key(1), 0)));
  const auto groups = cache->stats().tiers[index_of(Tier::pinned)].kv_groups;
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].name, "g0");
  EXPECT_EQ(groups[0].blocks, 1u);
  EXPECT_EQ(groups[1].blocks, 1u);
  EXPECT_EQ(groups[1].bytes, block_bytes(cache->config().shape_of(1)));
}

TEST_F(KvGroups, AOneGroupCacheTakesHave) {
  const auto cache = rig.cache(small_cache({.pinned = 8}));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(3, 2)}));
  const auto found = match(*cache, keys(1, 5), 2);
  EXPECT_EQ(found.matched, 4u);
  ASSERT_EQ(found.blocks.size(), 2u);
  EXPECT_EQ(found.blocks[0].key, 2u);
  EXPECT_EQ(match(*cache, keys(1, 5)).matched, 0u);
}

// The second try of such a match once ended with the blocks of the first one, and crashed.
TEST_F(KvGroups, AMatchWhoseBlocksExpireWhileTheyArePinnedFindsAllOrNone) {
  constexpr std::uint32_t kKeys = 400;  // several steps to find, and several to pin
  std::set<std::uint32_t> matched;
  for (std::uint64_t ttl_ms = 1; matched.empty() || *matched.rbegin() == 0; ++ttl_ms) {
    const auto cache = rig.cache(small_cache({.pinned = kKeys}));
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, kKeys), .ttl_ms = ttl_ms}));
    rig.clock.advance_with_each_reading(std::chrono::milliseconds(1));
    const GroupMatch found = match(*cache, keys(1, kKeys), 0, 1'000);
    rig.clock.advance_with_each_reading({});
    EXPECT_EQ(found.blocks.size(), found.matched) << ttl_ms;
    matched.insert(found.matched);
    ASSERT_TRUE(rig.manager->drop_cache(cache->config().name, true));
  }
  EXPECT_THAT(matched, ElementsAre(0u, kKeys));
}

// The disk tier knows the group of each block after a restart, with its index or without.
TEST_F(KvGroups, ARestartFindsTheBlocksOfEachGroup) {
  const CacheConfig config =
      cache_of({{}, {KvGroupKind::window, 1, 9}, {KvGroupKind::state}}, {.pinned = 16, .disk = 32});
  std::vector<BlockKey> blocks;
  for (const BlockKey& name : keys(1, 4)) {
    for (KvGroupNumber g = 0; g < 3; ++g) blocks.push_back(in(name, g));
  }
  ASSERT_TRUE(store(*rig.cache(config), blocks, Tier::disk));
  for (const bool keeps_index : {true, false}) {
    rig.manager.reset();
    if (!keeps_index) {
      for (const auto& file : std::filesystem::recursive_directory_iterator(rig.dir.path())) {
        if (file.path().string().find('~') != std::string::npos) {
          std::filesystem::remove(file.path());
        }
      }
    }
    restart();
    const auto cache = rig.cache(config);
    EXPECT_EQ(match(*cache, keys(1, 4)).matched, 4u) << keeps_index;
    for (const BlockKey& block : blocks) {
      const auto bytes = rig.read(*cache, block);
      ASSERT_TRUE(bytes) << bytes.error().detail;
      EXPECT_EQ(*bytes, group_bytes(config, block));
    }
  }
}

TEST_F(KvGroups, ASnapshotKeepsTheGroups) {
  const CacheConfig config =
      cache_of({{}, {KvGroupKind::window, 1, 9}, {KvGroupKind::state}}, {.pinned = 32});
  std::vector<BlockKey> blocks;
  for (const BlockKey& name : keys(1, 5)) {
    for (KvGroupNumber g = 0; g < 3; ++g) blocks.push_back(in(name, g));
  }
  for (const bool compress : {false, true}) {
    auto cache = rig.cache(config);
    ASSERT_TRUE(store(*cache, blocks));
    const std::string name = compress ? "small" : "plain";
    ASSERT_TRUE(rig.make(cache, name, compress));
    cache->clear(std::nullopt).value();
    const auto restored = rig.restore(cache, name);
    ASSERT_TRUE(restored) << restored.error().detail;
    EXPECT_EQ(match(*cache, keys(1, 5)).matched, 5u);
    for (const BlockKey& block : blocks) {
      EXPECT_EQ(rig.read(*cache, block).value(), group_bytes(config, block));
    }
    cache->clear(std::nullopt).value();
  }
  const auto saved = rig.snapshots().configuration(rig.file("plain")).value();
  EXPECT_EQ(saved.kv_groups, rig.cache(config)->config().kv_groups);
  CacheConfig other = config;
  other.name = "other";
  other.kv_groups[1].kind = KvGroupKind::full;
  other.kv_groups[1].window_tokens = 0;
  const auto into_other = rig.end_of(
      rig.snapshots().restore(rig.cache(other), {.file = rig.file("plain"), .partial = false}));
  EXPECT_EQ(into_other.error().code, ErrorCode::state_conflict);
}

TEST_F(KvGroups, ATierShrinksInBytesAndKeepsTheGroupsOfItsBlocks) {
  const CacheConfig config = cache_of({{}, {KvGroupKind::state}}, {.pinned = 16, .disk = 16});
  for (const Tier tier : {Tier::pinned, Tier::disk}) {
    const auto cache = rig.cache(config);
    std::vector<BlockKey> blocks;
    for (const BlockKey& name : keys(1, 6)) {
      blocks.push_back(in(name, 0));
      blocks.push_back(in(name, 1));
    }
    // The first slots are free again, so that the blocks in the last ones move there.
    ASSERT_TRUE(store(*cache, {in(key(90), 0), in(key(91), 1), in(key(92), 0)}, tier));
    ASSERT_TRUE(store(*cache, blocks, tier));
    for (const BlockKey& name : {in(key(90), 0), in(key(91), 1), in(key(92), 0)}) {
      ASSERT_TRUE(cache->erase(name));
    }
    CacheChange change;
    change.size_bytes[index_of(tier)] = 12 * slot_bytes(cache->config().shape, tier) + 5;
    const auto changed = cache->change(change, [](const CacheConfig&) { return Result<>(); });
    ASSERT_TRUE(changed) << changed.error().detail;
    rig.manager->tick();
    rig.scheduler->wait_idle();
    EXPECT_EQ(cache->config().tiers[index_of(tier)]->num_blocks, 12u);
    for (const BlockKey& block : blocks) {
      const auto bytes = rig.read(*cache, block);
      ASSERT_TRUE(bytes) << bytes.error().detail;
      EXPECT_EQ(*bytes, group_bytes(config, block));
    }
    ASSERT_TRUE(rig.manager->drop_cache("test", true));
  }
}

TEST_F(KvGroups, BlocksAreCopiedBetweenCachesWithTheSameGroups) {
  CacheConfig config = cache_of({{}, {KvGroupKind::state}}, {.pinned = 16});
  const auto from = rig.cache(config);
  config.name = "into";
  const auto into = rig.cache(config);
  std::vector<BlockKey> blocks;
  for (const BlockKey& name : keys(1, 3)) {
    blocks.push_back(in(name, 0));
    blocks.push_back(in(name, 1));
  }
  ASSERT_TRUE(store(*from, blocks));
  const auto id =
      copy_between_caches({.from = from, .into = into, .keys = blocks, .to = Tier::pinned});
  ASSERT_TRUE(id) << id.error().detail;
  ASSERT_EQ(rig.wait(*id).state, TransferState::done);
  for (const BlockKey& block : blocks) {
    EXPECT_EQ(rig.read(*into, block).value(), group_bytes(config, block));
  }
  EXPECT_EQ(match(*into, keys(1, 3)).matched, 3u);
}

TEST_F(KvGroups, FilesOfOtherGroupsAreRefused) {
  CacheConfig config = cache_of({{}, {KvGroupKind::window, 1, 9}}, {.disk = 8});
  ASSERT_TRUE(store(*rig.cache(config), {in(key(1), 0)}, Tier::disk));
  rig.manager.reset();
  restart();
  // The largest block has the same shape, so the slots have the same size.
  config.kv_groups[1].kind = KvGroupKind::full;
  config.kv_groups[1].window_tokens = 0;
  EXPECT_EQ(rig.manager->create_cache(config).error().code, ErrorCode::state_conflict);
}

TEST_F(KvGroups, ConfigurationsThatCannotBeAreRefused) {
  const CacheConfig good = cache_of({{}, {KvGroupKind::window, 1, 9}}, {.pinned = 8});
  int made_caches = 0;
  const auto refused = [&](auto&& change) {
    CacheConfig config = good;
    config.name = "c" + std::to_string(++made_caches);
    change(config);
    const auto made = rig.manager->create_cache(config);
    return made ? std::string("made") : std::string(to_string(made.error().code));
  };
  EXPECT_EQ(refused([](CacheConfig&) {}), "made");
  EXPECT_EQ(refused([](CacheConfig& c) { c.kv_groups[1].name = "g0"; }), "impossible");
  EXPECT_EQ(refused([](CacheConfig& c) { c.kv_groups[1].name = "a b"; }), "out_of_range");
  EXPECT_EQ(refused([](CacheConfig& c) { c.kv_groups[1].window_tokens = 0; }), "impossible");
  EXPECT_EQ(refused([](CacheConfig& c) { c.kv_groups[0].window_tokens = 5; }), "impossible");
  EXPECT_EQ(refused([](CacheConfig& c) { c.kv_groups[1].shape.page_size = 6; }),
            "impossible_shape");
  EXPECT_EQ(refused([](CacheConfig& c) { c.kv_groups.erase(c.kv_groups.begin()); }), "impossible");
  EXPECT_EQ(refused([](CacheConfig& c) { c.block_tokens = 0; }), "out_of_range");
  EXPECT_EQ(refused([](CacheConfig& c) { c.kv_groups[0].shape.inner_dim = 0; }),
            "impossible_shape");
  EXPECT_EQ(refused([](CacheConfig& c) {
              c.tiers[index_of(Tier::pinned)]->layout = LayoutKind::layer_separate;
            }),
            "impossible");
  EXPECT_EQ(refused([](CacheConfig& c) {
              c.tiers[index_of(Tier::pinned)]->num_blocks = 0;
              c.tiers[index_of(Tier::pinned)]->size_bytes = 10;
            }),
            "impossible_shape");
}

TEST_F(KvGroups, ATierInBytesHasAsManySlotsAsFit) {
  CacheConfig config = cache_of({{}, {KvGroupKind::state}}, {.pinned = 1});
  config.tiers[index_of(Tier::pinned)]->num_blocks = 0;
  // A block has 128 bytes.
  config.tiers[index_of(Tier::pinned)]->size_bytes = 5 * 128 + 127;
  const auto cache = rig.cache(config);
  EXPECT_EQ(cache->stats().tiers[index_of(Tier::pinned)].capacity_blocks, 5u);
}

}  // namespace
}  // namespace cairn::testing
