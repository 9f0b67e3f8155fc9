#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "memory/host/host_runtime.hpp"
#include "tests/blockmgr/copying_engine.hpp"
#include "tests/blockmgr/rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/faulty_runtime.hpp"
#include "tests/fakes/gated_disk_io.hpp"

// Agents: who owns them, how long they live, and how a failed copy is reported.
namespace cairn::testing {
namespace {

LeaseHolder holder(const std::string& name) { return std::make_shared<const std::string>(name); }

class AgentTest : public ::testing::Test {
 protected:
  explicit AgentTest(Rig::Parts parts = {}) : rig_(std::move(parts)) {}

  Result<TransferId> load(const std::vector<BlockKey>& list, std::vector<std::uint32_t> blocks,
                          const LeaseHolder& who = {}) {
    return engine_memories().load(
        "engine", who, {.cache = cache_, .memory = {}, .keys = list, .blocks = std::move(blocks)});
  }
  Result<TransferId> store(const std::vector<BlockKey>& list, std::vector<std::uint32_t> blocks,
                           std::optional<Tier> tier = {}) {
    EngineStoreRequest request;
    request.cache = cache_;
    request.keys = list;
    request.blocks = std::move(blocks);
    request.parents.resize(list.size());
    request.tier = tier;
    return engine_memories().store("engine", std::move(request));
  }
  TransferStatus ended(const Result<TransferId>& id) {
    rig_.scheduler->wait_idle();
    return rig_.manager->transfer(id.value()).value();
  }
  EngineMemories& engine_memories() { return rig_.manager->engine_memories(); }
  EngineMemory::Terms terms() const { return {.lease_ms = 1000}; }
  bool is_there() { return engine_memories().find("engine", {}, true).has_value(); }

  Rig rig_;
  const std::shared_ptr<Cache> cache_ =
      rig_.cache(small_cache({.device = 8, .pinned = 8, .disk = 8}, OffloadMode::never));
  const Engine engine_;
};

TEST_F(AgentTest, EachUseRenewsItsLease) {
  ASSERT_TRUE(engine_memories().put(engine_.config(), terms()));
  rig_.clock.advance_ms(999);
  rig_.manager->tick();
  ASSERT_TRUE(is_there());
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 1)}));
  EXPECT_EQ(ended(load(keys(1, 1), {0})).state, TransferState::done);
  rig_.clock.advance_ms(999);
  EXPECT_FALSE(engine_memories().put(engine_.config(), terms()).value().is_new);
  rig_.clock.advance_ms(999);
  rig_.manager->tick();
  ASSERT_TRUE(is_there());
  rig_.clock.advance_ms(1);
  rig_.manager->tick();
  EXPECT_FALSE(is_there());
  EXPECT_TRUE(engine_memories().put(engine_.config(), terms()).value().is_new)
      << "its bytes are free";
}

TEST_F(AgentTest, EndsWithItsConnection) {
  auto connection = std::make_shared<EngineConnection>();
  ASSERT_TRUE(engine_memories().put(engine_.config(), {.tether = connection}));
  EXPECT_EQ(connection->engine_memories, 1u);
  EXPECT_FALSE(engine_memories().find("engine", {}, true).value().expires_at_unix_ms);
  auto next = std::make_shared<EngineConnection>();
  EXPECT_FALSE(engine_memories().put(engine_.config(), {.tether = next}).value().is_new);
  EXPECT_EQ(connection->engine_memories, 0u);
  connection.reset();
  rig_.clock.advance_ms(1'000'000);
  rig_.manager->tick();
  EXPECT_TRUE(is_there()) << "it ends with the connection that registered it last";
  next.reset();
  rig_.manager->tick();
  EXPECT_FALSE(is_there());
}

TEST_F(AgentTest, OnlyItsTokenMayUseIt) {
  const LeaseHolder mine = holder("mine");
  const LeaseHolder other = holder("other");
  ASSERT_TRUE(engine_memories().put(engine_.config(), {.holder = mine, .lease_ms = 1000}));
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 1)}));
  EXPECT_EQ(load(keys(1, 1), {0}, other).error().code, ErrorCode::unknown_agent);
  EXPECT_EQ(load(keys(1, 1), {0}).error().code, ErrorCode::unknown_agent);
  EXPECT_EQ(
      engine_memories().put(engine_.config(), {.holder = other, .lease_ms = 1000}).error().code,
      ErrorCode::agent_exists);
  EXPECT_EQ(engine_memories().find("engine", other, false).error().code, ErrorCode::unknown_agent);
  EXPECT_TRUE(engine_memories().list(other, false).empty());
  EXPECT_EQ(engine_memories().remove("engine", other, false, [] {}).error().code,
            ErrorCode::unknown_agent);
  EXPECT_EQ(ended(load(keys(1, 1), {0}, holder("mine"))).state, TransferState::done);
  EXPECT_EQ(engine_memories().list(other, true).size(), 1u) << "an administrator sees all";
  EXPECT_TRUE(engine_memories().remove("engine", other, true, [] {}));
}

// The kernel charges untouched memory to the process that touches it first: the server.
class AgentMemoryTest : public ::testing::Test {
 protected:
  static Rig::Parts limited_to(std::uint64_t bytes) {
    Rig::Parts parts;
    parts.options.max_registered_bytes = bytes;
    return parts;
  }
  EngineMemories& engine_memories() { return rig_.manager->engine_memories(); }

  Rig rig_{limited_to(4 * kLayerBytes)};
  const Engine first_;
  const Engine second_;
  const Engine third_;
};

TEST_F(AgentMemoryTest, LimitsAllAgentsTogether) {
  ASSERT_TRUE(engine_memories().put(first_.config("first"), {.lease_ms = 1000}));
  ASSERT_TRUE(engine_memories().put(second_.config("second"), {.lease_ms = 1000}));
  const auto refused = engine_memories().put(third_.config("third"), {.lease_ms = 1000});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::no_capacity);
  EXPECT_THAT(refused.error().detail, ::testing::HasSubstr("import.max_bytes"));
  EXPECT_TRUE(engine_memories().put(first_.config("first"), {.lease_ms = 1000}))
      << "registering again adds nothing";
  ASSERT_TRUE(engine_memories().remove("second", {}, true, [] {}));
  EXPECT_TRUE(engine_memories().put(third_.config("third"), {.lease_ms = 1000}));
  rig_.clock.advance_ms(1000);
  rig_.manager->tick();
  EXPECT_TRUE(engine_memories().put(second_.config("second"), {.lease_ms = 1000}))
      << "two leases have expired";
}

TEST_F(AgentMemoryTest, LimitsEachToken) {
  const auto mine = std::make_shared<MemoryQuota>(
      MemoryQuota::Terms{.limit_bytes = 3 * kLayerBytes, .whose = "my limit"});
  const EngineMemory::Terms terms{.lease_ms = 1000, .registered = mine};
  ASSERT_TRUE(engine_memories().put(first_.config("first"), terms));
  EXPECT_EQ(mine->used(), 2 * kLayerBytes);
  const auto refused = engine_memories().put(second_.config("second"), terms);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::no_capacity);
  EXPECT_THAT(refused.error().detail, ::testing::HasSubstr("my limit"));
  EXPECT_TRUE(engine_memories().put(second_.config("second"), {.lease_ms = 1000}))
      << "another token's";
  ASSERT_TRUE(engine_memories().remove("first", {}, true, [] {}));
  EXPECT_EQ(mine->used(), 0u);
}

TEST_F(AgentMemoryTest, ImportedTierCountsUntilItsCacheIsDropped) {
  fakes::TempDir folder;
  const auto tier_of = [](const std::string& name, const Engine& engine, std::uint64_t size_bytes) {
    CacheConfig config = small_cache({.pinned = 8});
    config.name = name;
    TierMemory memory{.memory = engine.config().regions.front().memory};
    memory.memory.size_bytes = size_bytes;
    memory.descriptor = 0;
    config.tiers[index_of(Tier::pinned)]->import = memory;
    return config;
  };
  const auto refused = rig_.manager->create_cache(tier_of("large", first_, 5 * kLayerBytes));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::no_capacity);
  ASSERT_TRUE(rig_.manager->create_cache(tier_of("one", first_, 2 * kLayerBytes)));
  ASSERT_TRUE(engine_memories().put(second_.config("second"), {.lease_ms = 1000}));
  EXPECT_FALSE(engine_memories().put(third_.config("third"), {.lease_ms = 1000}));
  ASSERT_TRUE(rig_.manager->drop_cache("one", true));
  rig_.scheduler->wait_idle();
  EXPECT_TRUE(engine_memories().put(third_.config("third"), {.lease_ms = 1000}));
}

TEST_F(AgentTest, CopiesCountAgainstTheLeaseQuota) {
  ASSERT_TRUE(engine_memories().put(engine_.config(), terms()));
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 3)}));
  const auto pins = std::make_shared<LeaseQuota>(2);
  const auto load_of = [&](std::size_t count) {
    std::vector<std::uint32_t> blocks{0, 1, 2};
    blocks.resize(count);
    return engine_memories().load(
        "engine", {},
        {.cache = cache_, .memory = {}, .keys = keys(1, count), .blocks = blocks, .pins = pins});
  };
  EXPECT_EQ(load_of(3).error().code, ErrorCode::lease_quota);
  EXPECT_EQ(pins->used(), 0u);
  EXPECT_EQ(ended(load_of(2)).state, TransferState::done);
  EXPECT_EQ(pins->used(), 0u);

  const auto store_of = [&](std::uint64_t first, std::size_t count) {
    EngineStoreRequest request;
    request.cache = cache_;
    request.keys = keys(first, count);
    request.blocks = {0, 1, 2};
    request.blocks.resize(count);
    request.parents.resize(count);
    request.pins = pins;
    return engine_memories().store("engine", std::move(request));
  };
  EXPECT_EQ(store_of(11, 3).error().code, ErrorCode::lease_quota);
  EXPECT_EQ(ended(store_of(3, 2)).state, TransferState::done) << "one key is present";
  EXPECT_EQ(pins->used(), 0u);
}

TEST_F(AgentTest, CountsCopiedBlocks) {
  ASSERT_TRUE(engine_memories().put(engine_.config(), terms()));
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 2)}));
  EXPECT_EQ(ended(load(keys(1, 2), {0, 1})).bytes, 2 * 64u);
  EXPECT_EQ(ended(store(keys(5, 1), {0})).bytes, 64u);
  const EngineMemoryStats stats = engine_memories().stats();
  EXPECT_EQ(stats.engine_memories, 1u);
  EXPECT_EQ(stats.loads.done_blocks, 2u);
  EXPECT_EQ(stats.loads.bytes, 2 * 64u);
  EXPECT_EQ(stats.stores.done_blocks, 1u);
  EXPECT_EQ(stats.stores.failed_blocks, 0u);
}

TEST_F(AgentTest, LoadsOneKeyIntoSeveralBlocks) {
  ASSERT_TRUE(engine_memories().put(engine_.config(), terms()));
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 1), .tier = Tier::disk}));
  EXPECT_EQ(ended(load({key(1), key(1)}, {3, 9})).blocks_done, 2u);
  EXPECT_EQ(engine_.read(3), bytes_of(key(1)));
  EXPECT_EQ(engine_.read(9), bytes_of(key(1)));
}

// More blocks than one hold of the cache's lock handles.
TEST_F(AgentTest, StoresAndLoadsManyBlocksInSteps) {
  CacheConfig large = small_cache({.device = 64, .pinned = 200}, OffloadMode::never);
  large.name = "large";
  const auto cache = rig_.cache(large);
  ASSERT_TRUE(engine_memories().put(engine_.config(), terms()));
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t i = 0; i < 200; ++i) {
    engine_.write(i, bytes_of(key(i)));
    blocks.push_back(i);
  }
  EngineStoreRequest request;
  request.cache = cache;
  request.keys = keys(0, 200);
  request.blocks = blocks;
  request.parents.resize(200);
  request.tier = Tier::pinned;
  EXPECT_EQ(ended(engine_memories().store("engine", std::move(request))).blocks_done, 200u);
  std::ranges::reverse(blocks);
  const TransferStatus loaded = ended(engine_memories().load(
      "engine", {}, {.cache = cache, .memory = {}, .keys = keys(0, 200), .blocks = blocks}));
  EXPECT_EQ(loaded.state, TransferState::done);
  for (std::uint32_t i = 0; i < 200; ++i) EXPECT_EQ(engine_.read(199 - i), bytes_of(key(i)));
  EXPECT_EQ(count(*cache, Tier::pinned, SlotState::evictable), 200u);
  EXPECT_EQ(cache->stats().leases, 0u);
}

// A base class, so that the disk is created before the rig and destroyed after it.
struct Gate {
  fakes::FakedDisk<fakes::GatedDiskIo> gate_;
};

// Copies wait for the disk.
class GatedAgentTest : protected Gate, public AgentTest {
 protected:
  GatedAgentTest() : AgentTest({.disk = gate_.wrap(), .workers = 1}) {}
  ~GatedAgentTest() override {
    gate_->open();
    rig_.manager.reset();
    rig_.scheduler.reset();
  }
};

TEST_F(GatedAgentTest, MemoryStaysUntilItsLastCopyEnds) {
  ASSERT_TRUE(engine_memories().put(engine_.config(), terms()));
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 2), .tier = Tier::disk}));
  gate_->close();
  const auto under_way = load(keys(1, 1), {0});
  const auto waiting = load(keys(2, 1), {1});
  gate_->wait_for_calls(1);
  rig_.clock.advance_ms(10'000);
  rig_.manager->tick();
  EXPECT_TRUE(is_there()) << "a use keeps its lease";

  bool gone = false;
  ASSERT_TRUE(engine_memories().remove("engine", {}, true, [&] { gone = true; }));
  EXPECT_FALSE(is_there());
  EXPECT_FALSE(gone);
  EXPECT_EQ(load(keys(1, 1), {0}).error().code, ErrorCode::unknown_agent);
  EXPECT_EQ(rig_.manager->transfer(waiting.value()).value().state, TransferState::cancelled);
  gate_->open();
  ended(under_way);
  EXPECT_TRUE(gone);
  EXPECT_EQ(engine_.read(1), Bytes(64, std::byte{0})) << "it was cancelled";
  EXPECT_EQ(count(*cache_, Tier::disk, SlotState::committed), 0u);
  EXPECT_TRUE(engine_memories().put(engine_.config(), terms()).value().is_new);
}

// The disk takes one part at a time, so `order` lists the transfers in the order they started.
TEST_F(GatedAgentTest, LoadOvertakesEarlierBulkTransfers) {
  ASSERT_TRUE(engine_memories().put(engine_.config(), terms()));
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 6), .tier = Tier::disk}));
  gate_->close();
  Mutex mutex;
  std::vector<std::string> order;
  const auto note_end = [&](TransferId id, const std::string& name) {
    ASSERT_TRUE(rig_.manager->watch_transfer(id, [&, name](const TransferStatus& status) {
      EXPECT_EQ(status.state, TransferState::done);
      MutexLock lock(mutex);
      order.push_back(name);
    }));
  };
  const std::vector<std::string> bulk = {"under way", "bulk 1", "bulk 2", "bulk 3"};
  for (std::size_t i = 0; i < bulk.size(); ++i) {
    note_end(cache_->transfer({.keys = keys(1 + i, 1), .to = Tier::pinned}).value(), bulk[i]);
    if (i == 0) gate_->wait_for_calls(1);
  }
  note_end(load(keys(5, 2), {0, 1}).value(), "load");
  gate_->open();
  rig_.scheduler->wait_idle();
  EXPECT_THAT(order, ::testing::ElementsAre("under way", "load", "bulk 1", "bulk 2", "bulk 3"));
}

TEST_F(GatedAgentTest, CancelsATransferByItsId) {
  ASSERT_TRUE(engine_memories().put(engine_.config(), terms()));
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 2), .tier = Tier::disk}));
  gate_->close();
  const auto under_way = load(keys(1, 1), {0});
  const auto waiting = load(keys(2, 1), {1});
  gate_->wait_for_calls(1);
  EXPECT_EQ(rig_.manager->cancel_transfer(waiting.value()).value().state, TransferState::cancelled);
  gate_->open();
  EXPECT_EQ(ended(under_way).state, TransferState::done);
  EXPECT_EQ(engine_.read(0), bytes_of(key(1)));
  EXPECT_EQ(count(*cache_, Tier::disk, SlotState::committed), 0u);
}

// A load pins its blocks. It reports a layer only once every block has it.
TEST_F(GatedAgentTest, LayersAreDoneOnceEveryBlockHasThem) {
  ASSERT_TRUE(engine_memories().put(engine_.config(), terms()));
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1, 1), .tier = Tier::pinned}));
  ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(2, 1), .tier = Tier::disk}));
  gate_->close();
  const auto id = load(keys(1, 2), {0, 1});
  gate_->wait_for_calls(1);
  EXPECT_EQ(rig_.manager->transfer(id.value()).value().layers_done, 0u);
  EXPECT_EQ(cache_->clear({}).value().leased, 2u);
  gate_->open();
  const TransferStatus status = ended(id);
  EXPECT_EQ(status.state, TransferState::done);
  EXPECT_EQ(status.layers_done, 2u);
  EXPECT_EQ(engine_.read(0), bytes_of(key(1)));
  EXPECT_EQ(engine_.read(1), bytes_of(key(2)));
}

// Loads and stores during which the n-th device operation fails, for every n.
class AgentFaultTest : public ::testing::TestWithParam<fakes::Fault> {};

TEST_P(AgentFaultTest, EveryFaultIsReportedAndLeaksNothing) {
  std::uint64_t n = 1;
  for (;; ++n) {
    ASSERT_LT(n, 200u);
    auto faulty = std::make_unique<fakes::FaultyRuntime>(make_host_runtime({}).value());
    fakes::FaultyRuntime& runtime = *faulty;
    Rig rig({.runtime = std::move(faulty)});
    const auto cache = rig.cache(small_cache({.device = 8, .pinned = 8, .disk = 8}));
    const Engine engine;
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(1, 2), .tier = Tier::device}));
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(3, 2), .tier = Tier::pinned}));
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(5, 2), .tier = Tier::disk}));
    for (std::uint32_t block = 8; block < 12; ++block) engine.write(block, bytes_of(key(block)));
    runtime.fail_nth(GetParam(), n);

    EngineMemories& engine_memories = rig.manager->engine_memories();
    if (!engine_memories.put(engine.config(), {.lease_ms = 1000})) {
      EXPECT_GT(runtime.failed(), 0u);
      ASSERT_TRUE(engine_memories.put(engine.config(), {.lease_ms = 1000}))
          << "the failed attempt left nothing";
    }
    const auto end_of = [&](const Result<TransferId>& id) {
      rig.scheduler->wait_idle();
      return rig.manager->transfer(id.value()).value();
    };
    const TransferStatus loaded = end_of(engine_memories.load(
        "engine", {},
        {.cache = cache, .memory = {}, .keys = keys(1, 6), .blocks = {0, 1, 2, 3, 4, 5}}));
    EXPECT_EQ(loaded.blocks_done + loaded.failures.size(), 6u);
    EXPECT_EQ(loaded.state == TransferState::done, loaded.failures.empty());
    for (std::uint32_t i = 0; i < 6; ++i) {
      const bool failed = std::ranges::any_of(
          loaded.failures, [&](const auto& failure) { return failure.key == key(1 + i); });
      if (failed) continue;
      EXPECT_EQ(engine.read(i), bytes_of(key(1 + i)));
    }
    for (const Tier tier : {Tier::device, Tier::disk}) {
      const std::uint64_t first = tier == Tier::device ? 8 : 10;
      EngineStoreRequest request;
      request.cache = cache;
      request.keys = keys(first, 2);
      request.blocks = {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(first) + 1};
      request.parents.resize(2);
      request.tier = tier;
      const TransferStatus stored = end_of(engine_memories.store("engine", std::move(request)));
      EXPECT_EQ(stored.blocks_done + stored.failures.size(), 2u);
      for (const BlockKey& name : keys(first, 2)) {
        const bool failed = std::ranges::any_of(
            stored.failures, [&](const auto& failure) { return failure.key == name; });
        EXPECT_EQ(rig.match(*cache, {name}, 0).blocks.empty(), failed);
      }
    }
    const std::uint64_t failed = runtime.failed();
    runtime.fail_nth(GetParam(), 0);
    for (const BlockKey& name : keys(1, 12)) {
      const auto bytes = rig.read(*cache, name);
      if (!bytes) continue;
      EXPECT_EQ(*bytes, bytes_of(name));
    }
    EXPECT_EQ(cache->stats().leases, 0u);
    for (const Tier tier : kTiers) {
      EXPECT_EQ(count(*cache, tier, SlotState::allocated), 0u);
      EXPECT_EQ(count(*cache, tier, SlotState::committed), 0u);
    }
    EXPECT_EQ(engine_memories.find("engine", {}, true).value().copies, 0u);
    if (failed == 0) break;
  }
  EXPECT_GT(n, 1u) << "nothing ever failed";
}

INSTANTIATE_TEST_SUITE_P(, AgentFaultTest,
                         ::testing::Values(fakes::Fault::allocate, fakes::Fault::copy,
                                           fakes::Fault::copy_later, fakes::Fault::record,
                                           fakes::Fault::event),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace cairn::testing
